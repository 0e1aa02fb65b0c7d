"""The offline part of ``mox``: shares and prices from uniform traffic through the placement.

Goes in: a topology, the NPU of every expert and top-K.  Comes out: :class:`MoxTables`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.routing.mox.kernels import FINE, UNIT
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.routing.policies import route
from moxtrace.routing.prior import check_arguments, placement_hash, topology_hash, uniform_demand
from moxtrace.topology.graph import Topology

__all__ = ["compute_tables"]

_TOKENS = 160_000  # in each replay, of all sources together
_KEEP = 0.7  # of the earlier shares, in each replay
_SMALLEST = 1e-4  # least share that stands for a link which a source has not used, copies per token
_STEP = 0.1  # greatest excess that counts in one replay
_LEAST_LEVEL = 0.9  # of a link that is used less: no feedback on what cannot bind
_STEEPEST = 0.4  # greatest price


def compute_tables(
    topology: Topology,
    host: NDArray[np.integer[Any]],
    num_experts: int,
    top_k: int,
    *,
    tokens_per_source: int | None = None,
    replays: int = 24,
    eta: float = 0.5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> MoxTables:
    """Replay fresh uniform traffic under the policy itself, until what it does is what its tables say.

    Each replay draws new tokens, ``top_k`` distinct experts each, uniformly.  After it, with ``L`` the load
    per unit of capacity::

        price += eta / (1 + replay / 6) * (L / mean(L) - 1)     at most 0.1 of that, and 0.4 in all
        share  = 0.7 * share + 0.3 * (copies per token of each source)

    The first replay has the same share everywhere and no prices.  The result is the mean over the second half
    of the replays: fresh samples and averaging keep the tables from fitting one sample.

    Parameters
    ----------
    topology : Topology
    host : array of int, shape (num_experts,)
        NPU of each expert.
    num_experts, top_k : int
    tokens_per_source : int, optional
        Default: 160,000 tokens in all, but 100 to 2,500 for each source.
    replays : int
    eta : float
        Step of the prices.
    seed : int
        Of the draws.
    progress : callable, optional
        Called as ``progress(replays_done, replays)``.

    Returns
    -------
    MoxTables

    Raises
    ------
    RoutingError
        If the arguments contradict each other.
    """
    if tokens_per_source is None:
        tokens_per_source = min(max(_TOKENS // topology.num_npus, 100), 2500)
    check_arguments(topology, host, num_experts, top_k, tokens_per_source, replays)
    npus, links, capacity = topology.num_npus, topology.num_links, topology.capacity_gbps
    demand = uniform_demand(npus, host, top_k, tokens_per_source, seed)
    prior = np.bincount(demand.dest, minlength=npus) / demand.num_rows
    share = np.tile(1.25 * prior.sum() * capacity / capacity.sum(), (npus, 1))
    price = np.zeros(links)
    names = (topology_hash(topology), placement_hash(host), top_k, num_experts)
    parameters = {"policy": "mox", "tokens_per_source": tokens_per_source, "replays": replays, "eta": eta,
                  "seed": seed}  # fmt: skip
    history: list[float] = []
    shares, prices = np.zeros_like(share), np.zeros(links)
    for replay in range(replays):
        tables = _tables(topology, share, price, prior, tuple(history), names, parameters)
        demand = uniform_demand(npus, host, top_k, tokens_per_source, seed + 1 + replay)
        phase = route(topology, demand, "mox", tables, size_bytes=1)
        sender = np.repeat(demand.source.astype(np.int64), np.diff(phase.tree_ptr))
        sent = np.bincount(sender * links + phase.link, minlength=npus * links).reshape(npus, links)
        load = sent.sum(axis=0) / capacity
        mean = load.mean() or 1.0  # nothing is sent where all experts are at home
        history.append(float(load.max() / mean))
        excess = np.clip(load / mean - 1, -_STEP, _STEP)
        price = np.clip(price + eta / (1 + replay / 6) * excess, -_STEEPEST, _STEEPEST)
        share = _KEEP * share + (1 - _KEEP) * sent / tokens_per_source
        if replay >= replays // 2:
            shares += share / (replays - replays // 2)
            prices += price / (replays - replays // 2)
        if progress is not None:
            progress(replay + 1, replays)
    return _tables(topology, shares, prices, prior, tuple(history), names, parameters)


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _tables(
    topology: Topology,
    share: NDArray[np.float64],
    price: NDArray[np.float64],
    prior: NDArray[np.float64],
    history: tuple[float, ...],
    names: tuple[str, str, int, int],
    parameters: dict[str, Any],
) -> MoxTables:
    """Round to the units of the tables."""
    load = share.sum(axis=0) / topology.capacity_gbps
    most = load.max() or 1.0
    into = topology.num_npus / topology.in_capacity_gbps()[: topology.num_npus] / most
    level = np.maximum(load / most, _LEAST_LEVEL)
    return MoxTables(
        _whole(np.maximum(share, _SMALLEST) * FINE), _whole(level * UNIT), _whole(price * UNIT),
        _whole(into * UNIT), _whole(prior * FINE), history, *names, parameters,
    )  # fmt: skip
