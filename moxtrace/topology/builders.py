"""Standard networks, built from a few numbers.

Goes in: the ``topology`` block of a configuration.  Comes out: :class:`Topology`.  Every cable is two links,
one each way.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import TopologyError
from moxtrace.topology import expander
from moxtrace.topology.graph import MAX_NPUS, Topology
from moxtrace.topology.readers import read

__all__ = ["KINDS", "SELECT_RULES", "build", "ideal_switch_of"]

SELECT_RULES = tuple(expander.RULES)

Cables = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class _Request:
    """What was asked for, as far as it shapes the graph."""

    kind: str
    npus: int
    degree: int | None
    dims: tuple[int, ...] | None
    seed: int
    select: str

    def refuse(self, problem: str) -> TopologyError:
        return TopologyError(f"topology {self.kind}: {problem}")


def _choices(options: Iterable[object]) -> str:
    return " or ".join(str(o) for o in options)


def _unknown(what: str, found: str, known: Sequence[str]) -> TopologyError:
    near = difflib.get_close_matches(str(found), known, 1)
    hint = f", did you mean {near[0]!r}?" if near else ""
    return TopologyError(f"topology: unknown {what} {found!r}{hint}; expected one of {', '.join(known)}")


def _own_degree(request: _Request, degree: int) -> None:
    """Refuse a degree that the kind does not have."""
    if request.degree not in (None, degree):
        raise request.refuse(
            f"degree {request.degree}: {request.npus} NPUs of this kind have degree {degree}; "
            "leave degree out, or take kind expander"
        )


def _grid(dims: Sequence[int]) -> Cables:
    """Cables of a torus, row-major, the last dimension fastest; a wrap of length 2 gives its cable twice."""
    ids = np.arange(math.prod(dims)).reshape(dims)
    ends = [np.stack((ids, np.roll(ids, -1, axis)), axis=-1).reshape(-1, 2) for axis in range(len(dims))]
    return np.concatenate(ends)


def _ring(request: _Request) -> Cables:
    _own_degree(request, 2)
    return _grid([request.npus])


def _split(npus: int, parts: int) -> tuple[int, ...] | None:
    """``npus`` as a product of ``parts`` factors of at least 2, as equal as they can be, ascending."""
    if parts == 1:
        return (npus,) if npus >= 2 else None
    found: list[tuple[int, ...]] = []
    for first in range(2, npus // 2 + 1):
        if npus % first == 0 and (rest := _split(npus // first, parts - 1)):
            found.append(tuple(sorted((first, *rest))))
    return min(found, key=lambda dims: (sum(dims), dims)) if found else None


def _torus_dims(request: _Request) -> tuple[int, ...]:
    npus, dims = request.npus, request.dims
    if dims is None:
        if dims := _split(npus, 2):
            return dims
        near = [k for k in (npus - 1, npus + 1) if _split(k, 2)]
        raise request.refuse(f"{npus} NPUs make no 2-D torus, {npus} is prime; the nearest: {_choices(near)}")
    if len(dims) not in (2, 3) or min(dims) < 2:
        raise request.refuse(f"dims {list(dims)}; expected 2 or 3 lengths of at least 2, such as [4, 4]")
    if math.prod(dims) != npus:
        fits = _split(npus, len(dims))
        mend = f"npus: {math.prod(dims)}" + (f", or dims: {list(fits)}" if fits else "")
        size = " x ".join(map(str, dims))
        raise request.refuse(
            f"dims {list(dims)} hold {size} = {math.prod(dims)} NPUs, but npus is {npus}; give {mend}"
        )
    return dims


def _torus(request: _Request) -> Cables:
    dims = _torus_dims(request)
    _own_degree(request, 2 * len(dims))
    return _grid(dims)


def _hypercube(request: _Request) -> Cables:
    npus = request.npus
    size = npus.bit_length() - 1
    if npus != 1 << size:
        near = [k for k in (1 << size, 2 << size) if k <= MAX_NPUS]
        raise request.refuse(f"{npus} NPUs; expected a power of two, the nearest: {_choices(near)}")
    _own_degree(request, size)
    ids = np.arange(npus)
    return np.concatenate([np.stack((ids, ids ^ (1 << k)), axis=1)[(ids >> k) & 1 == 0] for k in range(size)])


def _fully_connected(request: _Request) -> Cables:
    _own_degree(request, request.npus - 1)
    return np.stack(np.triu_indices(request.npus, 1), axis=1)


def _check_regular(request: _Request) -> int:
    """The degree of a random regular graph, once it is known that such a graph can exist."""
    npus, degree = request.npus, request.degree
    if degree is None:
        raise request.refuse(f"degree is missing; give the links per NPU, such as degree: {min(8, npus - 1)}")
    if degree >= npus:
        raise request.refuse(
            f"degree {degree} needs at least {degree + 1} NPUs, found {npus}; the nearest: degree {npus - 1}"
        )
    if npus * degree % 2:
        degrees = [d for d in (degree - 1, degree + 1) if 2 <= d < npus]
        raise request.refuse(
            f"{npus} NPUs of degree {degree} have {npus * degree} link ends, an odd number, which cannot be "
            f"paired; the nearest: degree {_choices(degrees)}, or {_choices([npus - 1, npus + 1])} NPUs"
        )
    if degree < 2 < npus or degree < 1:
        raise request.refuse(
            f"degree {degree} cannot connect {npus} NPUs; the nearest: degree {min(2, npus - 1)}"
        )
    return degree


def _expander(request: _Request) -> Cables:
    if request.select not in expander.RULES:
        raise _unknown("select", request.select, SELECT_RULES)
    return expander.RULES[request.select](request.npus, _check_regular(request), request.seed)


def _random_regular(request: _Request) -> Cables:
    return expander.first_connected(request.npus, _check_regular(request), request.seed)


# kind -> its cables; "switch" and "graph" are made otherwise
_CABLES: dict[str, Callable[[_Request], Cables]] = {
    "ring": _ring,
    "torus": _torus,
    "hypercube": _hypercube,
    "fully-connected": _fully_connected,
    "expander": _expander,
    "random-regular": _random_regular,
}
KINDS = (*_CABLES, "switch", "graph")
_USES = {"torus": ("dims",), "expander": ("degree", "seed", "select"), "random-regular": ("degree", "seed")}


def build(
    kind: str,
    npus: int | None,
    *,
    degree: int | None = None,
    dims: Sequence[int] | None = None,
    link_gbps: float = 100,
    latency_ns: float = 500,
    lanes: int = 1,
    seed: int = 1,
    select: str = "radius",
    path: str | Path | None = None,
) -> Topology:
    """Build a network.

    Parameters
    ----------
    kind : str
        ``ring``, ``torus`` (2-D or 3-D), ``hypercube``, ``fully-connected``, ``expander`` (the best of 200
        random regular graphs), ``random-regular`` (one of them), ``switch`` (one ideal packet switch) or
        ``graph`` (the file ``path``).
    npus : int or None
        2 to 4,096; None only for ``graph``, where it is what the file says.
    degree : int, optional
        Links per NPU.  A switch port is as fast as that many links; kinds that leave no choice refuse
        another value than theirs.
    dims : sequence of int, optional
        Lengths of a torus, at least 2 each; default: 2-D, as square as can be.
    link_gbps, latency_ns, lanes : float, float, int
        Of every link: Gbit/s per lane, ns, parallel cables.  For ``graph``: where the file does not say.
    seed : int
        Of random kinds; >= 0.
    select : str
        How ``expander`` chooses: ``radius`` takes the lowest (radius, diameter, average path length).
    path : path, optional
        File of ``graph``.

    Returns
    -------
    Topology

    Raises
    ------
    TopologyError
        For a kind that does not exist or numbers that no such network has; names the nearest that work.

    Notes
    -----
    A torus dimension (or ring) of length 2 has its cable and its wrap between the same two NPUs: one link
    with two lanes.
    """
    _check_numbers(npus, link_gbps, latency_ns, lanes, seed)
    if kind not in KINDS:
        raise _unknown("kind", kind, KINDS)
    if (path is not None) != (kind == "graph"):
        found = "no path" if path is None else f"path {str(path)!r}"
        raise TopologyError(f"topology {kind}: {found}; a path goes with kind graph, and only there")
    if dims is not None and kind != "torus":
        raise TopologyError(f"topology {kind}: dims {list(dims)}; only a torus has dims")
    rates: dict[str, Any] = {"link_gbps": link_gbps, "latency_ns": latency_ns, "lanes": lanes}
    if path is not None:
        if degree is not None:
            raise TopologyError(f"topology graph: degree {degree}; the file has the links, leave degree out")
        return read(path, npus=npus, **rates)
    if npus is None:
        raise TopologyError(f"topology {kind}: npus is missing; give a number from 2 to {MAX_NPUS}")
    request = _Request(kind, npus, degree, None if dims is None else tuple(dims), seed, select)
    if kind == "switch":
        return _switch(request, **rates)
    return _cabled(request, _CABLES[kind](request), **rates)


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


def _parameters(request: _Request, **rates: float) -> dict[str, Any]:
    used = _USES.get(request.kind, ())
    values = {name: getattr(request, name) for name in used}
    if "dims" in used:
        values["dims"] = list(_torus_dims(request))  # also where the choice was ours
    return {"kind": request.kind, "npus": request.npus, **values, **rates}


def _cabled(request: _Request, cables: Cables, link_gbps: float, latency_ns: float, lanes: int) -> Topology:
    """Two links for each cable; a cable given k times is one with k times the lanes."""
    low, high = cables.min(axis=1).astype(np.int64), cables.max(axis=1).astype(np.int64)
    pair, times = np.unique(low * request.npus + high, return_counts=True)
    low, high = pair // request.npus, pair % request.npus
    return Topology(
        request.kind,
        request.npus,
        np.concatenate((low, high)).astype(np.int32),
        np.concatenate((high, low)).astype(np.int32),
        np.full(2 * len(pair), float(link_gbps)),
        np.full(2 * len(pair), float(latency_ns)),
        np.tile(times * lanes, 2).astype(np.int32),
        parameters=_parameters(request, link_gbps=link_gbps, latency_ns=latency_ns, lanes=lanes),
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


def _switch(request: _Request, link_gbps: float, latency_ns: float, lanes: int) -> Topology:
    """The ideal switch of NPUs with ``degree`` links: each port is as fast as all of them together."""
    degree = 1 if request.degree is None else request.degree
    if degree < 1:
        raise request.refuse(f"degree {degree}; expected at least 1 link's worth per port")
    port = np.full(request.npus, float(degree) * link_gbps * lanes)
    latency = np.full(2 * request.npus, float(latency_ns))
    rates = {"link_gbps": link_gbps, "latency_ns": latency_ns, "lanes": lanes}
    return _star(request.npus, port, port, latency, parameters=_parameters(request, degree=degree, **rates))


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
