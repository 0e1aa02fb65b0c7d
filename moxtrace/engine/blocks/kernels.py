"""The event loop over transfers: dispatch, compute and combine of an MoE block, without traces.

Items are numbered through: the transfers of dispatch, those of combine, the rows of combine (their sum at the
source), the ranks (their compute).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.engine.kernels import (
    ARRIVE,
    CURRENT,
    FREE,
    LATER,
    NOW,
    SEQ,
    SIZE,
    Timers,
    begin,
    end_timer,
    enqueue,
    pop,
    push,
    start_timer,
    take,
)
from moxtrace.jit import kernel

__all__ = ["Block", "Progress", "children_lists", "inputs_of", "own_lists", "participants", "run"]

NONE = -1
TOTAL = 16  # ``inputs`` holds how many inputs there are above these bits, and how many are missing below
LEFT = (1 << TOTAL) - 1


class Block(NamedTuple):
    """What is run."""

    num_ranks: int
    has_dispatch: bool
    has_combine: bool
    whole_phase: bool  # a rank computes after all its dispatch, and sends nothing of combine before
    src: NDArray[np.int32]  # of each link
    dst: NDArray[np.int32]
    d_link: NDArray[np.int32]
    d_parent: NDArray[np.int32]
    d_delivers: NDArray[np.bool_]
    d_size: int
    first_child: NDArray[np.int32]  # of each transfer of dispatch
    sibling: NDArray[np.int32]
    c_link: NDArray[np.int32]
    c_up: NDArray[np.int32]  # parent, or -2 - row where the transfer reaches the source
    c_delivers: NDArray[np.bool_]
    c_size: int
    compute: NDArray[np.int64]  # cycles of each rank
    reduce: NDArray[np.int64]  # cycles of a sum of so many inputs


class Progress(NamedTuple):
    """State of a run."""

    behind: NDArray[np.int32]  # the next item in the same queue, list or timer
    place: NDArray[np.int32]  # of each transfer, its place in the order of starts
    times: NDArray[np.int64]  # shape (transfers, 2): when it was handed to its link and entered it; or empty
    inputs: NDArray[np.int32]  # of each transfer and then each row of combine
    origin: NDArray[np.int32]  # rank whose message leaves the switch; one entry where there is none
    pending: NDArray[np.int64]  # transfers of dispatch that a rank's compute waits for
    own: NDArray[np.int32]  # head of the rank's list of transfers that wait for its compute
    ready: NDArray[np.int32]  # shape (ranks, 2): head and tail of those that became ready before it
    combines: NDArray[np.bool_]  # whether the rank takes part in combine
    dispatch_done: NDArray[np.int64]
    compute_done: NDArray[np.int64]
    finished: NDArray[np.int64]
    started: NDArray[np.int64]  # shape (2,): transfers of each phase that have started
    timers: Timers


@kernel
def children_lists(parent, first_child, sibling):
    """Chain the children of every transfer in ascending order."""
    first_child[:] = NONE
    for i in range(len(parent) - 1, -1, -1):
        p = parent[i]
        if p >= 0:
            sibling[i] = first_child[p]
            first_child[p] = i


@kernel
def inputs_of(parent, tree_ptr, delivers, own_part, up, inputs):
    """Fill ``up`` and ``inputs`` of combine.

    A transfer sums the transfers whose parent it is and, where it ``delivers``, the node's own part; with
    ``own_part`` the latter is missing until the node has computed.
    """
    transfers = len(parent)
    for tree in range(len(tree_ptr) - 1):
        for i in range(tree_ptr[tree], tree_ptr[tree + 1]):
            up[i] = parent[i] if parent[i] >= 0 else -2 - tree
            at = parent[i] if parent[i] >= 0 else transfers + tree
            inputs[at] += (1 << TOTAL) + 1
            if delivers[i]:
                inputs[i] += 1 << TOTAL
                if own_part:
                    inputs[i] += 1


@kernel
def own_lists(link, src, missing, by_inputs, first, tree_ptr, source, order, round_ptr, own, behind):
    """Chain the transfers of combine that wait for their rank's compute, in turns.

    With ``by_inputs`` those that no other transfer precedes (nothing is missing in ``missing``), else those
    that deliver (``missing`` is true).  Round ``k`` holds the k-th row of every source (``order`` from
    ``round_ptr[k]`` on, sources ascending); in each round a rank begins with the source after itself, so that
    ranks do not all send to one source at a time.
    """
    for k in range(len(round_ptr) - 2, -1, -1):
        for up_to_rank in (True, False):  # lists grow at their front: what comes last goes in first
            for at in range(round_ptr[k + 1] - 1, round_ptr[k] - 1, -1):
                row = order[at]
                for i in range(tree_ptr[row + 1] - 1, tree_ptr[row] - 1, -1):
                    rank = src[link[i]]
                    if rank >= len(own) or (source[row] <= rank) != up_to_rank:
                        continue
                    waits = (missing[i] & LEFT) == 0 if by_inputs else missing[i] != 0
                    if waits:
                        behind[first + i] = own[rank]
                        own[rank] = first + i


@kernel
def participants(b, pending, combines):
    """Count what each rank's compute waits for, and mark the ranks that take part in combine."""
    n = b.num_ranks
    for i in range(len(b.d_link)):
        sender, at = b.src[b.d_link[i]], b.dst[b.d_link[i]]
        if at >= n or not (b.whole_phase or b.d_delivers[i]):
            continue
        pending[at] += 1
        if b.whole_phase:
            pending[sender if sender < n else b.src[b.d_link[b.d_parent[i]]]] += 1
    for link in b.c_link:
        for end in (b.src[link], b.dst[link]):
            if end < n:
                combines[end] = True


@kernel
def _send(b, s, wires, links, heap, clock, item):
    """Hand a transfer to its link."""
    i = item - len(b.d_link)
    link = np.int64(b.d_link[item] if i < 0 else b.c_link[i])
    size = b.d_size if i < 0 else b.c_size
    if len(s.times):
        s.times[item, 0] = clock[NOW]
    started = enqueue(wires, links, heap, clock, link, item, size, s.behind)
    if started:
        _note_start(b, s, clock, item)


@kernel
def _note_start(b, s, clock, item):
    phase = 0 if item < len(b.d_link) else 1
    s.place[item] = s.started[phase]
    s.started[phase] += 1
    if len(s.times):
        s.times[item, 1] = clock[NOW]


@kernel
def _forward(b, s, wires, links, heap, clock, rank, item):
    """All inputs are there: sum them if there are several, then send the transfer, or end the row."""
    first = len(b.d_link)
    inputs = s.inputs[item - first] >> TOTAL
    if inputs >= 2 and rank < b.num_ranks:
        start_timer(s.timers, s.behind, heap, clock, rank, item, b.reduce[inputs])
    elif item < first + len(b.c_link):
        _send(b, s, wires, links, heap, clock, item)


@kernel
def _input_arrived(b, s, wires, links, heap, clock, rank, item):
    """One input of a transfer or row of combine is at ``rank``."""
    at = item - len(b.d_link)
    s.inputs[at] -= 1
    if s.inputs[at] & LEFT:
        return
    if not b.whole_phase or rank >= b.num_ranks or s.compute_done[rank] >= 0:
        _forward(b, s, wires, links, heap, clock, rank, item)
        return
    s.behind[item] = NONE
    if s.ready[rank, 0] == NONE:
        s.ready[rank, 0] = item
    else:
        s.behind[s.ready[rank, 1]] = item
    s.ready[rank, 1] = item


@kernel
def _dispatch_done(b, s, heap, clock, rank):
    """Let a rank compute."""
    idle = np.int64(clock[CURRENT] < 0 and b.whole_phase and b.has_dispatch)  # a node of one cycle
    s.dispatch_done[rank] = clock[NOW] + idle
    item = np.int64(len(s.behind) - b.num_ranks + rank)
    start_timer(s.timers, s.behind, heap, clock, rank, item, b.compute[rank] + idle)


@kernel
def _dispatch_step(b, s, heap, clock, rank):
    """One of the transfers that a rank's compute waits for has arrived."""
    s.pending[rank] -= 1
    if s.pending[rank] == 0:
        _dispatch_done(b, s, heap, clock, rank)


@kernel
def _dispatched(b, s, wires, links, heap, clock, item):
    """A transfer of dispatch arrived: its sender is done with it, its children may start."""
    link = b.d_link[item]
    at, sender = b.dst[link], np.int64(b.src[link])
    n = b.num_ranks
    if at < n:  # a message through a switch is sent when it has come out of it
        if sender >= n:
            sender = np.int64(b.src[b.d_link[b.d_parent[item]]])
        s.finished[sender] = clock[NOW]
        s.finished[at] = clock[NOW]
        if b.whole_phase:
            _dispatch_step(b, s, heap, clock, sender)
    child = np.int64(b.first_child[item])
    while child != NONE:
        _send(b, s, wires, links, heap, clock, child)
        child = np.int64(b.sibling[child])
    if at < n and (b.whole_phase or b.d_delivers[item]):
        _dispatch_step(b, s, heap, clock, np.int64(at))


@kernel
def _combined(b, s, wires, links, heap, clock, item):
    """A transfer of combine arrived: one input more for its parent, or for the row's sum at the source."""
    i = item - len(b.d_link)
    link = b.c_link[i]
    at, sender = np.int64(b.dst[link]), b.src[link]
    n = b.num_ranks
    if sender >= n:
        sender = s.origin[i]
    up = np.int64(b.c_up[i])
    if at < n:
        s.finished[sender] = clock[NOW]
        s.finished[at] = clock[NOW]
    else:
        s.origin[up] = sender
    target = up if up >= 0 else len(b.c_link) - 2 - up
    _input_arrived(b, s, wires, links, heap, clock, at, len(b.d_link) + target)


@kernel
def _computed(b, s, wires, links, heap, clock, rank):
    """A rank has computed: its own parts may go, and with a whole-phase barrier all that it sends."""
    s.compute_done[rank] = clock[NOW]
    s.finished[rank] = clock[NOW]
    if b.whole_phase and b.has_combine and not s.combines[rank]:
        s.finished[rank] += 1  # the file of an idle rank holds one node, of one cycle
    item = np.int64(s.own[rank])
    while item != NONE:
        following = np.int64(s.behind[item])
        if b.whole_phase:
            _forward(b, s, wires, links, heap, clock, rank, item)
        else:
            _input_arrived(b, s, wires, links, heap, clock, rank, item)
        item = following
    if s.ready[rank, 0] != NONE:  # receives that are posted now are handled after what goes on now
        push(heap, clock, clock[NOW], clock[SEQ], LATER | rank << 2)
        clock[SEQ] += 1


@kernel
def _computed_late(b, s, wires, links, heap, clock, rank):
    """Forward what became ready before a rank had computed."""
    item = np.int64(s.ready[rank, 0])
    while item != NONE:
        following = np.int64(s.behind[item])
        _forward(b, s, wires, links, heap, clock, rank, item)
        item = following


@kernel
def _fire(b, s, wires, links, heap, clock):
    """Start the block at time 0: rank by rank what its sources send, or compute where nothing is awaited."""
    rank = np.int64(0)
    n = b.num_ranks
    transfers = len(b.d_link)
    for i in range(transfers + 1):
        source = n
        if i < transfers:
            if b.d_parent[i] >= 0:
                continue
            source = b.src[b.d_link[i]]
        while rank < source and rank < n:
            if s.pending[rank] == 0:
                _dispatch_done(b, s, heap, clock, rank)
            rank += 1
        if i < transfers:
            _send(b, s, wires, links, heap, clock, np.int64(i))
    for i in range(len(b.c_link)):  # a leaf without a part of its own waits for nothing
        if not b.whole_phase and s.inputs[i] == 0:
            _send(b, s, wires, links, heap, clock, np.int64(transfers + i))


@kernel
def _timer_done(b, s, wires, links, heap, clock, rank, item):
    """A sum or a rank's compute is done."""
    first = len(b.d_link)
    if item >= len(s.behind) - b.num_ranks:
        _computed(b, s, wires, links, heap, clock, rank)
        return
    s.finished[rank] = clock[NOW]
    if item < first + len(b.c_link):
        _send(b, s, wires, links, heap, clock, item)


@kernel
def run(b, s, wires, links, heap, clock, limit):
    """Process up to ``limit`` events, after the start of the block; returns how many more are scheduled."""
    if clock[CURRENT] < 0:
        _fire(b, s, wires, links, heap, clock)
    first = len(b.d_link)
    for _ in range(limit):
        if clock[SIZE] == 0:
            break
        what = pop(heap, clock)
        kind, item, where = what & 3, (what >> 2) & 0xFFFFFFFF, what >> 34
        if kind == ARRIVE:
            if item < first:
                _dispatched(b, s, wires, links, heap, clock, item)
            else:
                _combined(b, s, wires, links, heap, clock, item)
        elif kind == FREE:
            waiting = take(links, where, item, s.behind)
            if waiting != NONE:
                size = b.d_size if waiting < first else b.c_size
                begin(wires, links, heap, clock, where, item, waiting, size)
                _note_start(b, s, clock, waiting)
        elif kind == LATER:
            _computed_late(b, s, wires, links, heap, clock, item)
        else:
            done = s.timers.data[item, 1]
            while done != NONE:
                following = np.int64(s.behind[done])
                _timer_done(b, s, wires, links, heap, clock, where, done)
                done = following
            end_timer(s.timers, where, item)
    return clock[SIZE]
