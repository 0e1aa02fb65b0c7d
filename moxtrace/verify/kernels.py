"""Kernels of ``verify``: follow every row of the demand through the messages that carry its tag.

They note faults in a pair of arrays: how many of each code, and ``(row, npu, node)`` of the first few, -1
where there is none; the wording is the caller's.  Rows, sends, nodes and gates come as plain tuples of
arrays, in the order of the named tuples of ``layer.py``.  The reader has made sure that peers are ranks and
dependencies lie in the file; tags are looked at before they index anything.
"""

import numpy as np

from moxtrace.chakra.trace import COMP, RECV, SEND
from moxtrace.jit import allocating, kernel

__all__ = [
    "CODES", "check_combine", "check_compute", "check_dispatch", "check_messages", "find_comps",
    "group_sends",
]  # fmt: skip

# faults of a message, of dispatch, of expert compute and of combine
SIZE, NO_LINK = range(2)
TWICE, NEVER, NOT_HELD, UNCAUSED, USELESS = range(2, 7)
EARLY = 7
SENT_TWICE, SILENT, LOST, EMPTY, UNREDUCED, NO_SUM, SUM_TIME, UNGATED = range(8, 16)
NO_TOTAL, UNTOTALLED, TOTAL_TIME = range(16, 19)
CODES = 19


@kernel
def _note(faults, code, row, npu, node):
    """Count a fault, and keep what it is about while there is room."""
    total, about = faults
    k = total[code]
    if k < about.shape[1]:
        about[code, k, 0], about[code, k, 1], about[code, k, 2] = row, npu, node
    total[code] += 1


@kernel
def _inputs_of(nodes, node, first, tag):
    """RECVs of ``tag`` among the dependencies of ``node``, whose rank's nodes begin at ``first``."""
    kind, _, tags, _, dep_ptr, dep = nodes
    inputs = 0
    for j in range(dep_ptr[node], dep_ptr[node + 1]):
        before = first + dep[j]
        inputs += kind[before] == RECV and tags[before] == tag
    return inputs


@kernel
def _waits_for(nodes, node, first, before):
    """Whether ``before`` is among the dependencies of ``node``."""
    _, _, _, _, dep_ptr, dep = nodes
    found = False
    for j in range(dep_ptr[node], dep_ptr[node + 1]):
        found |= first + dep[j] == before
    return found


@allocating
def group_sends(rank_ptr, nodes, base, rows):
    """SENDs with tags ``base : base + rows``, by counting: row after row, within a row in file order.

    Returns
    -------
    ptr : array of int64, shape (rows + 1,)
    src : array of int32, shape (sends,)
    node : array of int64, shape (sends,)
    """
    kind, _, tag, _, _, _ = nodes
    ptr = np.zeros(rows + 1, np.int64)
    for i in range(len(kind)):
        if kind[i] == SEND and base <= tag[i] < base + rows:
            ptr[tag[i] - base + 1] += 1
    for t in range(rows):
        ptr[t + 1] += ptr[t]
    src, node = np.empty(ptr[rows], np.int32), np.empty(ptr[rows], np.int64)
    at = ptr[:rows].copy()
    for rank in range(len(rank_ptr) - 1):
        for i in range(rank_ptr[rank], rank_ptr[rank + 1]):
            if kind[i] == SEND and base <= tag[i] < base + rows:
                k = at[tag[i] - base]
                src[k], node[k] = rank, i
                at[tag[i] - base] += 1
    return ptr, src, node


@kernel
def _link(links, src, dst):
    """Link from ``src`` to ``dst`` by bisection, -1 where there is none."""
    out_ptr, ends, _ = links
    low, high = out_ptr[src], out_ptr[src + 1]
    while low < high:
        middle = (low + high) // 2
        if ends[middle] < dst:
            low = middle + 1
        else:
            high = middle
    return low if low < out_ptr[src + 1] and ends[low] == dst else -1


@kernel
def check_messages(sends, nodes, links, size, messages, size_bytes, faults):
    """Every message has ``size`` bytes and a physical link; counts both per link.

    ``links`` is ``(out_ptr, dst, hub)``; behind a hub (-1: there is none) a message takes two links.
    """
    ptr, src, node = sends
    _, peer, _, amount, _, _ = nodes
    hub = links[2]
    for t in range(len(ptr) - 1):
        for k in range(ptr[t], ptr[t + 1]):
            i = node[k]
            if amount[i] != size:
                _note(faults, SIZE, t, src[k], i)
            first = _link(links, src[k], peer[i] if hub < 0 else hub)
            second = _link(links, hub, peer[i]) if hub >= 0 else first
            if first < 0 or second < 0:
                _note(faults, NO_LINK, t, peer[i], i)
                continue
            messages[first] += 1
            size_bytes[first] += amount[i]
            if hub >= 0:
                messages[second] += 1
                size_bytes[second] += amount[i]


@allocating
def check_dispatch(rows, sends, nodes, rank_ptr, base, faults):
    """Every destination is reached exactly once, by NPUs that hold the row."""
    source, dest_ptr, dest = rows
    ptr, send_src, send_node = sends
    peer = nodes[1]
    npus = len(rank_ptr) - 1
    reached = np.full(npus, -1, np.int64)
    wanted = np.full(npus, -1, np.int64)
    forwards = np.full(npus, -1, np.int64)
    for t in range(len(source)):
        first, last = ptr[t], ptr[t + 1]
        reached[source[t]] = t
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            wanted[dest[j]] = t
        for i in range(first, last):
            node = send_node[i]
            dst = peer[node]
            forwards[send_src[i]] = t
            if reached[dst] == t:
                _note(faults, TWICE, t, dst, node)
            reached[dst] = t
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            if reached[dest[j]] != t:
                _note(faults, NEVER, t, dest[j], -1)
        for i in range(first, last):
            src, node = send_src[i], send_node[i]
            dst = peer[node]
            if reached[src] != t:
                _note(faults, NOT_HELD, t, src, node)
            elif src != source[t] and _inputs_of(nodes, node, rank_ptr[src], base + t) == 0:
                _note(faults, UNCAUSED, t, src, node)
            if wanted[dst] != t and forwards[dst] != t:
                _note(faults, USELESS, t, dst, node)


@kernel
def find_comps(source, nodes, rank_ptr, base, compute_at, total_at):
    """Find the COMPs that no SEND leads to.

    ``compute_at[rank]`` becomes the first COMP of the rank that waits for no RECV of combine (tags from
    ``base`` on): its expert compute.  ``total_at[row]`` becomes the first COMP of the row's source that adds
    messages of the row.  Both are -1 where there is none.
    """
    kind, _, tag, _, dep_ptr, dep = nodes
    compute_at[:] = -1
    total_at[:] = -1
    for rank in range(len(rank_ptr) - 1):
        first = rank_ptr[rank]
        for i in range(first, rank_ptr[rank + 1]):
            if kind[i] != COMP:
                continue
            row = -1
            for j in range(dep_ptr[i], dep_ptr[i + 1]):
                before = first + dep[j]
                if kind[before] == RECV and base <= tag[before] < base + len(source):
                    row = tag[before] - base
                    break
            if row >= 0 and source[row] == rank and total_at[row] < 0:
                total_at[row] = i
            elif row < 0 and compute_at[rank] < 0:
                compute_at[rank] = i


@kernel
def _delivers(rows, row, npu):
    """Whether ``npu`` is a destination of ``row``."""
    _, dest_ptr, dest = rows
    found = False
    for j in range(dest_ptr[row], dest_ptr[row + 1]):
        found |= dest[j] == npu
    return found


@allocating
def check_compute(rows, nodes, rank_ptr, base, compute_at, whole_phase, faults):
    """Expert compute waits for dispatch (tags from ``base`` on).

    With ``whole_phase`` for every SEND and RECV of its rank, itself or through what it waits for; else for
    the RECVs that deliver, itself.
    """
    kind, _, tag, _, dep_ptr, dep = nodes
    ranks = len(rank_ptr) - 1
    most = 0
    for rank in range(ranks):
        most = max(most, rank_ptr[rank + 1] - rank_ptr[rank])
    awaited = np.zeros(most, np.bool_)
    queue = np.empty(most, np.int32)
    for rank in range(ranks):
        if compute_at[rank] < 0:
            continue
        first = rank_ptr[rank]
        awaited[: rank_ptr[rank + 1] - first] = False
        queue[0] = compute_at[rank] - first
        done, found = 0, 1
        while done < found:
            node = first + queue[done]
            done += 1
            for j in range(dep_ptr[node], dep_ptr[node + 1]):
                if not awaited[dep[j]]:
                    awaited[dep[j]] = True
                    if whole_phase:
                        queue[found] = dep[j]
                        found += 1
        for i in range(first, rank_ptr[rank + 1]):
            row = tag[i] - base
            if awaited[i - first] or row < 0 or row >= len(rows[0]):
                continue
            if kind[i] == RECV:
                if whole_phase or _delivers(rows, row, rank):
                    _note(faults, EARLY, row, rank, i)
            elif kind[i] == SEND and whole_phase:
                _note(faults, EARLY, row, rank, i)


@kernel
def _sum_of(nodes, send, first, tag, inputs, compute):
    """The COMP that a SEND waits for and that adds ``inputs`` RECVs of ``tag``.

    Else the last other COMP but expert compute that it waits for, or -1; and whether the inputs are right.
    """
    kind, _, _, _, dep_ptr, dep = nodes
    other = np.int64(-1)
    for j in range(dep_ptr[send], dep_ptr[send + 1]):
        before = first + dep[j]
        if kind[before] == COMP and before != compute:
            if _inputs_of(nodes, before, first, tag) == inputs:
                return before, True
            other = before
    return other, False


@kernel
def _check_sent(message, nodes, first, inputs, own, gates, reduce, used, faults):
    """One SEND of combine: it waits for its inputs, for their sum and for expert compute."""
    row, tag, src, node = message
    gate, compute_at = gates
    compute = compute_at[src]
    joint = node  # what waits for the inputs
    if inputs + own >= 2:
        joint, whole = _sum_of(nodes, node, first, tag, inputs, compute)
        if joint < 0:
            _note(faults, NO_SUM, row, src, node)
            return
        used[joint] = True
        if not whole:
            _note(faults, UNREDUCED, row, src, node)
        elif nodes[3][joint] != reduce[inputs + own]:
            _note(faults, SUM_TIME, row, src, joint)
    elif _inputs_of(nodes, node, first, tag) != inputs:
        _note(faults, UNREDUCED, row, src, node)
    gated = gate == 1 or (gate == 0 and own)
    if gated and compute >= 0 and not _waits_for(nodes, joint, first, compute):
        _note(faults, UNGATED, row, src, node)


@kernel
def _check_total(message, nodes, first, inputs, reduce, used, faults):
    """The source's sum of a row of which it receives two messages or more."""
    row, tag, source, node = message
    if node < 0:
        _note(faults, NO_TOTAL, row, source, -1)
        return
    used[node] = True
    if _inputs_of(nodes, node, first, tag) != inputs:
        _note(faults, UNTOTALLED, row, source, node)
    elif nodes[3][node] != reduce[inputs]:
        _note(faults, TOTAL_TIME, row, source, node)


@allocating
def check_combine(rows, sends, nodes, rank_ptr, base, gates, sums, faults):
    """Every expert output reaches the source in exactly one sum.

    ``gates`` is ``(gate, compute_at)``: what waits for the rank's expert compute when that is in the same
    file: -1 nothing, 0 its own contributions, 1 everything that it sends.  ``sums`` is ``(reduce, total_at,
    used)``: the duration of a sum of so many inputs, the source's sum of each row, and for each node whether
    it is a COMP that something needs, which is filled in.
    """
    source, dest_ptr, dest = rows
    ptr, send_src, send_node = sends
    reduce, total_at, used = sums
    peer = nodes[1]
    npus = len(rank_ptr) - 1
    sent = np.full(npus, -1, np.int64)
    wanted = np.full(npus, -1, np.int64)
    inputs = np.zeros(npus, np.int64)
    for t in range(len(source)):
        first, last = ptr[t], ptr[t + 1]
        root = source[t]
        inputs[root] = 0
        for i in range(first, last):
            inputs[send_src[i]] = 0
            inputs[peer[send_node[i]]] = 0
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            wanted[dest[j]] = t
        for i in range(first, last):
            inputs[peer[send_node[i]]] += 1
            if sent[send_src[i]] == t:
                _note(faults, SENT_TWICE, t, send_src[i], send_node[i])
            sent[send_src[i]] = t
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            if sent[dest[j]] != t:
                _note(faults, SILENT, t, dest[j], -1)
        for i in range(first, last):
            src, node = send_src[i], send_node[i]
            dst, own = peer[node], wanted[src] == t
            if dst != root and sent[dst] != t:
                _note(faults, LOST, t, dst, node)
            if src == root:
                _note(faults, SENT_TWICE, t, src, node)
            elif not own and inputs[src] == 0:
                _note(faults, EMPTY, t, src, node)
            else:
                message = (t, base + t, src, node)
                _check_sent(message, nodes, rank_ptr[src], inputs[src], own, gates, reduce, used, faults)
        if inputs[root] >= 2:
            message = (t, base + t, root, total_at[t])
            _check_total(message, nodes, rank_ptr[root], inputs[root], reduce, used, faults)
