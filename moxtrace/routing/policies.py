"""Routing policies: a demand on a topology becomes the dispatch phase.

Goes in: a :class:`~moxtrace.topology.graph.Topology`, a :class:`~moxtrace.demand.Demand` and the name of a
policy.  Comes out: a :class:`~moxtrace.transfers.Phase`.

Sources do not see each other: each has its own counter per directed link, which starts at 0 in every call
(one call is one collective).  So runs of sources are routed side by side, and the number of threads changes
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moxtrace.demand import Demand
from moxtrace.errors import RoutingError
from moxtrace.kinds import POLICIES
from moxtrace.routing.kernels import hop_distances, route_paths, route_trees
from moxtrace.routing.mox.policy import kernel_for
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.topology.graph import Topology
from moxtrace.transfers import Phase

__all__ = ["POLICIES", "TABLE_POLICIES", "UNICAST_POLICIES", "WEIGHTED_POLICIES", "route", "threads_at_most"]

WEIGHTED_POLICIES = ("mox-paper",)  # one weight per link
TABLE_POLICIES = ("mox",)

UNICAST_POLICIES = ("min-hop", "switch")
_ROWS_PER_RUN = 4096
_MOST_THREADS = 8
_MOST_TRANSFERS = 2**31 - 1
_THREADS: ContextVar[int] = ContextVar("routing threads", default=_MOST_THREADS)

Progress = Callable[[int, int], None]
_Piece = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]


def route(
    topology: Topology,
    demand: Demand,
    policy: str,
    weights: ArrayLike | MoxTables | None,
    size_bytes: int,
    seed: int = 0,
    progress: Progress | None = None,
    threads: int | None = None,
) -> Phase:
    """Route every token of ``demand``.

    ``min-hop``
        One copy per destination NPU, each along a shortest path, hop by hop: of the links that lead one hop
        nearer, the one that this source has used least; the lowest link id among equals.  Copies leave token
        by token, in the order of their destinations.
    ``switch``
        The same where a hub joins the NPUs: up one link and down another.
    ``tree``, ``mox-paper``
        One tree per token.  The *cost* of link ``e`` is ``(used_e + 1) / weight_e``, what its counter per
        weight would read after one more use, in double precision as ``(used_e + 1) * (1 / weight_e)``.
        The holders are the source at first.  While destinations are left:

        1. If some of them are neighbours of holders: of all links from a holder to one of these, take the
           cheapest.  Its head becomes a holder.
        2. Else, of the paths from a holder to a destination with the fewest relays, take the one whose
           costliest link is the cheapest; among equals, the one with the least sum of costs, added from the
           holder on.  All its nodes become holders.

        Ties: the link of the lowest id, or the path whose last link has the lowest id.  A path is chosen from
        its end: what leads to the tail of its last link is the best path to that node, by the same rule.
        ``weight_e`` is the link's capacity over the greatest capacity in ``tree`` and ``weights[e]`` in
        ``mox-paper``.

    Parameters
    ----------
    topology : Topology
    demand : Demand
        Destination sets; the policies that send copies call its ``unicast`` themselves.
    policy : {"min-hop", "tree", "mox-paper", "switch"}
    weights : array of float64, shape (links,), or None
        Share of the load that each link is meant to take, on any scale; only for ``mox-paper``.
    size_bytes : int
        Size of one token's message, bytes.
    seed : int
        For policies that draw at random; of these, none does.
    progress : callable, optional
        Called as ``progress(rows_done, rows)``.
    threads : int, optional
        Default: the CPUs that this process may use, at most 8.  Does not change the result.

    Returns
    -------
    Phase
        Dispatch: a tree per token in the order of the demand, or a path per copy under ``min-hop`` and
        ``switch``.  Within a tree, transfers stand in the order in which they were chosen.

    Raises
    ------
    RoutingError
        If the policy is unknown or does not suit the topology, if the weights are missing, superfluous or no
        weights, if demand and topology differ in NPUs, or if there are 2**31 transfers or more.

    References
    ----------
    The rules of ``tree`` and ``mox-paper`` are those of the MoX paper; where it leaves a choice open (the
    cost of a fresh link, paths of several links), the choice is ours.
    """
    _check_policy(topology, policy, weights)
    if demand.num_npus != topology.num_npus:
        raise RoutingError(
            f"routing: the demand is for {demand.num_npus} NPUs and topology {topology.kind} has "
            f"{topology.num_npus}; make both from one configuration"
        )
    if policy in UNICAST_POLICIES:
        demand = demand.unicast()
    kernel = _kernel_of(topology, policy, weights)
    pieces = _route_runs(kernel, demand, progress, threads or _default_threads())
    return _join(pieces, topology, demand.num_rows, size_bytes)


def _kernel_of(
    topology: Topology, policy: str, weights: ArrayLike | MoxTables | None
) -> Callable[..., _Piece]:
    """The kernel that routes a run of rows, with all but the rows filled in."""
    if isinstance(weights, MoxTables):
        return kernel_for(topology, weights)
    hops = hop_distances(topology.in_ptr, topology.in_link, topology.src, topology.num_npus)
    graph = (topology.src, topology.dst, topology.out_ptr, topology.in_ptr, topology.in_link, hops)
    if policy in UNICAST_POLICIES:
        return partial(route_paths, graph)
    return partial(route_trees, graph, _inverse_weight(topology, weights))


def _check_policy(topology: Topology, policy: str, weights: ArrayLike | MoxTables | None) -> None:
    """Check policy, topology and weights together."""
    if policy not in POLICIES:
        raise RoutingError(f"routing policy {policy!r} is unknown; expected one of {', '.join(POLICIES)}")
    if policy == "switch" and not topology.has_switch:
        raise RoutingError(
            f"routing policy switch: topology {topology.kind} has no switch; use topology kind switch, "
            "or another policy"
        )
    if policy not in UNICAST_POLICIES and topology.has_switch:
        raise RoutingError(
            f"routing policy {policy}: the hub of topology {topology.kind} is no NPU and copies no tokens; "
            "use policy switch there"
        )
    if policy not in WEIGHTED_POLICIES + TABLE_POLICIES:
        if weights is not None:
            raise RoutingError(
                f"routing policy {policy} takes no weights, but some were given; leave them out"
            )
    elif weights is None:
        raise RoutingError(f"routing policy {policy} needs link weights; compute them (moxtrace weights)")
    elif isinstance(weights, MoxTables) != (policy in TABLE_POLICIES):
        raise RoutingError(
            f"routing policy {policy}: these weights are another policy's; compute its own (moxtrace weights)"
        )


def _inverse_weight(topology: Topology, weights: ArrayLike | None) -> NDArray[np.float64]:
    """1 / weight of each link; without weights, links count by their capacity."""
    if weights is None:
        capacity = topology.capacity_gbps
        return capacity.max() / capacity
    weight = np.asarray(weights, dtype=np.float64)
    if weight.shape != (topology.num_links,):
        raise RoutingError(
            f"routing: weights of shape {weight.shape} for {topology.num_links} links; "
            "compute them for this topology"
        )
    bad = ~(np.isfinite(weight) & (weight > 0))
    if bad.any():
        e = int(np.argmax(bad))
        raise RoutingError(
            f"routing: weight of link {topology.npu_name(topology.src[e])} -> "
            f"{topology.npu_name(topology.dst[e])} is {weight[e]}; expected a finite number > 0"
        )
    return 1.0 / weight


@contextmanager
def threads_at_most(count: int) -> Iterator[None]:
    """Route with so many threads at most while the body runs, where a call does not say how many.

    Parameters
    ----------
    count : int
        Of the thread that runs the body; others are as they were.
    """
    token = _THREADS.set(count)
    try:
        yield
    finally:
        _THREADS.reset(token)


def _default_threads() -> int:
    """CPUs that this process may use, at most 8, and no more than :func:`threads_at_most` says."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_THREADS.get(), allowed)


def _runs(source: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Cut the rows into runs of about 4,096 that begin and end with whole sources."""
    starts = np.flatnonzero(np.diff(source, prepend=-1)).tolist()
    first = 0
    for start in starts[1:]:
        if start - first >= _ROWS_PER_RUN:
            yield first, start
            first = start
    if len(source):
        yield first, len(source)


def _route_run(kernel: Callable[..., _Piece], demand: Demand, run: tuple[int, int]) -> _Piece:
    """Route the rows of one run."""
    first, stop = run
    return kernel((demand.source[first:stop], demand.dest_ptr[first : stop + 1], demand.dest))


def _route_runs(
    kernel: Callable[..., _Piece], demand: Demand, progress: Progress | None, threads: int
) -> list[_Piece]:
    """Route the runs side by side (the kernels release the lock); pieces in the order of the rows."""
    runs = list(_runs(demand.source))
    pieces: list[_Piece] = []
    with ThreadPoolExecutor(max(1, threads)) as pool:
        try:
            for piece in pool.map(partial(_route_run, kernel, demand), runs):
                pieces.append(piece)
                if progress is not None:
                    progress(runs[len(pieces) - 1][1], demand.num_rows)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return pieces


def _join(pieces: list[_Piece], topology: Topology, rows: int, size_bytes: int) -> Phase:
    """One forest of all pieces; empties ``pieces`` on the way, to need memory once."""
    total = sum(len(piece[0]) for piece in pieces)
    if total > _MOST_TRANSFERS:
        raise RoutingError(
            f"routing: {total} transfers in one phase; at most {_MOST_TRANSFERS}: route fewer tokens per NPU"
        )
    link, parent = np.empty(total, np.int32), np.empty(total, np.int32)
    delivers, tree_ptr = np.empty(total, np.bool_), np.zeros(rows + 1, np.int64)
    at, row = 0, 1
    pieces.reverse()
    while pieces:
        some_link, some_parent, some_delivers, end = pieces.pop()
        stop = at + len(some_link)
        link[at:stop] = some_link
        np.add(some_parent, np.where(some_parent >= 0, at, 0), out=parent[at:stop], casting="unsafe")
        delivers[at:stop] = some_delivers
        tree_ptr[row : row + len(end)] = end + at
        at, row = stop, row + len(end)
    return Phase("dispatch", topology, link, parent, tree_ptr, delivers, size_bytes)
