"""Kernels that every simulation shares: the event queue and the links.

An event is three int64: its time, its place in the order of scheduling, and what happens.  Events of one
time happen in the order in which they were scheduled, as in ASTRA-sim's event queue, whose congestion-aware
links schedule two events when a message *starts*: its arrival, then the release of the link.  That order
decides ties further on, so it is kept here to the letter; only a release that nobody waits for is left out
(its key is remembered instead).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.jit import kernel

__all__ = [
    "ARRIVE",
    "CLOCK_ENTRIES",
    "CURRENT",
    "EVENTS",
    "FREE",
    "LATER",
    "NOW",
    "SEQ",
    "SIZE",
    "TIMER",
    "Links",
    "Timers",
    "Wires",
    "begin",
    "end_timer",
    "enqueue",
    "new_links",
    "new_timers",
    "next_link",
    "pop",
    "push",
    "start_timer",
    "take",
    "wires_of",
]

ARRIVE, FREE, TIMER, LATER = 0, 1, 2, 3  # what an event is: the low two bits of its third number
NOW, SEQ, SIZE, CURRENT, EVENTS = 0, 1, 2, 3, 4  # entries of the clock
CLOCK_ENTRIES = 5
NONE = -1


class Wires(NamedTuple):
    """The network, read only."""

    kind: int
    num_npus: int
    out_ptr: NDArray[np.int64]
    dst: NDArray[np.int32]
    bytes_per_cycle: NDArray[np.float64]
    latency: NDArray[np.float64]
    lane_ptr: NDArray[np.int64]


class Links(NamedTuple):
    """State of the links; ``free_*`` and ``armed`` per lane, the rest per link."""

    free_time: NDArray[np.int64]  # when the lane is released, and the order of that event
    free_seq: NDArray[np.int64]
    armed: NDArray[np.int8]  # whether its release is in the event queue
    head: NDArray[np.int32]  # messages that wait
    tail: NDArray[np.int32]
    busy: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    messages: NDArray[np.int64]


class Timers(NamedTuple):
    """Pending timers of all ranks, found by rank and time in a hash table that doubles as it fills."""

    data: NDArray[np.int64]  # shape (timers, 5): time, first and last item, next timer of its bucket, rank
    spare: NDArray[np.int32]  # stack of unused timers: its height, then them
    bucket: NDArray[np.int32]  # first timer of each bucket; only those in use are set
    table: NDArray[np.int64]  # pending timers, and buckets in use: a power of two


def new_timers(most, num_ranks):
    """No timers, and room for ``most``; pages never touched cost nothing."""
    spare = np.empty(most + 3, np.int32)
    spare[:2] = (1, 0)
    few = 1 << (num_ranks - 1).bit_length()  # a rank seldom has more than one
    bucket = np.empty(max(few, 1 << most.bit_length()), np.int32)
    bucket[:few] = NONE
    return Timers(np.empty((most + 1, 5), np.int64), spare, bucket, np.array([0, few], np.int64))


def wires_of(network, kinds):
    """The arrays of a :class:`~moxtrace.engine.network.Network` that kernels read."""
    lane_ptr = np.concatenate(([0], np.cumsum(network.lanes, dtype=np.int64)))
    return Wires(
        kinds.index(network.kind), network.num_npus, network.out_ptr(), network.dst,
        network.bytes_per_cycle, network.latency, lane_ptr,
    )  # fmt: skip


def new_links(network):
    """Idle links of a network."""
    lanes, links = int(network.lanes.sum()), network.num_links
    return Links(
        np.full(lanes, -1, np.int64), np.full(lanes, -1, np.int64), np.zeros(lanes, np.int8),
        np.full(links, NONE, np.int32), np.full(links, NONE, np.int32),
        np.zeros(links, np.int64), np.zeros(links, np.int64), np.zeros(links, np.int64),
    )  # fmt: skip


@kernel
def push(heap, clock, time, seq, what):
    """Add an event to the binary heap ``heap[:clock[SIZE]]``, ordered by ``(time, seq)``."""
    at = clock[SIZE]
    clock[SIZE] = at + 1
    while at > 0:
        up = (at - 1) >> 1
        if heap[up, 0] < time or (heap[up, 0] == time and heap[up, 1] < seq):
            break
        heap[at, 0] = heap[up, 0]
        heap[at, 1] = heap[up, 1]
        heap[at, 2] = heap[up, 2]
        at = up
    heap[at, 0] = time
    heap[at, 1] = seq
    heap[at, 2] = what


@kernel
def pop(heap, clock):
    """Remove the first event, set the clock to it, and return what happens."""
    clock[NOW] = heap[0, 0]
    clock[CURRENT] = heap[0, 1]
    clock[EVENTS] += 1
    what = heap[0, 2]
    size = clock[SIZE] - 1
    clock[SIZE] = size
    time, seq, last = heap[size, 0], heap[size, 1], heap[size, 2]
    at = np.int64(0)
    child = np.int64(1)
    while child < size:
        right = child + 1
        if right < size and (
            heap[right, 0] < heap[child, 0]
            or (heap[right, 0] == heap[child, 0] and heap[right, 1] < heap[child, 1])
        ):
            child = right
        if time < heap[child, 0] or (time == heap[child, 0] and seq < heap[child, 1]):
            break
        heap[at, 0] = heap[child, 0]
        heap[at, 1] = heap[child, 1]
        heap[at, 2] = heap[child, 2]
        at = child
        child = 2 * at + 1
    heap[at, 0] = time
    heap[at, 1] = seq
    heap[at, 2] = last
    return what


@kernel
def next_link(wires, at, dst):
    """Link over which a message at ``at`` goes on towards ``dst``; -1 where there is none."""
    n = wires.num_npus
    if wires.kind == 1:  # fully connected
        return at * (n - 1) + dst - (1 if dst > at else 0)
    if wires.kind == 2:  # switch
        return at if at < n else n + dst
    if wires.kind == 3:  # ring: clockwise unless the other way is shorter
        clockwise = dst - at
        if clockwise < 0:
            clockwise += n
        return at if n - clockwise >= clockwise else n + at
    low, high = wires.out_ptr[at], wires.out_ptr[at + 1]
    while low < high:
        middle = (low + high) >> 1
        if wires.dst[middle] < dst:
            low = middle + 1
        else:
            high = middle
    return low if low < wires.out_ptr[at + 1] and wires.dst[low] == dst else np.int64(-1)


@kernel
def _start(wires, links, heap, clock, link, lane, item, size):
    """Let ``item`` enter a lane now."""
    delay = size / wires.bytes_per_cycle[link]
    serialization = np.int64(delay)
    now, seq = clock[NOW], clock[SEQ]
    push(heap, clock, now + np.int64(wires.latency[link] + delay), seq, ARRIVE | item << 2 | link << 34)
    links.free_time[lane] = now + serialization
    links.free_seq[lane] = seq + 1
    clock[SEQ] = seq + 2
    links.busy[link] += serialization
    links.size_bytes[link] += size
    links.messages[link] += 1


@kernel
def _arm(links, heap, clock, link, lane):
    """Put a lane's release into the event queue: somebody waits for it."""
    links.armed[lane] = 1
    push(heap, clock, links.free_time[lane], links.free_seq[lane], FREE | lane << 2 | link << 34)


@kernel
def enqueue(wires, links, heap, clock, link, item, size, behind):
    """Hand ``item`` to a link: it starts now if a lane is free, else it waits its turn.

    ``behind[item]`` becomes the next item in the queue.  Returns whether it started.
    """
    now, current = clock[NOW], clock[CURRENT]
    first, stop = wires.lane_ptr[link], wires.lane_ptr[link + 1]
    for lane in range(first, stop):
        time = links.free_time[lane]
        if time < now or (time == now and links.free_seq[lane] < current):
            _start(wires, links, heap, clock, link, lane, item, size)
            return True
    behind[item] = NONE
    if links.head[link] == NONE:
        links.head[link] = item
        for lane in range(first, stop):
            if links.armed[lane] == 0:
                _arm(links, heap, clock, link, lane)
    else:
        behind[links.tail[link]] = item
    links.tail[link] = item
    return False


@kernel
def take(links, link, lane, behind):
    """A lane is released: remove the first item that waits from the link's queue.  Returns it, or -1."""
    links.armed[lane] = 0
    item = np.int64(links.head[link])
    if item != NONE:
        links.head[link] = behind[item]
    return item


@kernel
def begin(wires, links, heap, clock, link, lane, item, size):
    """Let the item that :func:`take` returned enter the lane."""
    _start(wires, links, heap, clock, link, lane, item, size)
    if links.head[link] != NONE:
        _arm(links, heap, clock, link, lane)


@kernel
def _bucket_of(time, rank, buckets):
    mixed = (time + rank * 0x1E3779B97F4A7C15) * 0x42B2AE3D27D4EB4F  # odd numbers; products wrap
    mixed = (mixed ^ (mixed >> 32)) * 0x165667B19E3779F9  # times are often multiples of a power of two
    return (mixed ^ (mixed >> 29)) & (buckets - 1)


@kernel
def _double(timers):
    """Part the timers of every bucket between it and a new one."""
    data, bucket = timers.data, timers.bucket
    half = timers.table[1]
    timers.table[1] = 2 * half
    for low in range(half):
        at = np.int64(bucket[low])
        bucket[low] = NONE
        bucket[low + half] = NONE
        while at != NONE:
            following = data[at, 3]
            where = _bucket_of(data[at, 0], data[at, 4], 2 * half)
            data[at, 3] = bucket[where]
            bucket[where] = at
            at = following


@kernel
def start_timer(timers, behind, heap, clock, rank, item, cycles):
    """Let ``item`` be done after ``cycles``.

    What a rank has done in one cycle is one event, at the place of the first, as in ASTRA-sim's ``Sys``: the
    items of a timer are chained by ``behind``.
    """
    time = clock[NOW] + cycles
    behind[item] = NONE
    data = timers.data
    where = _bucket_of(time, np.int64(rank), timers.table[1])
    at = np.int64(timers.bucket[where])
    while at != NONE and (data[at, 0] != time or data[at, 4] != rank):
        at = data[at, 3]
    if at != NONE:
        behind[data[at, 2]] = item
        data[at, 2] = item
        return
    unused = timers.spare[0]
    timer = np.int64(timers.spare[unused])
    if unused > 1:
        timers.spare[0] = unused - 1
    else:  # only the number of timers ever used is left on the stack
        timers.spare[1] = timer + 1
    if timers.table[0] == timers.table[1]:
        _double(timers)
        where = _bucket_of(time, np.int64(rank), timers.table[1])
    timers.table[0] += 1
    data[timer, 0] = time
    data[timer, 1] = item
    data[timer, 2] = item
    data[timer, 3] = timers.bucket[where]
    data[timer, 4] = rank
    timers.bucket[where] = timer
    push(heap, clock, time, clock[SEQ], TIMER | timer << 2 | np.int64(rank) << 34)
    clock[SEQ] += 1


@kernel
def end_timer(timers, rank, timer):
    """Put a timer that went off back on the stack."""
    data = timers.data
    where = _bucket_of(data[timer, 0], np.int64(rank), timers.table[1])
    before, at = np.int64(NONE), np.int64(timers.bucket[where])
    while at != timer:
        before, at = at, data[at, 3]
    if before == NONE:
        timers.bucket[where] = data[timer, 3]
    else:
        data[before, 3] = data[timer, 3]
    timers.table[0] -= 1
    timers.spare[0] += 1
    timers.spare[timers.spare[0]] = timer
