"""Links that serve items in turn, and the queue of what happens next.

Events are those of ``engine.kernels``: three int64, in the order of time and of scheduling.  Nearly all of
them are an arrival or a release, scheduled a fixed time ahead when a message starts; time and the order of
scheduling never fall, so events that were scheduled equally far ahead happen in the order in which they were
scheduled.  The commonest distances therefore have a plain first-in first-out *queue* each, and only the rest
goes into the binary heap: what happens next is the earliest of a few heads.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.engine.kernels import ARRIVE, CURRENT, EVENTS, FREE, NOW, SEQ, SIZE, pop, push
from moxtrace.jit import kernel

__all__ = ["MOST_QUEUES", "Links", "hand", "new_links", "next_event", "released", "start"]

NONE = -1
NEVER = 2**62
MOST_QUEUES = 12
TIME, ORDER, HEAD, TAIL, BASE, MASK = 0, 1, 2, 3, 4, 5  # columns of a queue
IN_HEAP = -1


class Links(NamedTuple):
    """Links with what waits for them, and the events."""

    lane_ptr: NDArray[np.int64]
    cycles: NDArray[np.int64]  # shape (phases, links, 2): from a start to the arrival, and to the release
    queue: NDArray[np.int8]  # likewise: where that event goes
    lane: NDArray[np.int64]  # shape (lanes, 2): when the lane is released, and the order of that event
    ends: NDArray[np.int32]  # shape (links, 2): first and last item that waits
    queues: NDArray[np.int64]  # shape (queues, 6): the first event's time and order, its place and the end
    ring: NDArray[np.int64]  # shape (room, 3): the queues' events, each queue in its part
    last: NDArray[np.int64]  # one entry: the queue of the last event, or IN_HEAP
    heap: NDArray[np.int64]
    clock: NDArray[np.int64]


def new_links(network, sizes, messages, heap_room, clock):
    """Idle links and no events.

    Parameters
    ----------
    network : Network
    sizes : sequence of int
        Bytes of a message in each phase.
    messages : array of int64, shape (phases, links)
        What each link will carry.
    heap_room : int
        Events besides those of links.
    clock : array of int64
        As in ``engine.kernels``.
    """
    lane_ptr = np.concatenate(([0], np.cumsum(network.lanes, dtype=np.int64)))
    delay = np.array(sizes, np.int64)[:, None] / network.bytes_per_cycle
    cycles = np.stack(((network.latency + delay).astype(np.int64), delay.astype(np.int64)), axis=2)
    # an arrival is on its way for so many starts of its lane, and a lane has one release before it
    flying = network.lanes * (cycles[:, :, 0] // np.maximum(cycles[:, :, 1], 1) + 2)
    flying = np.where(cycles[:, :, 1] > 0, np.minimum(flying, messages), messages)
    room = np.stack((flying, np.broadcast_to(network.lanes, flying.shape)), axis=2)
    room[messages == 0] = 0
    ahead, kind = np.unique(cycles, return_inverse=True)
    kind = kind.reshape(cycles.shape)
    needed = np.bincount(kind.ravel(), weights=room.ravel(), minlength=len(ahead)).astype(np.int64)
    common = np.argsort(-needed, kind="stable")[:MOST_QUEUES]
    common = common[needed[common] > 0]
    place = np.full(len(ahead), IN_HEAP, np.int8)
    place[common] = np.arange(len(common))
    parts = [1 << int(n).bit_length() for n in needed[common]]
    queues = np.zeros((len(parts), 6), np.int64)
    queues[:, TIME] = NEVER
    queues[:, BASE] = np.cumsum([0, *parts])[:-1]
    queues[:, MASK] = np.array(parts, np.int64) - 1
    rest = int(needed.sum() - needed[common].sum())
    return Links(
        lane_ptr, cycles, place[kind], np.full((int(lane_ptr[-1]), 2), -1, np.int64),
        np.full((network.num_links, 2), NONE, np.int32), queues, np.empty((sum(parts), 3), np.int64),
        np.full(1, IN_HEAP, np.int64), np.empty((heap_room + rest + 1, 3), np.int64), clock,
    )  # fmt: skip


@kernel
def _schedule(links, phase, link, which, seq, what):
    """Let something happen as far ahead as a link takes."""
    time = links.clock[NOW] + links.cycles[phase, link, which]
    at = links.queue[phase, link, which]
    if at == IN_HEAP:
        push(links.heap, links.clock, time, seq, what)
        return
    queue = links.queues[at]
    tail = queue[TAIL]
    if queue[TIME] == NEVER:
        queue[TIME] = time
        queue[ORDER] = seq
    event = links.ring[queue[BASE] + (tail & queue[MASK])]
    event[0] = time
    event[1] = seq
    event[2] = what
    queue[TAIL] = tail + 1


@kernel
def next_event(links):
    """Remove the first event, set the clock to it, and return what happens; -1 when nothing will."""
    clock, queues = links.clock, links.queues
    first = np.int64(-1)
    time, seq = np.int64(NEVER), np.int64(0)
    for at in range(len(queues)):
        if queues[at, TIME] < time or (queues[at, TIME] == time and queues[at, ORDER] < seq):
            first, time, seq = np.int64(at), queues[at, TIME], queues[at, ORDER]
    if clock[SIZE] > 0 and (links.heap[0, 0] < time or (links.heap[0, 0] == time and links.heap[0, 1] < seq)):
        links.last[0] = IN_HEAP
        return pop(links.heap, clock)
    links.last[0] = first
    if first == -1:
        return first
    clock[NOW] = time
    clock[CURRENT] = seq
    clock[EVENTS] += 1
    queue = links.queues[first]
    base, mask, head = queue[BASE], queue[MASK], queue[HEAD]
    what = links.ring[base + (head & mask), 2]
    head += 1
    queue[HEAD] = head
    if head == queue[TAIL]:
        queue[TIME] = NEVER
    else:
        queue[TIME] = links.ring[base + (head & mask), 0]
        queue[ORDER] = links.ring[base + (head & mask), 1]
    return what


@kernel
def coming(links, places):
    """What will happen so many places behind the last event in its queue; -1 where nothing is scheduled."""
    at = links.last[0]
    if at == IN_HEAP:
        return np.int64(-1)
    queue = links.queues[at]
    event = queue[HEAD] + places
    if event >= queue[TAIL]:
        return np.int64(-1)
    return links.ring[queue[BASE] + (event & queue[MASK]), 2]


@kernel
def start(links, phase, link, lane, item):
    """Let ``item`` enter a lane now: its arrival and the lane's release are scheduled, in this order."""
    clock = links.clock
    seq = clock[SEQ]
    clock[SEQ] = seq + 2
    links.lane[lane, 0] = clock[NOW] + links.cycles[phase, link, 1]
    links.lane[lane, 1] = seq + 1
    _schedule(links, phase, link, 0, seq, ARRIVE | item << 2 | link << 34)
    _schedule(links, phase, link, 1, seq + 1, FREE | lane << 2 | link << 34)


@kernel
def hand(links, phase, link, item, behind):
    """Hand ``item`` to a link: it starts now if a lane is free, else it waits its turn.

    ``behind[item]`` becomes the next item in the queue.  Returns whether it started.
    """
    now, current = links.clock[NOW], links.clock[CURRENT]
    for lane in range(links.lane_ptr[link], links.lane_ptr[link + 1]):
        time = links.lane[lane, 0]
        if time < now or (time == now and links.lane[lane, 1] < current):
            start(links, phase, link, lane, item)
            return True
    behind[item] = NONE
    if links.ends[link, 0] == NONE:
        links.ends[link, 0] = item
    else:
        behind[links.ends[link, 1]] = item
    links.ends[link, 1] = item
    return False


@kernel
def released(links, link, behind):
    """A lane is released: remove the first item that waits for the link.  Returns it, or -1."""
    item = np.int64(links.ends[link, 0])
    if item != NONE:
        links.ends[link, 0] = behind[item]
    return item
