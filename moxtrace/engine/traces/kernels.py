"""The event loop over traces: ASTRA-sim's workload layer, custom collectives and congestion-aware links.

Functions are listed from the bottom up; :func:`run` is the loop.
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
    next_link,
    pop,
    push,
    start_timer,
    take,
)
from moxtrace.engine.order.kernels import hash_order
from moxtrace.jit import allocating, kernel

__all__ = ["FINISHED", "POSTED", "RUNNING", "Program", "Run", "run"]

COMP, SEND, RECV, COLL = 0, 1, 2, 3
NONE = -1
FINISHED, POSTED, RUNNING = -2, -3, -4  # states of a node, in ``wait``
ARRIVED = -2  # of a slot: the message is there, the receive is not posted


class Program(NamedTuple):
    """What is run; node arrays have shape (nodes,), unit arrays (units,)."""

    num_ranks: int
    unit_ptr: NDArray[np.int64]
    code: NDArray[np.int32]
    peer: NDArray[np.int32]
    amount: NDArray[np.int64]
    child_ptr: NDArray[np.int32]
    child: NDArray[np.int32]
    key: NDArray[np.int64]  # ids of nodes; one entry where ids are positions
    entry: NDArray[np.int32]  # order of a unit's nodes in ASTRA-sim's map; one entry where it is the file's
    by_id: bool  # issue free nodes of a collective in ascending id order instead
    work_id: NDArray[np.int64]  # ids of the workload's nodes
    roof_cycles: NDArray[np.int64]  # cycles of the COMP nodes whose slot is not -1


class Run(NamedTuple):
    """State of a run."""

    wait: NDArray[np.int32]  # missing dependencies; once issued the next in its queue, or a state
    slot: NDArray[np.int32]
    slot_recv: NDArray[np.int32]  # RECV posted in a slot, NONE or ARRIVED
    issued: NDArray[np.int32]  # shape (slots, 2): sends and receives issued of a key; (1, 2) if none repeats
    left: NDArray[np.int32]  # unfinished nodes of a unit
    buckets: NDArray[np.int64]  # of a unit's set of free nodes
    parent: NDArray[np.int32]  # COLL node that a collective's unit runs for
    ready: NDArray[np.int32]  # per rank a heap of free SEND and COLL nodes; from the right end one of COMP
    rank_state: NDArray[np.int64]  # shape (ranks, 5), see below
    node_start: NDArray[np.int64]
    node_finish: NDArray[np.int64]
    finished: NDArray[np.int64]
    computed: NDArray[np.int64]
    timers: Timers
    freed: NDArray[np.int32]  # scratch
    fresh: NDArray[np.int32]  # scratch
    roots: NDArray[np.int32]  # scratch


# columns of rank_state
COMM_READY, COMP_READY, COMM_BUSY, COMP_BUSY, DEFERRED = 0, 1, 2, 3, 4


@kernel
def _issue(p, r, wires, links, heap, clock, rank, node):
    """Issue a SEND, a RECV or a COMP node that goes by its duration."""
    kind = p.code[node] & 3
    if kind == COMP:
        cycles = p.amount[node] * 1000
        start_timer(r.timers, r.wait, heap, clock, rank, node, cycles if cycles > 0 else 1)
        return
    slot = np.int64(r.slot[node])
    if len(r.issued) > 1:
        slot += r.issued[slot, kind - SEND]
        r.issued[r.slot[node], kind - SEND] += 1
        r.slot[node] = slot
    if kind == SEND:
        link = next_link(wires, np.int64(rank), np.int64(p.peer[node]))
        enqueue(wires, links, heap, clock, link, np.int64(node), p.amount[node], r.wait)
    elif r.slot_recv[slot] == ARRIVED:
        push(heap, clock, clock[NOW], clock[SEQ], LATER | np.int64(node) << 2)
        clock[SEQ] += 1
        r.wait[node] = RUNNING
    else:
        r.slot_recv[slot] = node
        r.wait[node] = POSTED


@kernel
def _fall_apart(key, buckets, nodes):
    """Whether few nodes fall into different buckets: then the walk is the reverse of insertion."""
    count = len(nodes)
    if count > 8 or count > buckets:
        return False
    for i in range(1, count):
        for j in range(i):
            apart = np.int64(nodes[i]) - nodes[j]
            if len(key) > 1:
                apart = key[nodes[i]] - key[nodes[j]]
            if apart % buckets == 0:
                return False
    return True


@allocating
def _walk(key, by_id, buckets, nodes):
    """Put nodes into the order of issue; returns how many buckets their set has then."""
    keys = nodes.astype(np.int64)
    if len(key) > 1:
        for i in range(len(nodes)):
            keys[i] = key[nodes[i]]
    if by_id:
        nodes[:] = nodes[np.argsort(keys)]
        return buckets
    order = np.empty(len(nodes), np.int32)
    buckets = hash_order(keys, buckets, order)
    nodes[:] = nodes[order]
    return buckets


@allocating
def _roots(key, entry, by_id, wait, first, stop, roots):
    """List a unit's nodes that miss nothing in the order of ASTRA-sim's walk over its map of all nodes."""
    walk = np.arange(stop - first).astype(np.int32)
    if not by_id:
        entered = np.arange(first, stop)
        if len(entry) > 1:
            entered = first + entry[first:stop].astype(np.int64)
        hash_order(key[entered] if len(key) > 1 else entered, np.int64(1), walk)
        if len(entry) > 1:
            walk = entry[first:stop][walk]
    count = 0
    for i in walk:
        if wait[first + i] == 0:
            roots[count] = first + i
            count += 1
    return count


@allocating
def _sort_by_id(nodes, work_id):
    nodes[:] = nodes[np.argsort(work_id[nodes])]


@kernel
def _in_order(p, r, unit, nodes):
    """Put nodes that became free together into the order of issue."""
    if not p.by_id and _fall_apart(p.key, r.buckets[unit], nodes):
        for i in range(len(nodes) // 2):
            nodes[i], nodes[-1 - i] = nodes[-1 - i], nodes[i]
        return
    r.buckets[unit] = _walk(p.key, p.by_id, r.buckets[unit], nodes)


@kernel
def _start_collective(p, r, wires, links, heap, clock, rank, node):
    """Issue the roots of the unit that implements COLL ``node``."""
    unit = np.int64(r.slot[node]) * p.num_ranks + rank
    r.parent[unit] = node
    count = _roots(p.key, p.entry, p.by_id, r.wait, p.unit_ptr[unit], p.unit_ptr[unit + 1], r.roots)
    roots = r.roots[:count]
    _in_order(p, r, unit, roots)
    for i in range(count):
        _issue(p, r, wires, links, heap, clock, rank, np.int64(roots[i]))


@kernel
def _free_successors(p, r, node, out):
    """Write the successors that wait for ``node`` alone to ``out``; returns their number."""
    count = np.int64(0)
    for k in range(p.child_ptr[node], p.child_ptr[node + 1]):
        c = p.child[k]
        r.wait[c] -= 1
        if r.wait[c] == 0:
            out[count] = c
            count += 1
    return count


@kernel
def _ready_push(p, r, rank, node):
    """Add a free SEND, COLL or COMP node of the workload to its heap, ordered by id."""
    comp = p.code[node] & 3 == COMP
    column = COMP_READY if comp else COMM_READY
    origin = p.unit_ptr[rank + 1] - 1 if comp else p.unit_ptr[rank]
    step = -1 if comp else 1
    at = r.rank_state[rank, column]
    r.rank_state[rank, column] = at + 1
    while at > 0:
        up = (at - 1) >> 1
        other = r.ready[origin + step * up]
        if p.work_id[other] < p.work_id[node]:
            break
        r.ready[origin + step * at] = other
        at = up
    r.ready[origin + step * at] = node


@kernel
def _ready_pop(p, r, rank, comp):
    """Remove the first node of a heap."""
    column = COMP_READY if comp else COMM_READY
    origin = p.unit_ptr[rank + 1] - 1 if comp else p.unit_ptr[rank]
    step = -1 if comp else 1
    size = r.rank_state[rank, column] - 1
    r.rank_state[rank, column] = size
    last = r.ready[origin + step * size]
    at, child = np.int64(0), np.int64(1)
    while child < size:
        if child + 1 < size and (
            p.work_id[r.ready[origin + step * (child + 1)]] < p.work_id[r.ready[origin + step * child]]
        ):
            child += 1
        if p.work_id[last] < p.work_id[r.ready[origin + step * child]]:
            break
        r.ready[origin + step * at] = r.ready[origin + step * child]
        at, child = child, 2 * child + 1
    r.ready[origin + step * at] = last


@kernel
def _issue_work(p, r, wires, links, heap, clock, rank, node, deferring):
    """Issue a node of the workload."""
    r.node_start[node] = clock[NOW]
    kind = p.code[node] & 3
    if kind == COMP:
        r.rank_state[rank, COMP_BUSY] = 1
        roof = r.slot[node]
        cycles = p.roof_cycles[roof] if roof >= 0 else p.amount[node] * 1000
        if roof < 0 and cycles == 0:
            cycles = np.int64(1)
        r.computed[rank] += cycles
        start_timer(r.timers, r.wait, heap, clock, rank, node, cycles)
        return
    if kind != RECV:
        r.rank_state[rank, COMM_BUSY] = 1
    if kind != COLL:
        _issue(p, r, wires, links, heap, clock, rank, node)
        return
    r.wait[node] = RUNNING
    if deferring > 0:  # the finished collective's stream leaves its queue only after this pass
        r.rank_state[rank, DEFERRED] = node
    else:
        _start_collective(p, r, wires, links, heap, clock, rank, node)


@kernel
def _pass(p, r, wires, links, heap, clock, rank, count, deferring):
    """Issue what the rank's resources allow, in ascending id order, after ``freed[:count]`` became free.

    Receives need no resource, so all that are free are among the new ones.
    """
    recvs = 0
    for i in range(count):
        node = np.int64(r.freed[i])
        if p.code[node] & 3 != RECV:
            _ready_push(p, r, rank, node)
            continue
        at = recvs
        recvs += 1
        if recvs <= 32:
            while at > 0 and p.work_id[r.fresh[at - 1]] > p.work_id[node]:
                r.fresh[at] = r.fresh[at - 1]
                at -= 1
        r.fresh[at] = node
    if recvs > 32:
        _sort_by_id(r.fresh[:recvs], p.work_id)
    i = 0
    while True:
        best, source = np.int64(NONE), 0
        if i < recvs:
            best = np.int64(r.fresh[i])
        if r.rank_state[rank, COMM_BUSY] == 0 and r.rank_state[rank, COMM_READY] > 0:
            node = np.int64(r.ready[p.unit_ptr[rank]])
            if best == NONE or p.work_id[node] < p.work_id[best]:
                best, source = node, 1
        if r.rank_state[rank, COMP_BUSY] == 0 and r.rank_state[rank, COMP_READY] > 0:
            node = np.int64(r.ready[p.unit_ptr[rank + 1] - 1])
            if best == NONE or p.work_id[node] < p.work_id[best]:
                best, source = node, 2
        if best == NONE:
            break
        if source == 0:
            i += 1
        else:
            _ready_pop(p, r, rank, source == 2)
        _issue_work(p, r, wires, links, heap, clock, rank, best, deferring)
    if r.left[rank] == 0:
        r.finished[rank] = clock[NOW]


@kernel
def _complete_work(p, r, wires, links, heap, clock, rank, node):
    """A node of the workload is done."""
    kind = p.code[node] & 3
    r.node_finish[node] = clock[NOW]
    r.left[rank] -= 1
    if kind == COMP:
        r.rank_state[rank, COMP_BUSY] = 0
    elif kind != RECV:
        r.rank_state[rank, COMM_BUSY] = 0
    count = _free_successors(p, r, node, r.freed)
    _pass(p, r, wires, links, heap, clock, rank, count, np.int64(kind == COLL))
    if kind == COLL and r.rank_state[rank, DEFERRED] != NONE:
        following = r.rank_state[rank, DEFERRED]
        r.rank_state[rank, DEFERRED] = NONE
        _start_collective(p, r, wires, links, heap, clock, rank, following)


@kernel
def _complete(p, r, wires, links, heap, clock, node):
    """A SEND, RECV or COMP node is done."""
    unit = np.int64(p.code[node] >> 2)
    rank = unit % p.num_ranks
    if unit >= p.num_ranks:
        count = _free_successors(p, r, node, r.freed)
        if count > 1:
            _in_order(p, r, unit, r.freed[:count])
        for i in range(count):
            _issue(p, r, wires, links, heap, clock, rank, np.int64(r.freed[i]))
        r.left[unit] -= 1
        if r.left[unit] > 0:
            return
        node = np.int64(r.parent[unit])
        r.wait[node] = FINISHED
    _complete_work(p, r, wires, links, heap, clock, rank, node)


@kernel
def _arrive(p, r, wires, links, heap, clock, node, link):
    """A message is at the far end of a link: it goes on, or its SEND and a posted RECV are done."""
    at = np.int64(wires.dst[link])
    if at != p.peer[node]:
        onward = next_link(wires, at, np.int64(p.peer[node]))
        enqueue(wires, links, heap, clock, onward, node, p.amount[node], r.wait)
        return
    slot = r.slot[node]
    recv = np.int64(r.slot_recv[slot])
    r.wait[node] = FINISHED
    _complete(p, r, wires, links, heap, clock, node)
    if recv == NONE:
        r.slot_recv[slot] = ARRIVED
    else:
        r.wait[recv] = FINISHED
        _complete(p, r, wires, links, heap, clock, recv)


@kernel
def _fire(p, r, wires, links, heap, clock):
    """Start every rank at time 0, in order."""
    for rank in range(p.num_ranks):
        count = np.int64(0)
        for node in range(p.unit_ptr[rank], p.unit_ptr[rank + 1]):
            if r.wait[node] == 0:
                r.freed[count] = node
                count += 1
        _pass(p, r, wires, links, heap, clock, rank, count, np.int64(0))


@kernel
def run(p, r, wires, links, heap, clock, limit):
    """Process up to ``limit`` events, after the start of all ranks; returns how many more are scheduled."""
    if clock[CURRENT] < 0:
        _fire(p, r, wires, links, heap, clock)
    for _ in range(limit):
        if clock[SIZE] == 0:
            break
        what = pop(heap, clock)
        kind, item, where = what & 3, (what >> 2) & 0xFFFFFFFF, what >> 34
        if kind == ARRIVE:
            _arrive(p, r, wires, links, heap, clock, item, where)
        elif kind == FREE:
            node = take(links, where, item, r.wait)
            if node != NONE:
                begin(wires, links, heap, clock, where, item, node, p.amount[node])
        elif kind == LATER:
            r.wait[item] = FINISHED
            _complete(p, r, wires, links, heap, clock, item)
        else:
            node = r.timers.data[item, 1]
            while node != NONE:
                _complete(p, r, wires, links, heap, clock, node)
                following = np.int64(r.wait[node])
                r.wait[node] = FINISHED
                node = following
            end_timer(r.timers, where, item)
    return clock[SIZE]
