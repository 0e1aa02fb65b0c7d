"""Kernels of lowering: one pass over the messages in their start order appends nodes rank by rank.

Each kernel runs twice with the same arguments: with ``fill`` false it only advances the cursors, which gives
the sizes; with ``fill`` true it writes.  Node positions are those in the file of the rank.
"""

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import COMP, RECV, SEND

__all__ = ["Columns", "Cursor", "Messages", "emit_combine", "emit_compute", "emit_dispatch"]


class Messages(NamedTuple):
    """Messages of a phase; ``near`` is the rank on the source's side, ``far`` the other."""

    near: NDArray[np.int32]
    far: NDArray[np.int32]
    parent: NDArray[np.int32]
    tree: NDArray[np.int32]
    tree_ptr: NDArray[np.int64]
    delivers: NDArray[np.bool_]
    key: NDArray[np.int32]  # messages of one key form one chain of windows


class Columns(NamedTuple):
    """Columns of a trace that is being filled."""

    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    amount: NDArray[np.int64]
    dep_ptr: NDArray[np.int64]
    dep: NDArray[np.int32]


class Cursor(NamedTuple):
    """Next free node and dependency of every rank, and where its nodes start."""

    node: NDArray[np.int64]
    dep: NDArray[np.int64]
    start: NDArray[np.int64]


@numba.njit(cache=True, inline="always")
def _depend(fill, rank, position, columns, cursor):
    """Let the node that is being written at ``rank`` wait for the node at ``position``."""
    if fill:
        columns.dep[cursor.dep[rank]] = position
    cursor.dep[rank] += 1


@numba.njit(cache=True, inline="always")
def _close(fill, rank, kind, peer, tag, amount, columns, cursor):
    """Write the node whose dependencies were just written; returns its position."""
    at = cursor.node[rank]
    if fill:
        columns.kind[at] = kind
        columns.peer[at] = peer
        columns.tag[at] = tag
        columns.amount[at] = amount
        columns.dep_ptr[at + 1] = cursor.dep[rank]
    cursor.node[rank] = at + 1
    return np.int32(at - cursor.start[rank])


@numba.njit(cache=True, nogil=True)
def emit_dispatch(fill, m, order, size, tag_base, window, chain, send_at, recv_at, followed, columns, cursor):
    """Append the SEND and RECV nodes of dispatch.

    ``send_at`` and ``recv_at`` get the position of each message's nodes; ``followed[i, 0 or 1]`` becomes 1
    when another node of the phase waits for its SEND or RECV.
    """
    sent = np.zeros(chain.shape[0], np.int64)
    slot_message = np.full((chain.shape[0], chain.shape[1]), -1, np.int32)
    for i in order:
        sender, receiver, key = m.near[i], m.far[i], m.key[i]
        tag = tag_base + m.tree[i]
        slot = sent[key] % max(window, 1)
        before = slot_message[key, slot]
        parent = m.parent[i]
        if parent >= 0:
            _depend(fill, sender, recv_at[parent], columns, cursor)
            followed[parent, 1] = 1
        if window > 0 and before >= 0:
            _depend(fill, sender, send_at[before], columns, cursor)
            followed[before, 0] = 1
        send_at[i] = _close(fill, sender, SEND, receiver, tag, size, columns, cursor)
        if window > 0 and before >= 0:
            _depend(fill, receiver, recv_at[before], columns, cursor)
            followed[before, 1] = 1
        recv_at[i] = _close(fill, receiver, RECV, sender, tag, size, columns, cursor)
        slot_message[key, slot] = i
        sent[key] += 1


@numba.njit(cache=True, nogil=True)
def emit_compute(fill, m, whole_phase, duration, send_at, recv_at, followed, compute_at, columns, cursor):
    """Append one COMP per rank that waits for the dispatch before it.

    With ``whole_phase`` it waits for every node of the rank (those that another waits for are implied), else
    for the RECVs that deliver to it.  ``compute_at`` gets its position.
    """
    ranks = len(compute_at)
    ends = np.zeros(ranks + 1, np.int64)
    for i in range(len(m.near)):
        if whole_phase:
            ends[m.near[i] + 1] += followed[i, 0] == 0
            ends[m.far[i] + 1] += followed[i, 1] == 0
        else:
            ends[m.far[i] + 1] += m.delivers[i]
    ends = np.cumsum(ends)
    waits = np.empty(ends[ranks], np.int32)
    filled = ends[:ranks].copy()
    for i in range(len(m.near)):
        near, far = m.near[i], m.far[i]
        if whole_phase and followed[i, 0] == 0:
            waits[filled[near]] = send_at[i]
            filled[near] += 1
        if (whole_phase and followed[i, 1] == 0) or (not whole_phase and m.delivers[i]):
            waits[filled[far]] = recv_at[i]
            filled[far] += 1
    for rank in range(ranks):
        for position in np.sort(waits[ends[rank] : ends[rank + 1]]):
            _depend(fill, rank, position, columns, cursor)
        compute_at[rank] = _close(fill, rank, COMP, -1, 0, duration[rank], columns, cursor)


@numba.njit(cache=True, nogil=True)
def emit_combine(
    fill, m, order, size, tag_base, window, reduce, chain, recv_at, compute_at, gate, columns, cursor
):
    """Append the COMP, SEND and RECV nodes of combine.

    ``gate`` says what waits for the rank's expert compute when that is in the same file: -1 nothing, 0 its
    own contributions, 1 everything that it sends.  Returns the message whose inputs have not been emitted
    before it, or -1.
    """
    sent = np.zeros(chain.shape[0], np.int64)
    left = np.zeros(len(m.tree_ptr) - 1, np.int32)  # messages that have yet to reach the source
    for i in range(len(m.parent)):
        left[m.tree[i]] += m.parent[i] < 0
    for i in order:
        sender, receiver, key, tree = m.far[i], m.near[i], m.key[i], m.tree[i]
        tag = tag_base + tree
        inputs = np.int64(m.delivers[i])
        for c in range(i + 1, m.tree_ptr[tree + 1]):
            if m.parent[c] == i:
                if recv_at[c] < 0:
                    return np.int64(i)
                inputs += 1
                _depend(fill, sender, recv_at[c], columns, cursor)
        if gate == 1 or (gate == 0 and m.delivers[i]):
            _depend(fill, sender, compute_at[sender], columns, cursor)
        if inputs >= 2:
            total = _close(fill, sender, COMP, -1, 0, reduce[inputs], columns, cursor)
            _depend(fill, sender, total, columns, cursor)
        slot = sent[key] % max(window, 1)
        if window > 0 and chain[key, slot, 0] >= 0:
            _depend(fill, sender, chain[key, slot, 0], columns, cursor)
        chain[key, slot, 0] = _close(fill, sender, SEND, receiver, tag, size, columns, cursor)
        if window > 0 and chain[key, slot, 1] >= 0:
            _depend(fill, receiver, chain[key, slot, 1], columns, cursor)
        recv_at[i] = _close(fill, receiver, RECV, sender, tag, size, columns, cursor)
        chain[key, slot, 1] = recv_at[i]
        sent[key] += 1
        if m.parent[i] < 0:
            left[tree] -= 1
            if left[tree] == 0:
                _sum_at_source(fill, m, tree, reduce, recv_at, columns, cursor)
    return np.int64(-1)


@numba.njit(cache=True)
def _sum_at_source(fill, m, tree, reduce, recv_at, columns, cursor):
    """Append the COMP that sums what a row's source receives, where it receives more than one message."""
    start, stop = m.tree_ptr[tree], m.tree_ptr[tree + 1]
    inputs = np.int64(0)
    for c in range(start, stop):
        inputs += m.parent[c] < 0
    if inputs < 2:
        return
    rank = m.near[start]
    for c in range(start, stop):
        if m.parent[c] < 0:
            _depend(fill, rank, recv_at[c], columns, cursor)
    _close(fill, rank, COMP, -1, 0, reduce[inputs], columns, cursor)
