# mypy: allow-untyped-defs, no-check-untyped-defs
"""Encode nodes: columns and byte templates in, varint-framed ``Node`` messages out.

Everything that is the same in every node of a kind is laid out once, in :class:`Templates`; per node only
the numbers are encoded.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from moxtrace.jit import allocating

__all__ = [
    "BAD_AMOUNT", "BAD_DEP", "BAD_KIND", "BAD_PEER", "BAD_TAG", "DONE", "FULL", "OPS", "PADDING", "SEGMENTS",
    "Columns", "Templates", "encode",
]  # fmt: skip

SEGMENTS = 4  # byte strings per kind: before the dependencies, then one before each of up to three values
OPS = 8  # the template of a COMP that carries num_ops and tensor_size, after Chakra's kinds 0..7
DONE, FULL, BAD_KIND, BAD_PEER, BAD_TAG, BAD_AMOUNT, BAD_DEP = 0, 1, 2, 3, 4, 5, 6
MAX_SIZE_BYTES = 2**62
PADDING = 8  # bytes behind a segment that copying it may touch
LENGTH_BYTES = 10  # of the longest varint


class Columns(NamedTuple):
    """The nodes of one rank; the fields are those of :class:`~moxtrace.chakra.trace.Trace`.

    ``dep_ptr`` points into ``dep`` of the whole trace; ``ops_node`` counts from the rank's first node.
    """

    node_id: NDArray[np.int64]
    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    amount: NDArray[np.int64]
    dep_ptr: NDArray[np.int64]
    dep: NDArray[np.int32]
    ops_node: NDArray[np.int64]
    num_ops: NDArray[np.int64]
    tensor_size: NDArray[np.int64]


class Templates(NamedTuple):
    """The constant bytes of a rank's nodes.

    Parameters
    ----------
    data : array of uint8
        All segments, with ``PADDING`` bytes behind the last.
    ptr : array of int64, shape (row, segment + 1)
        Segment ``s`` of row ``r`` is ``data[ptr[r, s] : ptr[r, s + 1]]``.
    back : array of int64, shape (row, segment)
        How far before the end of a segment the length of its last attribute stands, which grows by the
        length of the value that follows.
    values : array of int64, shape (row,)
        Values that follow the segments 1, 2, 3; -1 where a kind has no template.
    row : array of int64, shape (nodes of the rank,) or (0,)
        Row of each node where names differ by node; empty where the row is the kind (or ``OPS``).
    """

    data: NDArray[np.uint8]
    ptr: NDArray[np.int64]
    back: NDArray[np.int64]
    values: NDArray[np.int64]
    row: NDArray[np.int64]


@numba.njit(cache=True, nogil=True, inline="always")
def _varint_length(value):
    length = 1
    while value >= 128:
        value >>= np.uint64(7)
        length += 1
    return length


@numba.njit(cache=True, nogil=True, inline="always")
def _put_varint(out, at, value):
    while value >= 128:
        out[at] = (value & np.uint64(127)) | np.uint64(128)
        value >>= np.uint64(7)
        at += 1
    out[at] = value
    return at + 1


@numba.njit(cache=True, nogil=True, inline="always")
def _put_segment(out, at, data, first, end):
    """Copy eight bytes at a time, up to seven too many: what follows overwrites them.

    Eight loads before eight stores become one load and one store; unsigned indices spare the test for
    negative ones.
    """
    p, q, one = np.uint64(at), np.uint64(first), np.uint64(1)
    for _ in range((end - first + 7) >> 3):
        a, b, c, d = data[q], data[q + one], data[q + np.uint64(2)], data[q + np.uint64(3)]
        q += np.uint64(4)
        e, f, g, h = data[q], data[q + one], data[q + np.uint64(2)], data[q + np.uint64(3)]
        q += np.uint64(4)
        out[p], out[p + one], out[p + np.uint64(2)], out[p + np.uint64(3)] = a, b, c, d
        p += np.uint64(4)
        out[p], out[p + one], out[p + np.uint64(2)], out[p + np.uint64(3)] = e, f, g, h
        p += np.uint64(4)
    return at + end - first


@allocating
def _fault(kind, peer, tag, amount, rank, ranks):
    """What ASTRA-sim would choke on in a node, or DONE."""
    if kind == 5 or kind == 6:
        if peer < 0 or peer >= ranks or peer == rank:
            return BAD_PEER
        if tag < 0:
            return BAD_TAG
        if amount <= 0 or amount > MAX_SIZE_BYTES:
            return BAD_AMOUNT
    elif kind == 7:
        if peer < 0:
            return BAD_PEER
        if amount < 0 or amount > MAX_SIZE_BYTES:
            return BAD_AMOUNT
    elif kind != 4:
        return BAD_KIND
    elif amount < 0:
        return BAD_AMOUNT
    return DONE


@allocating
def encode(columns, templates, start, rank, ranks, next_op, out):
    """Encode nodes from ``start`` on, as many as ``out`` holds.

    Parameters
    ----------
    columns : Columns
    templates : Templates
    start : int
        First node, counted in the rank.
    rank, ranks : int
    next_op : int
        Entry of ``ops_node`` at or after ``start``.
    out : array of uint8

    Returns
    -------
    node, used, next_op, status : int
        Where to go on, bytes written, and ``DONE`` (all nodes are out), ``FULL`` (call again with an empty
        buffer; a larger one if nothing was written) or what is wrong with ``node``.
    """
    node_id, kind, dep_ptr, dep = columns.node_id, columns.kind, columns.dep_ptr, columns.dep
    data, ptr, back = templates.data, templates.ptr, templates.back
    nodes = len(node_id)
    room = len(out)
    used = 0
    for i in range(start, nodes):
        status = _fault(kind[i], columns.peer[i], columns.tag[i], columns.amount[i], rank, ranks)
        if status != DONE:
            return i, used, next_op, status
        first, second, third = (
            np.uint64(columns.peer[i]),
            np.uint64(columns.amount[i]),
            np.uint64(columns.tag[i]),
        )
        duration = np.uint64(0)
        row = np.int64(kind[i])
        op = next_op < len(columns.ops_node) and columns.ops_node[next_op] == i
        if row == 4:
            duration = second
            if op:
                row = OPS
                first = np.uint64(columns.num_ops[next_op])
                second = np.uint64(columns.tensor_size[next_op])
        if len(templates.row) > 0:
            row = templates.row[i]
        values = templates.values[row]

        # sizes first: every length stands before what it counts
        ident = np.uint64(node_id[i])
        size = ptr[row, values + 1 if values else 2] - ptr[row, 0]
        if ident:
            size += 1 + _varint_length(ident)
        packed = 0
        for k in range(dep_ptr[i], dep_ptr[i + 1]):
            parent = np.int64(dep[k])
            if parent < 0 or parent >= nodes or parent == i:
                return i, used, next_op, BAD_DEP
            packed += _varint_length(np.uint64(node_id[parent]))
        if packed:
            size += 1 + _varint_length(np.uint64(packed)) + packed
        if duration:
            size += 1 + _varint_length(duration)
        n1 = _varint_length(first) if values > 0 else 0
        n2 = _varint_length(second) if values > 1 else 0
        n3 = _varint_length(third) if values > 2 else 0
        size += n1 + n2 + n3
        if used + size + LENGTH_BYTES + PADDING > room:
            return i, used, next_op, FULL

        at = _put_varint(out, used, np.uint64(size))
        if ident:
            out[at] = 0x08
            at = _put_varint(out, at + 1, ident)
        at = _put_segment(out, at, data, ptr[row, 0], ptr[row, 1])
        if packed:
            out[at] = 0x2A
            at = _put_varint(out, at + 1, np.uint64(packed))
            for k in range(dep_ptr[i], dep_ptr[i + 1]):
                at = _put_varint(out, at, np.uint64(node_id[dep[k]]))
        if duration:
            out[at] = 0x38
            at = _put_varint(out, at + 1, duration)
        at = _put_segment(out, at, data, ptr[row, 1], ptr[row, 2])
        if values > 0:
            out[at - back[row, 1]] += n1
            at = _put_varint(out, at, first)
        if values > 1:
            at = _put_segment(out, at, data, ptr[row, 2], ptr[row, 3])
            out[at - back[row, 2]] += n2
            at = _put_varint(out, at, second)
        if values > 2:
            at = _put_segment(out, at, data, ptr[row, 3], ptr[row, 4])
            out[at - back[row, 3]] += n3
            at = _put_varint(out, at, third)
        used = at
        if op:
            next_op += 1
    return nodes, used, next_op, DONE
