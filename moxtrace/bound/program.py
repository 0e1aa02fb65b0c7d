"""The best that any routing could do if tokens could be split: a linear program, solved by column generation.

Variables are shares of trees, one distribution for each row; what is minimised is the load of the busiest
link.  Rows are taken in groups, whose columns are the loads that a choice of trees puts on the links: the
program is the same, for the sum of distributions is a distribution over sums.

References
----------
The MoX paper, equations 3 to 5.  A. Wentges, "Weighted Dantzig-Wolfe decomposition for linear mixed-integer
programming", International Transactions in Operational Research 4 (2), 1997: prices half-way to the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moxtrace.bound.duals import link_prices_load, trees_work, whole_prices
from moxtrace.bound.rows import Rows
from moxtrace.topology.graph import Topology

__all__ = ["Program", "cannot_solve", "solve_program"]

_MOST_WORK = 1e10  # additions per round: a second or two
_MOST_GROUPS = 128
_FINE = 2**30  # prices of the program need more digits than those of a search

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Program:
    """The optimum of the linear program, between two proofs.

    Parameters
    ----------
    lower : float
        No distribution on trees has a busiest link below this, tokens per Gbit/s: a bound by prices.
    upper : float
        A distribution that was found reaches this.
    rounds : int
        Times that all minimum trees were computed.
    """

    lower: float
    upper: float
    rounds: int


def cannot_solve(topology: Topology, rows: Rows) -> str | None:
    """Why the program is too large, in words; None if it is not."""
    longest = int(rows.size.max(initial=0))
    if trees_work(topology, rows) <= _MOST_WORK:
        return None
    return (
        f"{len(rows):,} different tokens of up to {longest} destinations on {topology.num_nodes} nodes: "
        "the exact program takes up to 12 destinations and few tokens (about 40,000 at 16 NPUs and top-8)"
    )


def solve_program(
    topology: Topology,
    rows: Rows,
    gap: float = 1e-6,
    most_rounds: int = 300,
    progress: Progress | None = None,
) -> Program:
    """Solve the linear program of fractional multicast routing.

    Parameters
    ----------
    topology : Topology
    rows : Rows
        At least one.
    gap : float
        Stop when the two proofs differ by less than this share of the upper one.
    most_rounds : int
        Stop then in any case; the proofs hold.
    progress : callable, optional
        Called as ``progress(rounds, most_rounds)``.

    Returns
    -------
    Program
    """
    capacity = topology.capacity_gbps
    group = np.arange(len(rows)) * min(len(rows), _MOST_GROUPS) // len(rows)
    price = best = np.ones(topology.num_links)
    lower, upper = 0.0, np.inf
    columns: list[NDArray[np.float64]] = []
    while not columns or upper - lower > gap * upper:
        load, carried, _ = link_prices_load(topology, rows, price, group)
        columns.append(carried / capacity)
        if load > lower:
            lower, best = load, price
        upper, dual = _master(columns, lower)
        if progress is not None:
            progress(len(columns), most_rounds)
        if len(columns) == most_rounds:
            break
        # half-way to the best prices so far, each of total worth 1
        worth = best * capacity / (best @ capacity)
        price = whole_prices((0.5 * worth + 0.5 * dual) / capacity, _FINE)
    return Program(lower, upper, len(columns))


def _master(columns: list[NDArray[np.float64]], scale: float) -> tuple[float, NDArray[np.float64]]:
    """The best mixture of the columns of each group: the busiest link's load, and what each link is worth."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_matrix, hstack, identity, kron

    rounds, (groups, links) = len(columns), columns[0].shape
    loads = np.concatenate(columns).T / scale  # [link, round and group]
    upper = hstack([csr_matrix(loads), csr_matrix(-np.ones((links, 1)))], format="csr")
    one_each = hstack([kron(np.ones((1, rounds)), identity(groups)), csr_matrix((groups, 1))], format="csr")
    cost = np.zeros(rounds * groups + 1)
    cost[-1] = 1.0
    solved = linprog(cost, upper, np.zeros(links), one_each, np.ones(groups), method="highs")
    if solved.status != 0:
        raise ArithmeticError(f"HiGHS: {solved.message}")  # a mixture exists always
    dual = np.maximum(0.0, -solved.ineqlin.marginals)
    return float(solved.fun) * scale, dual / dual.sum()
