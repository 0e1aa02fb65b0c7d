"""Kernels of lowering: one pass over the messages in their start order appends nodes rank by rank.

Each kernel runs twice with the same arguments: with ``fill`` false it only advances the cursors, which gives
the sizes; with ``fill`` true it writes.  Node positions are those in the file of the rank.

Messages, columns and cursors come as plain tuples of arrays, in the order of the named tuples of
``lower.py``, and are taken apart at once: numba counts references at every access to a tuple's array, and
its cache breaks when a named tuple's class is renamed.
"""

import numba
import numpy as np

from moxtrace.chakra.trace import COMP, RECV, SEND
from moxtrace.jit import allocating

__all__ = ["emit_combine", "emit_compute", "emit_dispatch"]


@numba.njit(cache=True, inline="always")
def _depend(fill, rank, position, dep, next_dep):
    """Let the node that is being written at ``rank`` wait for the node at ``position``."""
    if fill:
        dep[next_dep[rank]] = position
    next_dep[rank] += 1


@numba.njit(cache=True, inline="always")
def _close(fill, rank, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr):
    """Write the node whose dependencies were just written; returns its position."""
    at = next_node[rank]
    if fill:
        kind[at], peer[at], tag[at], amount[at] = values
        dep_ptr[at + 1] = next_dep[rank]
    next_node[rank] = at + 1
    return np.int32(at - start[rank])


@allocating
def emit_dispatch(fill, messages, order, size, tag_base, window, links, placed, columns, cursor):
    """Append the SEND and RECV nodes of dispatch.

    ``placed`` is ``(send_at, recv_at, followed)``: the first two get the position of each message's nodes;
    ``followed[i, 0 or 1]`` becomes 1 when another node of the phase waits for its SEND or RECV.
    """
    near, far, parent, tree, _, _, key = messages
    kind, peer, tag, amount, dep_ptr, dep = columns
    next_node, next_dep, start = cursor
    send_at, recv_at, followed = placed
    sent = np.zeros(links, np.int64)
    last = np.full((links, max(window, 1)), -1, np.int32)
    for i in order:
        sender, receiver, link = near[i], far[i], key[i]
        label = tag_base + tree[i]
        slot = sent[link] % max(window, 1)
        before = last[link, slot] if window > 0 else -1
        above = parent[i]
        if above >= 0:
            _depend(fill, sender, recv_at[above], dep, next_dep)
            followed[above, 1] = 1
        if before >= 0:
            _depend(fill, sender, send_at[before], dep, next_dep)
            followed[before, 0] = 1
        values = (SEND, receiver, label, size)
        send_at[i] = _close(
            fill, sender, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr
        )
        if before >= 0:
            _depend(fill, receiver, recv_at[before], dep, next_dep)
            followed[before, 1] = 1
        values = (RECV, sender, label, size)
        recv_at[i] = _close(
            fill, receiver, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr
        )
        last[link, slot] = i
        sent[link] += 1


@allocating
def emit_compute(fill, messages, whole_phase, duration, placed, compute_at, columns, cursor):
    """Append one COMP per rank that waits for the dispatch before it.

    With ``whole_phase`` it waits for every node of the rank (those that another waits for are implied), else
    for the RECVs that deliver to it.  ``compute_at`` gets its position.
    """
    near, far, _, _, _, delivers, _ = messages
    kind, peer, tag, amount, dep_ptr, dep = columns
    next_node, next_dep, start = cursor
    send_at, recv_at, followed = placed
    ranks = len(compute_at)
    ends = np.zeros(ranks + 1, np.int64)
    for i in range(len(near)):
        if whole_phase:
            ends[near[i] + 1] += followed[i, 0] == 0
            ends[far[i] + 1] += followed[i, 1] == 0
        else:
            ends[far[i] + 1] += delivers[i]
    ends = np.cumsum(ends)
    waits = np.empty(ends[ranks], np.int32)
    filled = ends[:ranks].copy()
    for i in range(len(near)):
        if whole_phase and followed[i, 0] == 0:
            waits[filled[near[i]]] = send_at[i]
            filled[near[i]] += 1
        if (whole_phase and followed[i, 1] == 0) or (not whole_phase and delivers[i]):
            waits[filled[far[i]]] = recv_at[i]
            filled[far[i]] += 1
    for rank in range(ranks):
        for position in np.sort(waits[ends[rank] : ends[rank + 1]]):
            _depend(fill, rank, position, dep, next_dep)
        values = (COMP, -1, 0, duration[rank])
        compute_at[rank] = _close(
            fill, rank, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr
        )


@allocating
def emit_combine(
    fill, messages, order, size, tag_base, window, links, reduce, gate, recv_at, compute_at, columns, cursor
):
    """Append the COMP, SEND and RECV nodes of combine.

    ``reduce[k]`` is the duration of a sum of k inputs.  ``gate`` says what waits for the rank's expert
    compute when that is in the same file: -1 nothing, 0 its own contributions, 1 everything that it sends.
    Returns the message whose inputs have not been emitted before it, or -1.
    """
    near, far, parent, tree, tree_ptr, delivers, key = messages
    kind, peer, tag, amount, dep_ptr, dep = columns
    next_node, next_dep, start = cursor
    sent = np.zeros(links, np.int64)
    last = np.full((links, max(window, 1), 2), -1, np.int32)
    left = np.zeros(len(tree_ptr) - 1, np.int32)  # messages that have yet to reach the source
    for i in range(len(parent)):
        left[tree[i]] += parent[i] < 0
    for i in order:
        sender, receiver, link, row = far[i], near[i], key[i], tree[i]
        stop = tree_ptr[row + 1]
        label = tag_base + row
        inputs = np.int64(delivers[i])
        for c in range(i + 1, stop):
            if parent[c] == i:
                if recv_at[c] < 0:
                    return np.int64(i)
                inputs += 1
                _depend(fill, sender, recv_at[c], dep, next_dep)
        if gate == 1 or (gate == 0 and delivers[i]):
            _depend(fill, sender, compute_at[sender], dep, next_dep)
        if inputs >= 2:
            values = (COMP, -1, 0, reduce[inputs])
            total = _close(fill, sender, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr)
            _depend(fill, sender, total, dep, next_dep)
        slot = sent[link] % max(window, 1)
        if window > 0 and last[link, slot, 0] >= 0:
            _depend(fill, sender, last[link, slot, 0], dep, next_dep)
        values = (SEND, receiver, label, size)
        last[link, slot, 0] = _close(
            fill, sender, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr
        )
        if window > 0 and last[link, slot, 1] >= 0:
            _depend(fill, receiver, last[link, slot, 1], dep, next_dep)
        values = (RECV, sender, label, size)
        recv_at[i] = _close(
            fill, receiver, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr
        )
        last[link, slot, 1] = recv_at[i]
        sent[link] += 1
        if parent[i] < 0:
            left[row] -= 1
            if left[row] == 0:  # the source has all it waits for, and sums it where it is more than one
                inputs = np.int64(0)
                for c in range(tree_ptr[row], stop):
                    inputs += parent[c] < 0
                if inputs >= 2:
                    for c in range(tree_ptr[row], stop):
                        if parent[c] < 0:
                            _depend(fill, receiver, recv_at[c], dep, next_dep)
                    values = (COMP, -1, 0, reduce[inputs])
                    _close(
                        fill, receiver, values, start, next_node, next_dep, kind, peer, tag, amount, dep_ptr
                    )
    return np.int64(-1)
