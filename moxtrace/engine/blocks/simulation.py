"""Simulation of an MoE block transfer by transfer.

Goes in: the phases of a block, the compute time of every NPU, a network.  Comes out:
:class:`~moxtrace.engine.result.BlockResult`: times, and the order in which messages start on each link, which
is the order that traces are written in.  It takes the same steps in the same order as the traces of the block
without windows would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moxtrace.engine.blocks.kernels import (
    Block,
    Progress,
    children_lists,
    inputs_of,
    own_lists,
    participants,
    run,
)
from moxtrace.engine.kernels import (
    CLOCK_ENTRIES,
    CURRENT,
    EVENTS,
    new_links,
    new_timers,
    wires_of,
)
from moxtrace.engine.network import KINDS, Network
from moxtrace.engine.result import BlockResult, LinkUse
from moxtrace.errors import SimulationError
from moxtrace.transfers import Phase
from moxtrace.units import comp_cycles, duration_micros

__all__ = ["simulate_block"]

SLICE = 1_000_000  # events between two calls of ``progress``


def simulate_block(
    dispatch: Phase | None,
    combine: Phase | None,
    compute_ns: ArrayLike,
    network: Network,
    *,
    barrier: str,
    reduce_ns_per_byte: float,
    progress: Callable[[int, int], None] | None = None,
    times: bool = False,
) -> BlockResult:
    """Run dispatch, compute and combine.

    Dispatch starts at time 0; a transfer starts when its parent has arrived and its link is free.  In combine
    a node forwards one vector when its children's have arrived and are summed with its own.  A sum of ``k``
    vectors takes a COMP node of ``(k - 1) * size * reduce_ns_per_byte``; a single vector passes at once.  The
    source of a row sums what it receives likewise.  What an NPU can send when it has computed it sends in
    turns: the k-th row of every source before any source's k+1-th, beginning with the source after itself, so
    that NPUs do not crowd at one source after another.

    Parameters
    ----------
    dispatch, combine : Phase or None
        On the topology that ``network`` was made from; None leaves the phase out.
    compute_ns : array of float or int, shape (npus,)
        Expert compute time, ns; it takes what a COMP node of that duration does, at least one cycle.
    network : Network
    barrier : {"phase", "tokens"}
        ``phase``: an NPU computes when all that it sends and receives in dispatch, as a relay too, has
        arrived, and sends nothing of combine before it has computed.  ``tokens``: it computes when its own
        tokens have arrived, and only its own contributions wait for that.
    reduce_ns_per_byte : float
    progress : callable, optional
        Called now and then with the transfers started and their number.
    times : bool
        Keep when each transfer waited and started, 16 bytes for each.

    Returns
    -------
    BlockResult

    Raises
    ------
    SimulationError
        If a phase was routed on another network, or its transfers are no forest.

    Notes
    -----
    Under ``phase`` an NPU without any transfer in a phase takes one cycle for it, as in a trace, whose files
    hold at least one node.
    """
    if barrier not in ("phase", "tokens"):
        raise SimulationError(f"barrier {barrier!r}: expected phase or tokens")
    block, state = _prepare(dispatch, combine, compute_ns, network, barrier == "phase", reduce_ns_per_byte)
    if times:
        state = state._replace(times=np.empty((len(state.place), 2), np.int64))
    wires, links = wires_of(network, KINDS), new_links(network)
    heap = np.empty((len(state.behind) + 2 * len(links.armed) + network.num_npus + 2, 3), np.int64)
    clock = np.zeros(CLOCK_ENTRIES, np.int64)
    clock[CURRENT] = -1
    total = len(block.d_link) + len(block.c_link)
    while run(block, state, wires, links, heap, clock, SLICE):
        if progress is not None:
            progress(int(state.started.sum()), total)
    lost = total - int(state.started.sum())
    if lost or (state.compute_done < 0).any():
        raise SimulationError(
            f"block: {lost} of {total} transfers never started; parents must form a forest whose roots are "
            "at the rows' sources"
        )
    if progress is not None:
        progress(total, total)
    first = len(block.d_link)
    return BlockResult(
        state.finished, state.dispatch_done, state.compute_done, state.place[:first], state.place[first:],
        LinkUse(links.busy, links.size_bytes, links.messages), int(clock[EVENTS]),
        state.times[:first], state.times[first:],
    )  # fmt: skip


def _check(phase: Phase, name: str, network: Network) -> None:
    graph = phase.topology
    if phase.name != name:
        raise SimulationError(f"{name}: was given a phase named {phase.name}")
    same = graph.num_npus == network.num_npus and graph.num_links == network.num_links
    if not same or not (np.array_equal(graph.src, network.src) and np.array_equal(graph.dst, network.dst)):
        raise SimulationError(
            f"{name}: routed on another network ({graph.kind}, {graph.num_npus} NPUs, {graph.num_links} "
            f"links) than is simulated ({network.kind}, {network.num_npus} NPUs, {network.num_links} links)"
        )


def _compute_cycles(compute_ns: ArrayLike, network: Network) -> NDArray[np.int64]:
    times = np.asarray(compute_ns, np.float64)
    if times.shape != (network.num_npus,) or not (np.isfinite(times) & (times >= 0)).all():
        raise SimulationError(f"compute: expected {network.num_npus} times >= 0 ns, one per NPU")
    return comp_cycles(duration_micros(times, network.time_scale))


def _prepare(
    dispatch: Phase | None,
    combine: Phase | None,
    compute_ns: ArrayLike,
    network: Network,
    whole_phase: bool,
    reduce_ns_per_byte: float,
) -> tuple[Block, Progress]:
    """What is run, and the state before time 0."""
    n = network.num_npus
    for phase, name in ((dispatch, "dispatch"), (combine, "combine")):
        if phase is not None:
            _check(phase, name, network)
    nothing = np.zeros(0, np.int32)
    d_link, d_parent, d_delivers, d_size = nothing, nothing, np.zeros(0, np.bool_), 1
    c_link, c_up, c_delivers, c_size = nothing, nothing, np.zeros(0, np.bool_), 1
    inputs, rows = nothing, 0
    if dispatch is not None:
        d_link, d_parent, d_delivers = dispatch.link, dispatch.parent, dispatch.delivers
        d_size = dispatch.size_bytes
    if combine is not None:
        c_link, c_delivers, c_size = combine.link, combine.delivers, combine.size_bytes
        rows = combine.num_trees
        c_up = np.empty(len(c_link), np.int32)
        inputs = np.zeros(len(c_link) + rows, np.int32)
        inputs_of(combine.parent, combine.tree_ptr, c_delivers, not whole_phase, c_up, inputs)
    most = int((inputs >> 16).max(initial=0)) + 1
    children, sibling = np.empty(len(d_link), np.int32), np.full(len(d_link), -1, np.int32)
    children_lists(d_parent, children, sibling)
    block = Block(
        n, dispatch is not None, combine is not None, whole_phase, network.src, network.dst,
        d_link, d_parent, d_delivers, d_size, children, sibling, c_link, c_up, c_delivers, c_size,
        _compute_cycles(compute_ns, network), _reduce_cycles(most, c_size, reduce_ns_per_byte, network),
    )  # fmt: skip
    return block, _state(block, inputs, combine)


def _reduce_cycles(most: int, size: int, ns_per_byte: float, network: Network) -> NDArray[np.int64]:
    """Cycles of a sum of 0 to ``most`` inputs."""
    if not (np.isfinite(ns_per_byte) and ns_per_byte >= 0):
        raise SimulationError(f"reduce_ns_per_byte: {ns_per_byte}; expected a finite time >= 0")
    additions = np.maximum(np.arange(most + 1) - 1, 0)
    return comp_cycles(duration_micros(additions * size * ns_per_byte, network.time_scale))


def _rounds(combine: Phase) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Source of each row of combine, rows by round, and where each round starts.

    Round ``k`` holds the k-th row of every source, sources ascending.  A row without transfers has no source
    here (-1) and is in no round.
    """
    root = np.flatnonzero(combine.parent < 0)
    source = np.full(combine.num_trees, -1, np.int32)
    row = np.searchsorted(combine.tree_ptr, root, side="right") - 1
    source[row] = combine.topology.dst[combine.link[root]]
    rows = np.flatnonzero(source >= 0)
    by_source = rows[np.argsort(source[rows], kind="stable")]
    grouped = source[by_source]
    turn = np.arange(len(grouped)) - np.searchsorted(grouped, grouped)
    order = by_source[np.argsort(turn, kind="stable")]
    rounds = np.concatenate(([0], np.cumsum(np.bincount(turn))))
    return source, order.astype(np.int64), rounds.astype(np.int64)


def _state(block: Block, inputs: NDArray[np.int32], combine: Phase | None) -> Progress:
    n, transfers = block.num_ranks, len(block.d_link) + len(block.c_link)
    rows = 0 if combine is None else combine.num_trees
    behind = np.full(transfers + rows + n, -1, np.int32)
    own = np.full(n, -1, np.int32)
    if combine is not None:
        waits = inputs if block.whole_phase else block.c_delivers.view(np.int8)
        own_lists(
            block.c_link, block.src, waits, block.whole_phase, len(block.d_link), combine.tree_ptr,
            *_rounds(combine), own, behind,
        )  # fmt: skip
    pending, combines = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    participants(block, pending, combines)
    through = len(block.c_link) if int(block.dst.max()) >= n else 1
    none = np.full(n, -1, np.int64)
    return Progress(
        behind, np.full(transfers, -1, np.int32), np.empty((0, 2), np.int64), inputs,
        np.full(through, -1, np.int32), pending, own,
        np.full((n, 2), -1, np.int32), combines, none, none.copy(), np.zeros(n, np.int64),
        np.zeros(2, np.int64), new_timers(len(block.c_link) + rows + n, n),
    )  # fmt: skip
