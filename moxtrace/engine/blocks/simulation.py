"""Simulation of an MoE block transfer by transfer.

Goes in: the phases of a block, the compute time of every NPU, a network.  Comes out:
:class:`~moxtrace.engine.result.BlockResult`: times, and the order in which messages start on each link, which
is the order that traces are written in.  It takes the same steps in the same order as the traces of the block
without windows would.

A transfer takes 16 bytes while it runs; more where its place among the starts, or its times, are wanted.
The phases themselves are no longer needed once a block is ready: who is short of memory calls
:func:`ready_block`, lets go of them and then calls :meth:`ReadyBlock.run`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moxtrace.engine.blocks.kernels import (
    BEHIND,
    Block,
    State,
    combine_items,
    dispatch_items,
    own_lists,
    participants,
    row_sources,
    run,
    sort_by,
    turns,
)
from moxtrace.engine.blocks.links.kernels import Links, new_links
from moxtrace.engine.kernels import CLOCK_ENTRIES, CURRENT, EVENTS, new_timers
from moxtrace.engine.limits import check_block
from moxtrace.engine.network import Network
from moxtrace.engine.result import BlockResult, LinkUse
from moxtrace.errors import SimulationError
from moxtrace.transfers import Phase
from moxtrace.units import comp_cycles, duration_micros

__all__ = ["ReadyBlock", "ready_block", "simulate_block"]

SLICE = 1_000_000  # events between two calls of ``progress``
_MOST_ITEMS = 2**31 - 1
_STEPS = 5  # of making a block ready

Progress = Callable[[int, int], None]


def simulate_block(
    dispatch: Phase | None,
    combine: Phase | None,
    compute_ns: ArrayLike,
    network: Network,
    *,
    barrier: str,
    reduce_ns_per_byte: float,
    progress: Progress | None = None,
    order: bool = True,
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
    order : bool
        Keep the order of starts, 4 bytes for each transfer.
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
    return ready_block(
        dispatch, combine, compute_ns, network, barrier=barrier, reduce_ns_per_byte=reduce_ns_per_byte,
        order=order, times=times,
    ).run(progress)  # fmt: skip


@dataclass(eq=False)
class ReadyBlock:
    """A block before time 0, apart from the phases that it was made of; :meth:`run` it once.

    Parameters
    ----------
    block : Block
    state : State
    links : Links
    carries : array of int64, shape (phases, links)
        Messages of each link.
    sizes : tuple of int
        Bytes of a message in each phase.
    """

    block: Block
    state: State
    links: Links
    carries: NDArray[np.int64]
    sizes: tuple[int, int]

    def run(self, progress: Progress | None = None) -> BlockResult:
        """Run it.

        Parameters
        ----------
        progress : callable, optional
            Called now and then with the transfers started and their number.

        Raises
        ------
        SimulationError
            If some transfers never start.
        """
        block, state, links = self.block, self.state, self.links
        total = block.dispatches + block.combines
        while run(block, state, links, SLICE):
            if progress is not None:
                progress(int(state.started.sum()), total)
        lost = total - int(state.started.sum())
        if lost or (state.compute_done < 0).any():
            raise SimulationError(
                f"block: {lost} of {total} transfers never started; parents must form a forest whose roots "
                "are at the rows' sources"
            )
        if progress is not None:
            progress(total, total)
        first = block.dispatches
        return BlockResult(
            state.finished, state.dispatch_done, state.compute_done, state.place[:first],
            state.place[first:], self._link_use(), int(links.clock[EVENTS]), state.times[:first],
            state.times[first:],
        )  # fmt: skip

    def _link_use(self) -> LinkUse:
        busy = (self.carries * self.links.cycles[:, :, 1]).sum(axis=0)
        size_bytes = (self.carries * np.array(self.sizes, np.int64)[:, None]).sum(axis=0)
        return LinkUse(busy, size_bytes, self.carries.sum(axis=0))


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


def _check_times(compute_ns: ArrayLike, network: Network, reduce_ns_per_byte: float) -> NDArray[np.float64]:
    """Compute time of every NPU, ns, if it and the time of a sum can be had."""
    times = np.asarray(compute_ns, np.float64)
    if times.shape != (network.num_npus,) or not (np.isfinite(times) & (times >= 0)).all():
        raise SimulationError(f"compute: expected {network.num_npus} times >= 0 ns, one per NPU")
    if not (np.isfinite(reduce_ns_per_byte) and reduce_ns_per_byte >= 0):
        raise SimulationError(f"reduce_ns_per_byte: {reduce_ns_per_byte}; expected a finite time >= 0")
    return times


def ready_block(
    dispatch: Phase | None,
    combine: Phase | None,
    compute_ns: ArrayLike,
    network: Network,
    *,
    barrier: str,
    reduce_ns_per_byte: float,
    progress: Progress | None = None,
    order: bool = True,
    times: bool = False,
) -> ReadyBlock:
    """Make a block ready to run; see :func:`simulate_block`.

    Parameters
    ----------
    dispatch, combine : Phase or None
    compute_ns : array of float or int, shape (npus,)
    network : Network
    barrier : {"phase", "tokens"}
    reduce_ns_per_byte : float
    progress : callable, optional
        Called with the steps done and their number.
    order, times : bool

    Raises
    ------
    SimulationError
        If a phase was routed on another network, a time is no time, or the run could take more cycles than
        int64 counts.
    """
    if barrier not in ("phase", "tokens"):
        raise SimulationError(f"barrier {barrier!r}: expected phase or tokens")
    for phase, name in ((dispatch, "dispatch"), (combine, "combine")):
        if phase is not None:
            _check(phase, name, network)
    compute = _check_times(compute_ns, network, reduce_ns_per_byte)
    check_block((dispatch, combine), compute, network, reduce_ns_per_byte)
    n, whole_phase = network.num_npus, barrier == "phase"
    dispatches, combines, rows = (
        0 if dispatch is None else dispatch.num_transfers,
        0 if combine is None else combine.num_transfers,
        0 if combine is None else combine.num_trees,
    )
    total = dispatches + combines + rows + n
    if total > _MOST_ITEMS:
        raise SimulationError(
            f"block: {dispatches + combines:,} transfers of {rows:,} rows; the engine counts to "
            f"{_MOST_ITEMS:,}: simulate fewer tokens per NPU"
        )
    tell = progress or (lambda done, total: None)
    items, most = np.empty((total, 4), np.int32), 0
    if dispatch is not None:
        dispatch_items(dispatch.link, dispatch.parent, dispatch.delivers, whole_phase, items)
    tell(1, _STEPS)
    if combine is not None:
        most = combine_items(
            combine.link, combine.parent, combine.tree_ptr, combine.delivers, not whole_phase,
            items[dispatches:],
        )  # fmt: skip
    tell(2, _STEPS)
    size = 1 if combine is None else combine.size_bytes
    block = Block(
        n, dispatches, combines, dispatch is not None, combine is not None, whole_phase, network.src,
        network.dst, comp_cycles(duration_micros(compute, network.time_scale)),
        _reduce_cycles(most, size, reduce_ns_per_byte, network),
    )  # fmt: skip
    state = _state(block, items, rows, order, times)
    participants(block, state, np.zeros(0, np.int32) if dispatch is None else dispatch.parent)
    tell(3, _STEPS)
    if combine is not None:
        source, by_turn, turn_ptr = _in_turns(block, items[dispatches:], combine.tree_ptr)
        tell(4, _STEPS)
        own_lists(block, state, combine.delivers, combine.tree_ptr, source, by_turn, turn_ptr)
    tell(_STEPS, _STEPS)
    return _with_links(block, state, (dispatch, combine), network)


def _with_links(
    block: Block, state: State, phases: tuple[Phase | None, Phase | None], network: Network
) -> ReadyBlock:
    """Add idle links, and a queue of events with room for all that may be scheduled at once."""
    none = np.zeros(network.num_links, np.int64)
    carries = np.array([none if phase is None else phase.link_messages() for phase in phases])
    first, second = (1 if phase is None else phase.size_bytes for phase in phases)
    clock = np.zeros(CLOCK_ENTRIES, np.int64)
    clock[CURRENT] = -1
    room = len(state.timers.data) + block.num_ranks
    links = new_links(network, (first, second), carries, room, clock)
    return ReadyBlock(block, state, links, carries, (first, second))


def _reduce_cycles(most: int, size: int, ns_per_byte: float, network: Network) -> NDArray[np.int64]:
    """Cycles of a sum of 0 to ``most`` inputs."""
    additions = np.maximum(np.arange(most + 1) - 1, 0)
    return comp_cycles(duration_micros(additions * size * ns_per_byte, network.time_scale))


def _in_turns(
    block: Block, items: NDArray[np.int32], tree_ptr: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Source of each row of combine, rows by turn, and where each turn starts.

    Turn ``k`` holds the k-th row of every source, sources ascending.  A row without transfers has no source
    here (-1) and is in no turn.
    """
    n, rows = block.num_ranks, len(tree_ptr) - 1
    source, turn = np.empty(rows, np.int32), np.empty(rows, np.int32)
    row_sources(items, block.dst, tree_ptr, source)
    seen = np.zeros(n, np.int32)
    turns(source, seen, turn)
    some = np.flatnonzero(source >= 0).astype(np.int32)
    by_source, by_turn = np.empty_like(some), np.empty_like(some)
    sort_by(source, some, np.zeros(n + 2, np.int64), by_source)
    turn_ptr = np.zeros(int(seen.max(initial=0)) + 2, np.int64)
    sort_by(turn, by_source, turn_ptr, by_turn)
    return source, by_turn, turn_ptr[:-1]


def _state(block: Block, items: NDArray[np.int32], rows: int, order: bool, times: bool) -> State:
    n, transfers = block.num_ranks, block.dispatches + block.combines
    items[len(items) - n :] = -1
    # a rank's pending sums end at times that differ, all within the longest sum from now
    timers = min(block.combines + rows, n * (int(block.reduce.max(initial=0)) + 1)) + n
    none = np.full(n, -1, np.int64)
    return State(
        items, items[:, BEHIND], np.full(transfers if order else 0, -1, np.int32),
        np.empty((transfers if times else 0, 2), np.int64), np.zeros(n, np.int64), np.full(n, -1, np.int32),
        np.full((n, 2), -1, np.int32), np.zeros(n, np.bool_), none, none.copy(), np.zeros(n, np.int64),
        np.zeros(2, np.int64), new_timers(timers, n),
    )  # fmt: skip
