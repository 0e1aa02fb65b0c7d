"""Networks, built from a few numbers.

Goes in: the ``topology`` block of a configuration.  Comes out: :class:`Topology`.  Every cable is two links,
one each way, except in kinds whose links are one-way.

Each kind is a function from :class:`~moxtrace.topology.request.Request` to
:class:`~moxtrace.topology.request.Wiring`, in the module of its family; their parameters stand in
:mod:`moxtrace.kinds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import TopologyError
from moxtrace.kinds import KINDS, misfit, near
from moxtrace.topology import expander, grids, lifts, words
from moxtrace.topology.boardfly import boardfly
from moxtrace.topology.demand_tuned import demand_tuned
from moxtrace.topology.dragonfly import dragonfly
from moxtrace.topology.graph import MAX_NPUS, Topology
from moxtrace.topology.lps import lps
from moxtrace.topology.readers import read
from moxtrace.topology.request import Request, Wiring, choices
from moxtrace.topology.slim_fly import slim_fly

__all__ = ["build", "ideal_switch_of"]


def _check_regular(request: Request) -> tuple[int, int]:
    """NPUs and degree of a random regular graph, once it is known that such a graph can exist."""
    npus, degree = request.need_npus(), request.need_degree()
    if degree >= npus:
        raise request.refuse(
            f"degree {degree} needs at least {degree + 1} NPUs, found {npus}; the nearest: degree {npus - 1}"
        )
    if npus * degree % 2:
        degrees = [d for d in (degree - 1, degree + 1) if 2 <= d < npus]
        raise request.refuse(
            f"{npus} NPUs of degree {degree} have {npus * degree} link ends, an odd number, which cannot be "
            f"paired; the nearest: degree {choices(degrees)}, or {choices([npus - 1, npus + 1])} NPUs"
        )
    if degree < 2 < npus or degree < 1:
        raise request.refuse(
            f"degree {degree} cannot connect {npus} NPUs; the nearest: degree {min(2, npus - 1)}"
        )
    return npus, degree


def _expander(request: Request) -> Wiring:
    npus, degree = _check_regular(request)
    if request.own["select"] == "radius":
        return Wiring(npus, expander.by_radius(npus, degree, request.seed))
    cables, won = expander.anneal(npus, degree, request.seed, request.own["proposals"])
    return Wiring(npus, cables, settled={"annealing": won} if won else {})


def _random_regular(request: Request) -> Wiring:
    npus, degree = _check_regular(request)
    return Wiring(npus, expander.first_connected(npus, degree, request.seed))


_WIRINGS: dict[str, Callable[[Request], Wiring]] = {
    "ring": grids.ring,
    "torus": grids.torus,
    "mesh": grids.mesh,
    "twisted-torus": grids.twisted_torus,
    "hypercube": grids.hypercube,
    "circulant": grids.circulant,
    "fully-connected": grids.fully_connected,
    "hyperx": grids.hyperx,
    "expander": _expander,
    "random-regular": _random_regular,
    "xpander": lifts.xpander,
    "dragonfly": dragonfly,
    "slim-fly": slim_fly,
    "de-bruijn": words.de_bruijn,
    "kautz": words.kautz,
    "generalized-kautz": words.generalized_kautz,
    "lps": lps,
    "nvlink-domains": lifts.nvlink_domains,
    "boardfly": boardfly,
    "demand-tuned": demand_tuned,
}
_TAKE_DEGREE = ("expander", "random-regular", "xpander", "generalized-kautz", "demand-tuned")
_TAKE_SEED = ("expander", "random-regular", "xpander", "nvlink-domains", "boardfly")


def build(
    kind: str,
    npus: int | None = None,
    *,
    degree: int | None = None,
    link_gbps: float | None = None,
    latency_ns: float = 500,
    lanes: int = 1,
    seed: int = 1,
    **parameters: Any,
) -> Topology:
    """Build a network.

    Parameters
    ----------
    kind : str
        One of :data:`moxtrace.kinds.KINDS`: ``ring``, ``expander``, ``boardfly``, ``switch`` (one ideal
        packet switch), ``graph`` (the file ``path``), ...
    npus : int, optional
        2 to 4,096.  May be left out where other parameters, or a file, say it.
    degree : int, optional
        Links per NPU.  A switch port is as fast as that many links; kinds that leave no choice refuse
        another value than theirs.
    link_gbps : float, optional
        Gbit/s per lane; default: what the kind says, mostly 100.  For ``graph``: where the file does not
        say, as latency and lanes.
    latency_ns, lanes : float, int
        Of every link: ns, parallel cables.
    seed : int
        Of random kinds; >= 0.
    **parameters
        Those of the kind, as :mod:`moxtrace.kinds` lists them; None means its default.

    Returns
    -------
    Topology
        Its ``parameters`` hold every parameter and what the builder has to tell, such as ``annealing``.

    Raises
    ------
    TopologyError
        For a kind that does not exist, a parameter that it does not have, or numbers that no such network
        has; names the nearest that work.

    Notes
    -----
    A torus dimension (or ring) of length 2 has its cable and its wrap between the same two NPUs: one link
    with two lanes.
    """
    if kind not in KINDS:
        raise TopologyError(f"topology: unknown kind {kind!r}; {near(kind, KINDS)}")
    rate = KINDS[kind].link_gbps if link_gbps is None else link_gbps
    _check_numbers(npus, rate, latency_ns, lanes, seed)
    if unsuited := misfit(kind, parameters):
        raise TopologyError(f"topology {kind}: {unsuited[0]}: {unsuited[1]}")
    own = dict(KINDS[kind].parameters) | {k: v for k, v in parameters.items() if v is not None}
    rates = {"link_gbps": rate, "latency_ns": latency_ns, "lanes": lanes}
    request = Request(kind, npus, degree, seed, own)
    if kind == "graph":
        return _graph(request, rates)
    if kind == "switch":
        return _switch(request, rates)
    wiring = _WIRINGS[kind](request)
    if kind not in _TAKE_DEGREE:
        request.check_degree(wiring)
    return _cabled(request, wiring, rates)


def _check_numbers(npus: int | None, link_gbps: float, latency_ns: float, lanes: int, seed: int) -> None:
    for ok, name, value, expected in (
        (npus is None or 2 <= npus <= MAX_NPUS, "npus", npus, f"2 to {MAX_NPUS}"),
        (0 < link_gbps < math.inf, "link_gbps", link_gbps, "a rate > 0, Gbit/s"),
        (0 <= latency_ns < math.inf, "latency_ns", latency_ns, ">= 0, ns"),
        (lanes >= 1, "lanes", lanes, ">= 1"),
        (seed >= 0, "seed", seed, ">= 0"),
    ):
        if not ok:
            raise TopologyError(f"topology: {name}: {value}; expected {expected}")


def _graph(request: Request, rates: Mapping[str, Any]) -> Topology:
    if request.own["path"] is None:
        raise request.refuse("path is missing; name the file of the graph")
    if request.degree is not None:
        raise request.refuse(f"degree {request.degree}; the file has the links, leave degree out")
    return read(request.own["path"], npus=request.npus, **rates)


def _parameters(request: Request, npus: int, rates: Mapping[str, Any], **settled: Any) -> dict[str, Any]:
    """How to build the network again: common parameters, those of the kind, and what was settled."""
    values: dict[str, Any] = {"kind": request.kind, "npus": npus}
    if request.kind in _TAKE_DEGREE:
        values["degree"] = request.degree
    if request.kind in _TAKE_SEED:
        values["seed"] = request.seed
    own = {name: _plain(value) for name, value in request.own.items() if value is not None}
    return {**values, **own, **settled, **rates}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _cabled(request: Request, wiring: Wiring, rates: Mapping[str, Any]) -> Topology:
    """Two links for each cable, or one; a cable given k times is one with k times the lanes."""
    ends = wiring.ends.astype(np.int64)
    if not wiring.one_way:
        ends = np.concatenate((ends, ends[:, ::-1]))
    pair, times = np.unique(ends[:, 0] * wiring.npus + ends[:, 1], return_counts=True)
    return Topology(
        request.kind,
        wiring.npus,
        (pair // wiring.npus).astype(np.int32),
        (pair % wiring.npus).astype(np.int32),
        np.full(len(pair), float(rates["link_gbps"])),
        np.full(len(pair), float(rates["latency_ns"])),
        (times * rates["lanes"]).astype(np.int32),
        wiring.names,
        _parameters(request, wiring.npus, rates, **wiring.settled),
    )


def _star(
    npus: int, up: NDArray[np.float64], down: NDArray[np.float64], latency: NDArray[np.float64], **rest: Any
) -> Topology:
    """One switching node after the NPUs; ``latency`` is that of all uplinks, then of all downlinks."""
    ids = np.arange(npus, dtype=np.int32)
    hub = np.full(npus, npus, np.int32)
    src, dst = np.concatenate((ids, hub)), np.concatenate((hub, ids))
    rate = np.concatenate((up, down))
    lanes = np.ones(2 * npus, np.int32)
    return Topology("switch", npus, src, dst, rate, latency, lanes, num_nodes=npus + 1, **rest)


def _switch(request: Request, rates: Mapping[str, Any]) -> Topology:
    """The ideal switch of NPUs with ``degree`` links: each port is as fast as all of them together."""
    npus, degree = request.need_npus(), 1 if request.degree is None else request.degree
    if degree < 1:
        raise request.refuse(f"degree {degree}; expected at least 1 link's worth per port")
    port = np.full(npus, float(degree) * rates["link_gbps"] * rates["lanes"])
    latency = np.full(2 * npus, float(rates["latency_ns"]))
    return _star(npus, port, port, latency, parameters=_parameters(request, npus, rates, degree=degree))


def ideal_switch_of(topology: Topology) -> Topology:
    """The ideal packet switch that gives each NPU what its links give it together.

    Parameters
    ----------
    topology : Topology

    Returns
    -------
    Topology
        Kind ``switch``: node ``num_npus`` is the switch.  The rate of an NPU's uplink is the capacity of all
        its links out, of its downlink that of all its links in; the latency of either hop is the largest
        among those links, so a path through the switch costs two link latencies, as in ASTRA-sim.
    """
    n = topology.num_npus
    up_latency, down_latency = np.zeros(topology.num_nodes), np.zeros(topology.num_nodes)
    np.maximum.at(up_latency, topology.src, topology.latency_ns)
    np.maximum.at(down_latency, topology.dst, topology.latency_ns)
    return _star(
        n,
        topology.out_capacity_gbps()[:n],
        topology.in_capacity_gbps()[:n],
        np.concatenate((up_latency[:n], down_latency[:n])),
        names=topology.names,
        parameters={"kind": "switch", "npus": n, "of": dict(topology.parameters)},
    )
