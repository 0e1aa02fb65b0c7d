"""The offline part of ``mox``: shares and prices from uniform traffic through the placement.

Goes in: a topology, the NPU of every expert and top-K.  Comes out: :class:`MoxTables`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.demand import Demand
from moxtrace.replicas import Hosts
from moxtrace.routing.kernels import hop_distances
from moxtrace.routing.mox.kernels import FINE, UNIT
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.routing.policies import route
from moxtrace.routing.prior import check_arguments, placement_hash, topology_hash, uniform_demand
from moxtrace.topology.graph import Topology

__all__ = ["compute_tables"]

_TOKENS = 160_000  # in each replay, of all sources together
_KEEP = 0.7  # of the earlier shares, in each replay
_SMALLEST = 1e-4  # least share that stands for a link which a source has not used, copies per token
_NEAR = 3  # hops within which prices need not lengthen ways: a way has one relay or two
_STRETCH = 2
_STEP = 0.1  # greatest excess that counts in one replay ...
_STRETCHED_STEP = 1.0  # ... and where prices lengthen ways: a bottleneck stays far over the mean for long
_LEAST_LEVEL = 0.9  # of a link that is used less: no feedback on what cannot bind
_STEEPEST = 0.4  # greatest price ...
_STRETCHED_STEEPEST = 3.0  # ... and where prices lengthen ways, to tell the links of a bottleneck apart


def compute_tables(
    topology: Topology,
    host: Hosts,
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

    Where some NPUs are more than 3 hops apart, all is done twice, with ways measured in hops and with prices
    in their lengths, and what leaves the busiest link with less is kept.  Prices in lengths rise by the whole
    excess, and to 3: the links of a bottleneck stay above the mean, whatever they cost, and must not all end
    at the same greatest price.

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
        Called as ``progress(replays_done, all_replays)``.

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
    hops = hop_distances(topology.in_ptr, topology.in_link, topology.src, topology.num_npus)
    stretches = (0,) if hops.max() <= _NEAR else (0, _STRETCH)
    parameters = {"policy": "mox", "tokens_per_source": tokens_per_source, "replays": replays, "eta": eta,
                  "seed": seed}  # fmt: skip
    names = (topology_hash(topology), placement_hash(host), top_k, num_experts)
    fits = []
    for i, stretch in enumerate(stretches):
        fit = _Fit(topology, stretch, names, parameters)
        for replay in range(replays):
            fit.replay(
                replay, uniform_demand(topology.num_npus, host, top_k, tokens_per_source, seed + replay)
            )
            if progress is not None:
                progress(i * replays + replay + 1, len(stretches) * replays)
        fits.append(fit)
    return min(fits, key=lambda fit: fit.busiest).result()


class _Fit:
    """Replays with one stretch, and the mean of their second half."""

    def __init__(
        self, topology: Topology, stretch: int, names: tuple[str, str, int, int], parameters: dict[str, Any]
    ) -> None:
        self._topology, self._stretch, self._names, self._parameters = topology, stretch, names, parameters
        npus, links = topology.num_npus, topology.num_links
        self._prior = np.zeros(npus)
        self._share, self._price = np.zeros((npus, links)), np.zeros(links)
        self._mean_share, self._mean_price = np.zeros((npus, links)), np.zeros(links)
        self._history: list[float] = []
        self.busiest = 0.0

    def replay(self, number: int, demand: Demand) -> None:
        """Route fresh traffic by the tables as they are, and correct them."""
        npus, links, capacity = (
            self._topology.num_npus,
            self._topology.num_links,
            self._topology.capacity_gbps,
        )
        per_source, replays = demand.num_rows // npus, self._parameters["replays"]
        if number == 0:
            self._prior = np.bincount(demand.dest, minlength=npus) / demand.num_rows
            self._share[:] = 1.25 * self._prior.sum() * capacity / capacity.sum()
        tables = self._tables(self._share, self._price)
        phase = route(self._topology, demand, "mox", tables, size_bytes=1)
        sender = np.repeat(demand.source.astype(np.int64), np.diff(phase.tree_ptr))
        sent = np.bincount(sender * links + phase.link, minlength=npus * links).reshape(npus, links)
        load = sent.sum(axis=0) / capacity
        mean = load.mean() or 1.0  # nothing is sent where all experts are at home
        self._history.append(float(load.max() / mean))
        most, steepest = (_STRETCHED_STEP, _STRETCHED_STEEPEST) if self._stretch else (_STEP, _STEEPEST)
        step = self._parameters["eta"] / (1 + number / 6) * np.clip(load / mean - 1, -_STEP, most)
        self._price = np.clip(self._price + step, -_STEEPEST, steepest)
        self._share = _KEEP * self._share + (1 - _KEEP) * sent / per_source
        if number >= replays // 2:
            kept = replays - replays // 2
            self._mean_share += self._share / kept
            self._mean_price += self._price / kept
            self.busiest += float(load.max()) / kept

    def result(self) -> MoxTables:
        """The mean of the tables over the second half of the replays."""
        return self._tables(self._mean_share, self._mean_price)

    def _tables(self, share: NDArray[np.float64], price: NDArray[np.float64]) -> MoxTables:
        """Round to the units of the tables."""
        topology = self._topology
        load = share.sum(axis=0) / topology.capacity_gbps
        most = load.max() or 1.0
        into = topology.num_npus / topology.in_capacity_gbps()[: topology.num_npus] / most
        level = np.maximum(load / most, _LEAST_LEVEL)
        return MoxTables(
            _whole(np.maximum(share, _SMALLEST) * FINE), _whole(level * UNIT), _whole(price * UNIT),
            _whole(into * UNIT), _whole(self._prior * FINE), tuple(self._history), *self._names,
            self._parameters, self._stretch,
        )  # fmt: skip


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)
