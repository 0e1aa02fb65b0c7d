"""The event loop over transfers: dispatch, compute and combine of an MoE block, without traces.

Items are numbered through: the transfers of dispatch, those of combine, the rows of combine (their sum at the
source), the ranks (their compute).  An item is a record of four int32, together because an event needs them
together and they lie anywhere in memory: its link, two numbers that depend on what it is, and the next item
in the same queue, list or timer.

====================  =========================  ==================  ===============================
item                  LINK                       UP                  LEFT
====================  =========================  ==================  ===============================
transfer of dispatch  twice its link, and 1      its first child     its next sibling; ROOT where it
                      where its arrival counts                       has no parent
transfer of combine   its link                   its parent, or      its inputs, and those missing
                                                 ``-2 - row``
row of combine        unused                     unused              likewise
====================  =========================  ==================  ===============================

Of a transfer that leaves a switch, LEFT becomes the rank that it comes from when it is handed to its link.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.engine.blocks.links.kernels import coming, hand, next_event, released, start
from moxtrace.engine.blocks.links.prefetch import prefetch
from moxtrace.engine.kernels import (
    ARRIVE,
    CURRENT,
    FREE,
    LATER,
    NOW,
    SEQ,
    Timers,
    end_timer,
    push,
    start_timer,
)
from moxtrace.jit import kernel

__all__ = [
    "Block", "State", "combine_items", "dispatch_items", "own_lists", "participants", "row_sources", "run",
    "sort_by", "turns",
]  # fmt: skip

NONE = -1
ROOT = -2
FAR, NEAR = 12, 6  # events ahead at which a record is fetched, and what it points to
LINK, UP, LEFT, BEHIND = 0, 1, 2, 3
TOTAL = 16  # LEFT of combine holds how many inputs there are above these bits, and how many are missing below
MISSING = (1 << TOTAL) - 1


class Block(NamedTuple):
    """What is run."""

    num_ranks: int
    dispatches: int  # transfers of each phase
    combines: int
    has_dispatch: bool
    has_combine: bool
    whole_phase: bool  # a rank computes after all its dispatch, and sends nothing of combine before
    src: NDArray[np.int32]  # of each link
    dst: NDArray[np.int32]
    compute: NDArray[np.int64]  # cycles of each rank
    reduce: NDArray[np.int64]  # cycles of a sum of so many inputs


class State(NamedTuple):
    """State of a run."""

    items: NDArray[np.int32]  # shape (items, 4)
    behind: NDArray[np.int32]  # their last column
    place: NDArray[np.int32]  # of each transfer, its place in the order of starts; empty where nobody asks
    times: NDArray[np.int64]  # shape (transfers, 2): when it was handed to its link and entered it; or empty
    pending: NDArray[np.int64]  # transfers of dispatch that a rank's compute waits for
    own: NDArray[np.int32]  # head of the rank's list of transfers that wait for its compute
    ready: NDArray[np.int32]  # shape (ranks, 2): head and tail of those that became ready before it
    takes_part: NDArray[np.bool_]  # whether the rank takes part in combine
    dispatch_done: NDArray[np.int64]
    compute_done: NDArray[np.int64]
    finished: NDArray[np.int64]
    started: NDArray[np.int64]  # shape (2,): transfers of each phase that have started
    timers: Timers


@kernel
def dispatch_items(link, parent, delivers, all_count, items):
    """Fill in the transfers of dispatch; their children are chained in ascending order."""
    for i in range(len(link)):
        counts = 1 if all_count or delivers[i] else 0
        items[i, LINK] = link[i] << 1 | counts
        items[i, UP] = NONE
        items[i, LEFT] = ROOT if parent[i] < 0 else NONE
    for i in range(len(link) - 1, -1, -1):
        p = parent[i]
        if p >= 0:
            items[i, LEFT] = items[p, UP]
            items[p, UP] = i


@kernel
def combine_items(link, parent, tree_ptr, delivers, own_part, items):
    """Fill in the transfers and rows of combine; returns the most inputs that a sum has.

    A transfer sums the transfers whose parent it is and, where it ``delivers``, the node's own part; with
    ``own_part`` the latter is missing until the node has computed.
    """
    transfers = len(link)
    own = (1 << TOTAL) + (1 if own_part else 0)
    for tree in range(len(tree_ptr) - 1):
        items[transfers + tree, LEFT] = 0
        for i in range(tree_ptr[tree], tree_ptr[tree + 1]):
            items[i, LINK] = link[i]
            items[i, UP] = parent[i] if parent[i] >= 0 else -2 - tree
            items[i, LEFT] = own if delivers[i] else 0
    most = np.int64(0)
    for i in range(transfers):
        up = np.int64(items[i, UP])
        at = up if up >= 0 else transfers - 2 - up
        items[at, LEFT] += (1 << TOTAL) + 1
        most = max(most, np.int64(items[at, LEFT] >> TOTAL))
    return most


@kernel
def row_sources(items, dst, tree_ptr, source):
    """NPU that each row of combine ends at, -1 where it has no transfers; ``items`` are those of combine."""
    for row in range(len(source)):
        source[row] = NONE
        for i in range(tree_ptr[row], tree_ptr[row + 1]):
            if items[i, UP] < 0:
                source[row] = dst[items[i, LINK]]


@kernel
def turns(source, seen, turn):
    """How many earlier rows have the source of each row; ``seen`` is 0 for each source at first."""
    for row in range(len(source)):
        at = source[row]
        if at >= 0:
            turn[row] = seen[at]
            seen[at] += 1


@kernel
def sort_by(key, rows, ptr, ordered):
    """Sort ``rows`` by ``key[row]``, those of one key in the order in which they came.

    ``ptr``, zeros at first, one more than there are keys and one more again, ends so that the rows of key
    ``k`` are ``ordered[ptr[k] : ptr[k + 1]]``.
    """
    for row in rows:
        ptr[key[row] + 2] += 1
    for k in range(len(ptr) - 1):
        ptr[k + 1] += ptr[k]
    for row in rows:
        at = key[row] + 1
        ordered[ptr[at]] = row
        ptr[at] += 1


@kernel
def own_lists(b, s, delivers, tree_ptr, source, order, turn_ptr):
    """Chain the transfers of combine that wait for their rank's compute, in turns.

    With a whole-phase barrier those that no other transfer precedes, else those that deliver.  Turn ``k``
    holds the k-th row of every source (``order`` from ``turn_ptr[k]`` on, sources ascending); in each turn a
    rank begins with the source after itself, so that ranks do not all send to one source at a time.
    """
    first, items, own = b.dispatches, s.items, s.own
    for k in range(len(turn_ptr) - 2, -1, -1):
        for up_to_rank in (True, False):  # lists grow at their front: what comes last goes in first
            for at in range(turn_ptr[k + 1] - 1, turn_ptr[k] - 1, -1):
                row = order[at]
                for i in range(tree_ptr[row + 1] - 1, tree_ptr[row] - 1, -1):
                    item = first + i
                    waits = (items[item, LEFT] & MISSING) == 0 if b.whole_phase else delivers[i]
                    if not waits:
                        continue
                    rank = b.src[items[item, LINK]]
                    if rank < b.num_ranks and (source[row] <= rank) == up_to_rank:
                        items[item, BEHIND] = own[rank]
                        own[rank] = item


@kernel
def participants(b, s, parent):
    """Count what each rank's compute waits for, and mark the ranks that take part in combine.

    ``parent`` is that of dispatch; it is looked at where a message comes out of a switch.
    """
    n, items, src, dst = b.num_ranks, s.items, b.src, b.dst
    for i in range(b.dispatches):
        link = items[i, LINK] >> 1
        if dst[link] >= n or items[i, LINK] & 1 == 0:
            continue
        s.pending[dst[link]] += 1
        if b.whole_phase:
            sender = src[link]
            s.pending[sender if sender < n else src[items[parent[i], LINK] >> 1]] += 1
    for i in range(b.dispatches, b.dispatches + b.combines):
        link = items[i, LINK]
        if src[link] < n:
            s.takes_part[src[link]] = True
        if dst[link] < n:
            s.takes_part[dst[link]] = True


@kernel
def _send(b, s, links, item):
    """Hand a transfer to its link."""
    phase, link = 0, np.int64(s.items[item, LINK])
    if item >= b.dispatches:
        phase = 1
    else:
        link >>= 1
    if len(s.times):
        s.times[item, 0] = links.clock[NOW]
    if hand(links, phase, link, item, s.behind):
        _note_start(b, s, links, phase, item)


@kernel
def _note_start(b, s, links, phase, item):
    """Count a start."""
    if len(s.place):
        s.place[item] = s.started[phase]
    if len(s.times):
        s.times[item, 1] = links.clock[NOW]
    s.started[phase] += 1


@kernel
def _look_ahead(b, s, links):
    """Fetch the records that events behind the last one in its queue will need."""
    what = coming(links, FAR)
    if what >= 0:
        kind, item = what & 3, (what >> 2) & 0xFFFFFFFF
        if kind == FREE:
            item = np.int64(links.ends[what >> 34, 0])
        if item != NONE:
            prefetch(s.items, item)
    what = coming(links, NEAR)
    if what >= 0 and what & 3 == ARRIVE:
        item = (what >> 2) & 0xFFFFFFFF
        up = np.int64(s.items[item, UP])
        if item >= b.dispatches:
            up = b.dispatches + (up if up >= 0 else b.combines - 2 - up)
        if up >= 0:
            prefetch(s.items, up)


@kernel
def _forward(b, s, links, rank, item):
    """All inputs are there: sum them if there are several, then send the transfer, or end the row."""
    inputs = s.items[item, LEFT] >> TOTAL
    if inputs >= 2 and rank < b.num_ranks:
        start_timer(s.timers, s.behind, links.heap, links.clock, rank, item, b.reduce[inputs])
    elif item < b.dispatches + b.combines:
        _send(b, s, links, item)


@kernel
def _input_arrived(b, s, links, rank, item, sender):
    """One input of a transfer or row of combine is at ``rank``, from ``sender``."""
    s.items[item, LEFT] -= 1
    if s.items[item, LEFT] & MISSING:
        return
    if rank >= b.num_ranks:
        s.items[item, LEFT] = sender
    if not b.whole_phase or rank >= b.num_ranks or s.compute_done[rank] >= 0:
        _forward(b, s, links, rank, item)
        return
    s.behind[item] = NONE
    if s.ready[rank, 0] == NONE:
        s.ready[rank, 0] = item
    else:
        s.behind[s.ready[rank, 1]] = item
    s.ready[rank, 1] = item


@kernel
def _dispatch_done(b, s, links, rank):
    """Let a rank compute."""
    clock = links.clock
    idle = np.int64(clock[CURRENT] < 0 and b.whole_phase and b.has_dispatch)  # a node of one cycle
    s.dispatch_done[rank] = clock[NOW] + idle
    item = np.int64(len(s.items) - b.num_ranks + rank)
    start_timer(s.timers, s.behind, links.heap, clock, rank, item, b.compute[rank] + idle)


@kernel
def _dispatch_step(b, s, links, rank):
    """One of the transfers that a rank's compute waits for has arrived."""
    s.pending[rank] -= 1
    if s.pending[rank] == 0:
        _dispatch_done(b, s, links, rank)


@kernel
def _dispatched(b, s, links, item, link):
    """A transfer of dispatch arrived: its sender is done with it, its children may start."""
    n, now = b.num_ranks, links.clock[NOW]
    at, sender = np.int64(b.dst[link]), np.int64(b.src[link])
    counts = s.items[item, LINK] & 1
    if at < n:  # a message through a switch is sent when it has come out of it
        if sender >= n:
            sender = np.int64(s.items[item, LEFT])
        s.finished[sender] = now
        s.finished[at] = now
        if b.whole_phase:
            _dispatch_step(b, s, links, sender)
    child = np.int64(s.items[item, UP])
    while child != NONE:
        following = np.int64(s.items[child, LEFT])
        if following >= 0:
            prefetch(s.items, following)
        if at >= n:
            s.items[child, LEFT] = sender
        _send(b, s, links, child)
        child = following
    if at < n and counts:
        _dispatch_step(b, s, links, at)


@kernel
def _combined(b, s, links, item, link):
    """A transfer of combine arrived: one input more for its parent, or for the row's sum at the source."""
    n, now = b.num_ranks, links.clock[NOW]
    at, sender = np.int64(b.dst[link]), np.int64(b.src[link])
    if sender >= n:
        sender = np.int64(s.items[item, LEFT])
    if at < n:
        s.finished[sender] = now
        s.finished[at] = now
    up = np.int64(s.items[item, UP])
    target = b.dispatches + (up if up >= 0 else b.combines - 2 - up)
    _input_arrived(b, s, links, at, target, sender)


@kernel
def _computed(b, s, links, rank):
    """A rank has computed: its own parts may go, and with a whole-phase barrier all that it sends."""
    clock = links.clock
    s.compute_done[rank] = clock[NOW]
    s.finished[rank] = clock[NOW]
    if b.whole_phase and b.has_combine and not s.takes_part[rank]:
        s.finished[rank] += 1  # the file of an idle rank holds one node, of one cycle
    item = np.int64(s.own[rank])
    while item != NONE:
        following = np.int64(s.behind[item])
        if following != NONE:
            prefetch(s.items, following)
        if b.whole_phase:
            _forward(b, s, links, rank, item)
        else:
            _input_arrived(b, s, links, rank, item, rank)
        item = following
    if s.ready[rank, 0] != NONE:  # receives that are posted now are handled after what goes on now
        push(links.heap, clock, clock[NOW], clock[SEQ], LATER | rank << 2)
        clock[SEQ] += 1


@kernel
def _computed_late(b, s, links, rank):
    """Forward what became ready before a rank had computed."""
    item = np.int64(s.ready[rank, 0])
    while item != NONE:
        following = np.int64(s.behind[item])
        _forward(b, s, links, rank, item)
        item = following


@kernel
def _fire(b, s, links):
    """Start the block at time 0: rank by rank what its sources send, or compute where nothing is awaited."""
    rank = np.int64(0)
    n = b.num_ranks
    for i in range(b.dispatches + 1):
        source = n
        if i < b.dispatches:
            if s.items[i, LEFT] != ROOT:
                continue
            source = b.src[s.items[i, LINK] >> 1]
        while rank < source and rank < n:
            if s.pending[rank] == 0:
                _dispatch_done(b, s, links, rank)
            rank += 1
        if i < b.dispatches:
            _send(b, s, links, np.int64(i))
    if b.whole_phase:
        return
    for i in range(b.dispatches, b.dispatches + b.combines):
        if s.items[i, LEFT] == 0:  # a leaf without a part of its own waits for nothing
            _send(b, s, links, np.int64(i))


@kernel
def _timer_done(b, s, links, rank, item):
    """A sum or a rank's compute is done."""
    if item >= len(s.items) - b.num_ranks:
        _computed(b, s, links, rank)
        return
    s.finished[rank] = links.clock[NOW]
    if item < b.dispatches + b.combines:
        _send(b, s, links, item)


@kernel
def _timer(b, s, links, rank, timer):
    """A timer went off."""
    item = np.int64(s.timers.data[timer, 1])
    while item != NONE:
        following = np.int64(s.behind[item])
        _timer_done(b, s, links, rank, item)
        item = following
    end_timer(s.timers, rank, timer)


@kernel
def run(b, s, links, limit):
    """Process up to ``limit`` events, after the start of the block; returns whether more are scheduled."""
    if links.clock[CURRENT] < 0:
        _fire(b, s, links)
    for _ in range(limit):
        what = next_event(links)
        if what < 0:
            return False
        _look_ahead(b, s, links)
        kind, item, where = what & 3, (what >> 2) & 0xFFFFFFFF, what >> 34
        if kind == ARRIVE:
            if item < b.dispatches:
                _dispatched(b, s, links, item, where)
            else:
                _combined(b, s, links, item, where)
        elif kind == FREE:
            waiting = released(links, where, s.behind)
            if waiting != NONE:
                phase = 0 if waiting < b.dispatches else 1
                start(links, phase, where, item, waiting)
                _note_start(b, s, links, phase, waiting)
        elif kind == LATER:
            _computed_late(b, s, links, item)
        else:
            _timer(b, s, links, where, item)
    return True
