"""Kernels that turn traces into what the event loop runs: successors, missing dependencies, message slots.

A *unit* is what one rank runs of one trace: the workload's units come first, then those of each collective.
Nodes of all units are numbered through; a node's ``code`` is ``unit << 2 | kind``.
"""

import numpy as np

from moxtrace.engine.kernels import next_link
from moxtrace.jit import allocating, kernel

__all__ = ["check_nodes", "encode", "ids_are_positions", "match", "parents_come_first", "successors"]

MAX_TAG = 500_000_000  # tags wrap here: Sys::front_end_sim_send of astra-sim


@allocating
def encode(kind, rank_ptr, first_unit, base, code):
    """Codes of a trace's nodes.  Returns the first node of a kind that cannot be simulated, or -1."""
    for rank in range(len(rank_ptr) - 1):
        for i in range(rank_ptr[rank], rank_ptr[rank + 1]):
            if kind[i] < 4 or kind[i] > 7:
                return i
            code[base + i] = (first_unit + rank) << 2 | (kind[i] - 4)
    return np.int64(-1)


@allocating
def ids_are_positions(node_id, rank_ptr):
    """Whether ids count up by one in every rank."""
    for rank in range(len(rank_ptr) - 1):
        for i in range(rank_ptr[rank] + 1, rank_ptr[rank + 1]):
            if node_id[i] != node_id[i - 1] + 1:
                return False
    return True


@allocating
def parents_come_first(rank_ptr, dep_ptr, dep):
    """Whether every dependency stands before its node."""
    for rank in range(len(rank_ptr) - 1):
        for i in range(rank_ptr[rank], rank_ptr[rank + 1]):
            for k in range(dep_ptr[i], dep_ptr[i + 1]):
                if dep[k] >= i - rank_ptr[rank]:
                    return False
    return True


@kernel
def _cost(wires, at, dst, size):
    """Cycles of a message on idle links or its bytes on all of them, the larger; -1 without a link."""
    cycles, moved = 0.0, 0.0
    while at != dst:
        link = next_link(wires, at, dst)
        if link < 0:
            return -1.0
        cycles += wires.latency[link] + size / wires.bytes_per_cycle[link]
        moved += size
        at = np.int64(wires.dst[link])
    return max(cycles, moved)


@allocating
def check_nodes(wires, num_ranks, code, peer, amount):
    """First node that no network could carry out, and why; how much all nodes could take.

    Returns ``(node, reason, largest, total)``.  Reasons: 1 peer out of range, 2 to itself, 3 size not
    positive, 4 no link, 5 negative duration; node -1 if all is well.  ``total`` adds up the cycles or bytes
    of every node, whichever are more, and the node ``largest`` has most of them.
    """
    largest, most, total = np.int64(-1), -1.0, 0.0
    for i in range(len(code)):
        kind = code[i] & 3
        if kind == 0 and amount[i] < 0:
            return i, 5, largest, total
        cost = amount[i] * 1000.0 + 1.0 if kind == 0 else 0.0
        if kind == 1 or kind == 2:
            rank = (code[i] >> 2) % num_ranks
            if peer[i] < 0 or peer[i] >= num_ranks:
                return i, 1, largest, total
            if peer[i] == rank:
                return i, 2, largest, total
            if amount[i] <= 0:
                return i, 3, largest, total
        if kind == 1:
            cost = _cost(wires, np.int64(rank), np.int64(peer[i]), amount[i])
            if cost < 0:
                return i, 4, largest, total
        total += cost
        if cost > most:
            largest, most = np.int64(i), cost
    return -1, 0, largest, total


@allocating
def successors(rank_ptr, dep_ptr, dep, base, missing, child_ptr, child):
    """Count each node's distinct dependencies and list its successors, in file order.

    Nodes of the trace are ``base + i``.  ``child_ptr[base]`` is where its successors start in ``child``.
    Returns where they end.
    """
    nodes = rank_ptr[-1]
    seen = np.full(np.max(np.diff(rank_ptr)), -1, np.int32)
    first = child_ptr[base]
    for sweep in range(2):
        for rank in range(len(rank_ptr) - 1):
            start = rank_ptr[rank]
            for i in range(start, rank_ptr[rank + 1]):
                count = 0
                for k in range(dep_ptr[i], dep_ptr[i + 1]):
                    d = dep[k]
                    if seen[d] == i:
                        continue
                    seen[d] = i
                    count += 1
                    at = base + start + d
                    if sweep == 1:
                        child[child_ptr[at]] = base + i
                    child_ptr[at if sweep == 1 else at + 1] += 1
                missing[base + i] = count
        seen[:] = -1
        if sweep == 0:
            child_ptr[base] = first
            for i in range(base, base + nodes):
                child_ptr[i + 1] += child_ptr[i]
    end = child_ptr[base + nodes]
    for i in range(base + nodes, base, -1):  # filling moved every start to its end
        child_ptr[i] = child_ptr[i - 1]
    child_ptr[base] = first
    return end


@allocating
def _by_pair(code, peer, num_ranks, kind):
    """Nodes of a kind grouped by (source, destination), in order: ``order[ptr[pair]:ptr[pair + 1]]``."""
    ptr = np.zeros(num_ranks * num_ranks + 1, np.int32)
    for sweep in range(2):
        if sweep == 1:
            for pair in range(num_ranks * num_ranks):
                ptr[pair + 1] += ptr[pair]
            order = np.empty(ptr[-1], np.int32)
        for i in range(len(code)):
            if code[i] & 3 == kind:
                rank = (code[i] >> 2) % num_ranks
                pair = rank * num_ranks + peer[i] if kind == 1 else peer[i] * num_ranks + rank
                if sweep == 1:
                    order[ptr[pair]] = i
                    ptr[pair] += 1
                else:
                    ptr[pair + 1] += 1
    for pair in range(num_ranks * num_ranks, 0, -1):
        ptr[pair] = ptr[pair - 1]
    ptr[0] = 0
    return ptr, order


@allocating
def _sort(nodes, tag, amount):
    """Sort nodes by (tag, size), keeping their order where both are equal."""
    nodes[:] = nodes[np.argsort(tag[nodes] % MAX_TAG, kind="mergesort")]
    first = 0
    for i in range(1, len(nodes) + 1):
        if i == len(nodes) or tag[nodes[i]] % MAX_TAG != tag[nodes[first]] % MAX_TAG:
            if i - first > 1:
                run = nodes[first:i].copy()
                nodes[first:i] = run[np.argsort(amount[run], kind="mergesort")]
            first = i


@allocating
def _same(a, b, tag, amount):
    return tag[a] % MAX_TAG == tag[b] % MAX_TAG and amount[a] == amount[b]


@allocating
def _in_step(sends, recvs, tag, amount, stamp, pair):
    """Whether the k-th send and the k-th receive have one tag and size, and no tag comes twice.

    ``stamp`` has an entry for every tag, or is empty: then ascending tags alone are known not to repeat.
    """
    if len(sends) != len(recvs):
        return False
    for k in range(len(sends)):
        if not _same(sends[k], recvs[k], tag, amount):
            return False
        here = tag[sends[k]] % MAX_TAG
        if len(stamp) > 0:
            if stamp[here] == pair:
                return False
            stamp[here] = pair
        elif k > 0 and here <= tag[sends[k - 1]] % MAX_TAG:
            return False
    return True


@allocating
def match(code, peer, tag, amount, num_ranks, slot):
    """Give each (tag, source, destination, size) as many slots as it has messages.

    ``slot`` of every SEND and RECV becomes its key's first slot; which of the slots a message takes depends
    on the order of issue where a key has several.

    Returns
    -------
    unmatched : int
        A SEND or RECV whose key has not as many of the other kind; -1 if there is none.
    slots : int
        Number of slots.
    repeated : bool
        Whether some key has several messages.
    """
    send_ptr, send_order = _by_pair(code, peer, num_ranks, 1)
    recv_ptr, recv_order = _by_pair(code, peer, num_ranks, 2)
    slots = np.int64(0)
    repeated = False
    most = np.max(tag)
    stamp = np.full(most + 1 if most < 2 * len(tag) + 1024 else 0, -1, np.int32)
    for pair in range(num_ranks * num_ranks):
        sends = send_order[send_ptr[pair] : send_ptr[pair + 1]]
        recvs = recv_order[recv_ptr[pair] : recv_ptr[pair + 1]]
        if len(sends) == 0 and len(recvs) == 0:
            continue
        if not _in_step(sends, recvs, tag, amount, stamp, pair):
            _sort(sends, tag, amount)
            _sort(recvs, tag, amount)
        for k in range(max(len(sends), len(recvs))):
            if k >= len(recvs):
                return np.int64(sends[k]), slots, repeated
            if k >= len(sends):
                return np.int64(recvs[k]), slots, repeated
            if not _same(sends[k], recvs[k], tag, amount):
                s, r = sends[k], recvs[k]
                ahead = tag[s] % MAX_TAG < tag[r] % MAX_TAG or (
                    tag[s] % MAX_TAG == tag[r] % MAX_TAG and amount[s] < amount[r]
                )
                return np.int64(s if ahead else r), slots, repeated
            again = k > 0 and _same(sends[k], sends[k - 1], tag, amount)
            repeated = repeated or again
            slot[sends[k]] = slot[sends[k - 1]] if again else slots + k
            slot[recvs[k]] = slot[sends[k]]
        slots += len(sends)
    return np.int64(-1), slots, repeated
