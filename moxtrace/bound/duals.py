r"""Bounds by prices: however tokens are routed, the busiest link carries no less than the average.

With any prices :math:`p_e \ge 0` of the links, the loads :math:`L_e` (tokens per unit of capacity
:math:`c_e`) satisfy :math:`\max L \sum_e c_e p_e \ge \sum_e p_e c_e L_e \ge \sum_q a_q T_p(q)`, where
:math:`T_p(q)` is the price of the cheapest tree of row ``q`` and :math:`a_q` its tokens.  Equal prices give
the mean over Steiner trees; better prices are found by multiplicative weights, and whatever they are, the
bound holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.bound.kernels import count_relays, minimum_trees, node_prices_cost, prices_to
from moxtrace.bound.rows import Rows
from moxtrace.routing.kernels import hop_distances
from moxtrace.topology.graph import Topology

__all__ = [
    "MOST_TERMINALS",
    "improve_link_prices",
    "improve_node_prices",
    "link_prices_load",
    "node_prices_load",
    "relays_of",
    "trees_work",
    "whole_prices",
]

MOST_TERMINALS = 12  # destinations that the exact minimum tree takes: its work grows as 3 to their number
_MOST_RELAYS = 4  # counted exactly up to here
_CHUNK = 8192

Progress = Callable[[int, int], None]


def _graph(topology: Topology) -> tuple[NDArray[Any], ...]:
    return topology.src, topology.dst, topology.out_ptr, topology.in_ptr, topology.in_link


def _chunks(rows: Rows, progress: Progress | None) -> Iterator[Rows]:
    """The rows in pieces, telling ``progress`` after each."""
    for first in range(0, len(rows), _CHUNK):
        last = min(first + _CHUNK, len(rows))
        yield rows.taken(np.arange(first, last))
        if progress is not None:
            progress(last, len(rows))


# -------------------------------------------------------------------------------------- node prices


def relays_of(topology: Topology, rows: Rows, progress: Progress | None = None) -> NDArray[np.int64]:
    """Nodes that are no destination but must forward, the least number for each row; shape (rows,).

    0 where source and destinations hang together by themselves; else as many as must be added.  Exact up to
    4; where a row needs more, at least 5 or what the distances ask for.
    """
    adjacent = np.zeros((topology.num_nodes, topology.num_nodes), bool)
    adjacent[topology.src, topology.dst] = True
    hops = hop_distances(topology.in_ptr, topology.in_link, topology.src, topology.num_npus)
    graph = _graph(topology)
    counted = [
        count_relays(graph, adjacent, hops, some.arrays, _MOST_RELAYS) for some in _chunks(rows, progress)
    ]
    return np.concatenate(counted) if counted else np.empty(0, np.int64)


def node_prices_load(
    topology: Topology, rows: Rows, relays: NDArray[np.int64], price: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """The bound that prices of nodes give: every link costs what its head does.

    Parameters
    ----------
    topology : Topology
    rows : Rows
    relays : array of int64, shape (rows,)
        Of :func:`relays_of`.
    price : array of float64, shape (nodes,)
        Whole numbers of at least 1 (:func:`whole_prices`).

    Returns
    -------
    load : float
        Tokens per Gbit/s.
    used : array of float64, shape (nodes,)
        Tokens per Gbit/s into each node, where every tree takes the cheapest nodes.
    """
    used = np.zeros(topology.num_nodes)
    order = np.argsort(price, kind="stable")
    cost = node_prices_cost(rows.arrays, relays, price, order, used)
    capacity = topology.in_capacity_gbps()
    return cost / float(capacity @ price), used / capacity


def improve_node_prices(
    topology: Topology, rows: Rows, relays: NDArray[np.int64], rounds: int = 60
) -> tuple[float, NDArray[np.float64]]:
    """Prices of nodes by multiplicative weights, all rows in every round.

    A node's *worth* is its price times the capacity into it.  After each round it grows with the node's load,
    by up to a factor exp(4 / sqrt(round)).

    Returns
    -------
    load : float
        The best bound of any round; the first has equal prices.
    price : array of float64, shape (nodes,)
    """
    capacity = topology.in_capacity_gbps()
    best, best_price = 0.0, np.ones(topology.num_nodes)
    price, worth = best_price, np.log(capacity)
    for i in range(rounds):
        load, used = node_prices_load(topology, rows, relays, price)
        if load > best:
            best, best_price = load, price
        worth = worth + 4.0 / np.sqrt(i + 1) * (used / used.max())
        price = whole_prices(np.exp(worth - worth.max()) / capacity)
    return best, best_price


def whole_prices(price: NDArray[np.float64], most: int = 2**20) -> NDArray[np.float64]:
    """Round prices to whole numbers from 1 to ``most``, so that sums over trees and tokens are exact."""
    return np.maximum(1.0, np.rint(price * (most / price.max())))


# -------------------------------------------------------------------------------------- link prices


def trees_work(topology: Topology, rows: Rows) -> float:
    """Additions that the exact minimum trees of all rows take, about; infinite beyond 12 destinations."""
    size = rows.size
    if len(size) and size.max() > MOST_TERMINALS:
        return float("inf")
    n = topology.num_nodes
    return float((n * (3.0**size / 2 + n * 2.0**size)).sum())


def link_prices_load(
    topology: Topology,
    rows: Rows,
    price: NDArray[np.float64],
    group: NDArray[np.int64] | None = None,
    progress: Progress | None = None,
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """The bound that prices of links give, with every minimum tree exact.

    Parameters
    ----------
    topology : Topology
    rows : Rows
        Of at most 12 destinations.
    price : array of float64, shape (links,)
        Whole numbers of at least 1 (:func:`whole_prices`).
    group : array of int64, shape (rows,), optional
        Rows whose loads are kept together, from 0 on; default: all.
    progress : callable, optional

    Returns
    -------
    load : float
        Tokens per Gbit/s.
    carried : array of float64, shape (groups, links)
        Tokens on each link, where every row takes its cheapest tree.
    cost : array of float64, shape (rows,)
        Price of each row's cheapest tree.
    """
    graph = _graph(topology)
    to = prices_to(graph, price)
    if group is None:
        group = np.zeros(len(rows), np.int64)
    groups = int(group.max()) + 1 if len(group) else 1
    carried, costs, at = np.zeros((groups, topology.num_links)), [], 0
    for some in _chunks(rows, progress):
        cost, load = minimum_trees(graph, price, to, some.arrays, group[at : at + len(some)], groups)
        carried += load
        costs.append(cost)
        at += len(some)
    cost = np.concatenate(costs) if costs else np.empty(0)
    return float(rows.count @ cost) / float(topology.capacity_gbps @ price), carried, cost


def improve_link_prices(
    topology: Topology,
    rows: Rows,
    start: NDArray[np.float64],
    rounds: int,
    progress: Progress | None = None,
) -> tuple[float, NDArray[np.float64]]:
    """Prices of links by multiplicative weights, on the minimum trees of the given rows.

    As :func:`improve_node_prices`, from given prices and by up to a factor exp(2 / sqrt(round)).

    Returns
    -------
    load : float
        The best bound of any round, for these rows alone; the first has the prices ``start``.
    price : array of float64, shape (links,)
    """
    capacity = topology.capacity_gbps
    best, best_price = 0.0, start
    price, worth = start, np.log(start * capacity)
    for i in range(rounds):
        load, carried, _ = link_prices_load(topology, rows, price)
        if load > best:
            best, best_price = load, price
        used = carried[0] / capacity
        worth = worth + 2.0 / np.sqrt(i + 1) * (used / used.max())
        price = whole_prices(np.exp(worth - worth.max()) / capacity)
        if progress is not None:
            progress(i + 1, rounds)
    return best, best_price
