"""The best certified bound of a demand on a network, and how far routings are from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moxtrace.bound.cuts import best_cut, egress_load, ingress_load
from moxtrace.bound.duals import (
    improve_link_prices,
    improve_node_prices,
    link_prices_load,
    node_prices_load,
    relays_of,
    trees_work,
)
from moxtrace.bound.program import Program, cannot_solve, solve_program
from moxtrace.bound.rows import Rows, distinct_rows
from moxtrace.demand import Demand
from moxtrace.topology.graph import Topology

__all__ = ["Bounds", "Estimate", "bounds_of", "port_load"]

_SEARCH_WORK = 1e9  # additions per round of the search for link prices: a tenth of a second
_FULL_WORK = 6e10  # additions that proving one set of prices on all rows may take: about 10 seconds
_ROUNDS = 30

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Estimate:
    """A bound that was only sampled: no certificate.

    Parameters
    ----------
    load, standard_error : float
        Tokens per Gbit/s; of the mean of the sample, whose rows the prices were not fitted to.
    rows : int
        Distinct rows in the sample.
    """

    load: float
    standard_error: float
    rows: int


@dataclass(frozen=True)
class Bounds:
    """Certified lower bounds on the busiest link's load, dispatch.

    Parameters
    ----------
    loads : dict of str to float
        Tokens per Gbit/s that each argument proves, over all tokens: ``ingress``, ``egress``, ``cut``,
        ``steiner-mean``, ``node-prices`` and, where they were computed, ``link-prices`` and
        ``linear-program``.
    port : float
        The same at the busiest port of the ideal switch.
    cut : tuple of int
        Nodes of the set behind ``cut``.
    rows : int
        Distinct rows.
    estimates : dict of str to Estimate
        What was only sampled.
    program : Program or None
        The linear program, where it was asked for and solved.
    not_exact : str or None
        Why it was asked for and not solved.
    """

    loads: dict[str, float]
    port: float
    cut: tuple[int, ...]
    rows: int
    estimates: dict[str, Estimate]
    program: Program | None = None
    not_exact: str | None = None

    @property
    def kind(self) -> str:
        """The argument that proves most; of equals, the simplest."""
        most = max(self.loads.values(), default=0.0)
        return next((name for name, load in self.loads.items() if load >= most * (1 - 1e-12)), "nothing sent")

    @property
    def load(self) -> float:
        """The best bound, tokens per Gbit/s."""
        return max(self.loads.values(), default=0.0)

    def normalized(self, load: float) -> float:
        """A load in units of the ideal switch's busiest port; 1 where nothing is sent."""
        return load / self.port if self.port else 1.0


def port_load(topology: Topology, rows: Rows) -> float:
    """Copies per Gbit/s at the busiest port of an ideal switch that joins the same NPUs (dispatch)."""
    copies = np.bincount(rows.source, rows.count * rows.size, topology.num_nodes)
    return max(ingress_load(topology, rows), float((copies / topology.out_capacity_gbps()).max()))


def bounds_of(
    topology: Topology,
    demand: Demand,
    *,
    exact: bool = False,
    search: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Bounds:
    """Bound the busiest link's load of every multicast routing from below.

    Parameters
    ----------
    topology : Topology
    demand : Demand
        One row per token.
    exact : bool
        Also solve the linear program, where it is small enough.
    search : bool
        Also look for prices of links, which takes most of the time.
    seed : int
        Of the samples that searches look at; a bound holds for any.
    progress : callable, optional
        Called with (step, done, total).

    Returns
    -------
    Bounds
    """
    tell = progress or (lambda step, done, total: None)
    tell("distinct tokens", 0, 1)
    rows = distinct_rows(demand)
    if not len(rows):
        return Bounds({}, 0.0, (), 0, {})
    loads = {"ingress": ingress_load(topology, rows), "egress": egress_load(topology, rows)}
    tell("cuts", 0, 1)
    loads["cut"], inside = best_cut(topology, rows, seed)
    relays = relays_of(topology, rows, lambda done, total: tell("relays", done, total))
    loads["steiner-mean"], _ = node_prices_load(topology, rows, relays, np.ones(topology.num_nodes))
    tell("prices", 0, 1)
    loads["node-prices"], node_price = improve_node_prices(topology, rows, relays)
    estimates: dict[str, Estimate] = {}
    if search:
        _search_link_prices(topology, rows, node_price[topology.dst], seed, tell, loads, estimates)
    program = None
    not_exact = cannot_solve(topology, rows) if exact else None
    if exact and not_exact is None:
        program = solve_program(
            topology, rows, progress=lambda done, total: tell("linear program", done, total)
        )
        loads["linear-program"] = program.lower
    cut = tuple(np.flatnonzero(inside).tolist())
    return Bounds(loads, port_load(topology, rows), cut, len(rows), estimates, program, not_exact)


def _search_link_prices(
    topology: Topology,
    rows: Rows,
    start: NDArray[np.float64],
    seed: int,
    tell: Progress,
    loads: dict[str, float],
    estimates: dict[str, Estimate],
) -> None:
    """Fit link prices to a sample; prove them on all rows if that is affordable, else estimate."""
    work = trees_work(topology, rows)
    if not np.isfinite(work):
        return
    fit, other = _two_samples(rows, max(16, int(len(rows) * _SEARCH_WORK / work)), seed)
    _, price = improve_link_prices(
        topology, fit, start, _ROUNDS, lambda done, total: tell("link prices", done, total)
    )
    if work <= _FULL_WORK:
        loads["link-prices"], _, _ = link_prices_load(
            topology, rows, price, progress=lambda done, total: tell("minimum trees", done, total)
        )
    elif len(other) > 1:
        estimates["link-prices"] = _estimate(topology, rows, other, price)


def _two_samples(rows: Rows, size: int, seed: int) -> tuple[Rows, Rows]:
    """Disjoint samples of about ``size`` rows, or half of the rows; all rows and none where they are few."""
    if size >= len(rows):
        return rows, rows.taken(np.empty(0, np.int64))
    order = np.random.default_rng(seed).permutation(len(rows))
    size = min(size, len(rows) // 2)
    return rows.taken(np.sort(order[:size])), rows.taken(np.sort(order[size : 2 * size]))


def _estimate(topology: Topology, rows: Rows, some: Rows, price: NDArray[np.float64]) -> Estimate:
    _, _, cost = link_prices_load(topology, some, price)
    each = some.count * cost
    total = float(topology.capacity_gbps @ price)
    error = each.std(ddof=1) * np.sqrt((1 - len(some) / len(rows)) / len(some))
    return Estimate(len(rows) * float(each.mean()) / total, len(rows) * float(error) / total, len(some))
