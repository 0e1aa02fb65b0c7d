# mypy: allow-untyped-defs, no-check-untyped-defs
"""Decode nodes: the bytes of a file in, columns out.

Everything that protobuf may write is read: fields in any order, packed and single dependencies, any integer
field for a number, unknown fields.  numba checks no bounds, so every read is preceded by a test against the
end of what it belongs to.

The walk is one flat loop that spells out its three readings of a varint: a helper that takes the array would
cost two atomic reference counts per call, four times the time of the whole.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace.jit import allocating

__all__ = [
    "ATTRIBUTES", "BAD_COMM_TYPE", "BAD_CPU_OP", "BAD_DURATION", "BAD_ID", "BAD_KIND", "BAD_OPS", "BAD_OWN",
    "BAD_PEER", "BAD_SELF", "BAD_SIZE", "BAD_TAG", "BAD_VARINT", "BAD_WIRE", "CUT", "CUT_FILE", "GROW",
    "MISSING", "OK", "PADDING", "Columns", "count", "fill",
]  # fmt: skip

(
    OK, GROW, CUT, CUT_FILE, BAD_VARINT, BAD_WIRE, BAD_ID, BAD_KIND, BAD_CPU_OP, MISSING, BAD_OWN, BAD_SELF,
    BAD_PEER, BAD_SIZE, BAD_TAG, BAD_COMM_TYPE, BAD_DURATION, BAD_OPS,
) = range(18)  # fmt: skip

# attributes that mean something here; their index is their code
ATTRIBUTES = (
    "comm_src", "comm_dst", "comm_size", "comm_tag", "is_cpu_op", "comm_type", "num_ops", "tensor_size",
)  # fmt: skip
SRC, DST, SIZE, TAG, CPU, TYPE, NUM_OPS, TENSOR = range(8)
PADDING = 8  # readable bytes behind the file's own: a name's first eight are read at once
_LENGTH = np.array([len(name) for name in ATTRIBUTES], np.int64)
_HEAD = np.array([int.from_bytes(name[:8].encode(), "little") for name in ATTRIBUTES], np.uint64)
_TAIL = np.array([int.from_bytes(name[8:].encode(), "little") for name in ATTRIBUTES], np.uint64)

MAX_TAG = 2**31 - 1  # ASTRA-sim aborts above
MAX_SIZE_BYTES = 2**62
MAX_DURATION = 2**62 // 1000  # ASTRA-sim multiplies by 1000
LAST_COMM_TYPE = 9  # BARRIER, the last of CollectiveCommType
_BIG = np.uint64(2**63 - 1)


class Columns(NamedTuple):
    """Room for the nodes of one file; the fields are those of :class:`~moxtrace.chakra.trace.Trace`.

    ``dep_id`` holds ids as in the file; it and the three columns of COMP nodes with ``num_ops`` may be longer
    than what is in use.
    """

    node_id: NDArray[np.int64]
    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    amount: NDArray[np.int64]
    dep_ptr: NDArray[np.int64]
    dep_id: NDArray[np.int64]
    ops_node: NDArray[np.int64]
    num_ops: NDArray[np.int64]
    tensor_size: NDArray[np.int64]


@allocating
def count(data, at):
    """Count whole messages from ``at`` on.

    Returns
    -------
    nodes, at, status : int
        Messages, the position behind the last one, and ``OK`` if the file ends there.
    """
    end = len(data) - PADDING
    nodes = 0
    while at < end:
        begin = at
        size, shift = np.uint64(0), np.uint64(0)
        while True:
            if at >= end:
                return nodes, begin, CUT_FILE
            byte = np.uint64(data[at])
            at += 1
            size |= (byte & np.uint64(127)) << shift
            if byte < 128:
                break
            shift += np.uint64(7)
            if shift > 28:
                return nodes, begin, BAD_VARINT
        if size > np.uint64(end - at):
            return nodes, begin, CUT_FILE
        at += np.int64(size)
        nodes += 1
    return nodes, at, OK


@allocating
def _code(head, tail, size):
    """Code of an attribute's name by its length, its first eight bytes and the next three; -1 if none."""
    for code in range(len(_LENGTH)):
        if _HEAD[code] == head and _LENGTH[code] == size and _TAIL[code] == tail:
            return code
    return -1


@allocating
def _integer(field, raw):
    """What the bits ``raw`` mean in an integer field of AttributeProto; uint64 saturates at 2**63 - 1."""
    low = np.int64(raw & np.uint64(0xFFFFFFFF))
    if field == 7 or field == 23:  # int32, sfixed32
        return low - (low >> 31 << 32)
    if field == 11 or field == 19:  # uint32, fixed32
        return low
    if field == 13 or field == 21:  # uint64, fixed64
        return np.int64(min(raw, _BIG))
    if field == 15:  # sint32
        return (low >> 1) ^ -(low & 1)
    if field == 17:  # sint64
        return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
    if field == 27:  # bool
        return np.int64(raw != 0)
    return np.int64(raw)  # int64, sfixed64


@allocating
def _holds(field, wire):
    """What a field of AttributeProto leaves in its oneof: 1 an integer, 2 something else, 0 no change."""
    if wire == 0:
        return 1 if (field & 1 and 7 <= field <= 17) or field == 27 else 0
    if wire == 1:
        return 1 if field == 21 or field == 25 else 2 if field == 3 else 0
    if wire == 5:
        return 1 if field == 19 or field == 23 else 2 if field == 5 else 0
    return 2 if 4 <= field <= 32 and (field & 1 == 0 or field >= 29) else 0


@allocating
def _judge(kind, rank, ranks, known, other, value):
    """Status of a node's attributes, and the value or code of the attribute that is wrong.

    ``known`` and ``other`` have one bit per attribute: it holds an integer, or something else.
    """
    if kind < 4 or kind > 7:
        return BAD_KIND, kind
    if value[CPU] != 0:
        return BAD_CPU_OP, kind
    if kind == 4:
        for code in (NUM_OPS, TENSOR):
            if other >> code & 1 or value[code] < 0:
                return BAD_OPS, code
        return OK, 0
    for code in (SRC, DST, SIZE, TAG, TYPE):
        if other >> code & 1:
            return MISSING, code
    if not known >> SIZE & 1:
        return MISSING, SIZE
    if kind == 7:
        if not known >> TYPE & 1:
            return MISSING, TYPE
        if value[TYPE] < 0 or value[TYPE] > LAST_COMM_TYPE:
            return BAD_COMM_TYPE, value[TYPE]
        if value[SIZE] < 0 or value[SIZE] > MAX_SIZE_BYTES:
            return BAD_SIZE, value[SIZE]
        return OK, 0
    own, peer = (SRC, DST) if kind == 5 else (DST, SRC)
    if not known >> peer & 1:
        return MISSING, peer
    if not known >> TAG & 1:
        return MISSING, TAG
    if known >> own & 1 and value[own] != rank:
        return BAD_OWN, value[own]
    if value[peer] == rank:
        return BAD_SELF, value[peer]
    if value[peer] < 0 or value[peer] >= ranks:
        return BAD_PEER, value[peer]
    if value[SIZE] <= 0 or value[SIZE] > MAX_SIZE_BYTES:
        return BAD_SIZE, value[SIZE]
    if value[TAG] < 0 or value[TAG] > MAX_TAG:
        return BAD_TAG, value[TAG]
    return OK, 0


@allocating
def fill(data, at, node, deps, ops, rank, ranks, columns):
    """Decode nodes from ``node`` on; :func:`count` has seen that their messages are whole.

    Parameters
    ----------
    data : array of uint8
        The file and ``PADDING`` bytes.
    at, node, deps, ops : int
        Position, nodes, dependencies and COMP nodes with ``num_ops`` so far.
    rank, ranks : int
    columns : Columns

    Returns
    -------
    at, node, deps, ops, status, detail : int
        Where it stopped, and ``OK`` at the last node; ``GROW`` if ``dep_id`` or ``ops_node`` is too short
        for ``node``; or what is wrong with ``node`` (its id and kind are in the columns where they could be
        read), with the value or attribute code that it is about.
    """
    dep_id, dep_ptr = columns.dep_id, columns.dep_ptr
    value = np.zeros(len(_LENGTH), np.int64)
    file_end = len(data) - PADDING
    for i in range(node, len(columns.node_id)):
        begin = at
        # the message's length, good for the reader of whole messages above
        size, shift = np.uint64(0), np.uint64(0)
        while at < file_end and data[at] >= 128:
            size |= np.uint64(data[at] & 127) << shift
            shift += np.uint64(7)
            at += 1
        size |= np.uint64(data[at]) << shift
        at += 1
        node_end = at + np.int64(size)
        before = deps
        ident, kind, duration = np.uint64(0), np.int64(0), np.uint64(0)
        known, other = 0, 0
        code, holds, number = -1, 0, np.int64(0)  # of the attribute at hand
        end, inside = node_end, False
        while inside or at < end:
            if at >= end:
                # the end of an attribute; of two with one name ASTRA-sim takes the first
                if code >= 0 and not (known | other) >> code & 1:
                    if holds == 1:
                        known |= 1 << code
                        value[code] = number
                    else:
                        other |= 1 << code
                end, inside = node_end, False
                continue
            tag, shift = np.uint64(0), np.uint64(0)
            while True:
                if at >= end:
                    return begin, i, deps, ops, CUT, 0
                byte = np.uint64(data[at])
                at += 1
                tag |= (byte & np.uint64(127)) << shift
                if byte < 128:
                    break
                shift += np.uint64(7)
                if shift > 28:
                    return begin, i, deps, ops, BAD_WIRE, 0
            field, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
            if field == 0 or field >= 2**29:
                return begin, i, deps, ops, BAD_WIRE, 0

            raw = np.uint64(0)
            if wire == 0 or wire == 2:
                shift = np.uint64(0)
                while True:
                    if at >= end:
                        return begin, i, deps, ops, CUT, 0
                    byte = np.uint64(data[at])
                    at += 1
                    raw |= (byte & np.uint64(127)) << shift
                    if byte < 128:
                        break
                    shift += np.uint64(7)
                    if shift > 63:
                        return begin, i, deps, ops, BAD_VARINT, 0
                if shift == 63 and byte > 1:
                    return begin, i, deps, ops, BAD_VARINT, 0
                if wire == 2 and raw > np.uint64(end - at):
                    return begin, i, deps, ops, CUT, 0
            elif wire == 1 or wire == 5:
                width = 8 if wire == 1 else 4
                if end - at < width:
                    return begin, i, deps, ops, CUT, 0
                for k in range(width):
                    raw |= np.uint64(data[at + k]) << np.uint64(8 * k)
                at += width
            else:
                return begin, i, deps, ops, BAD_WIRE, 0

            if inside:
                if wire == 2 and field == 1:
                    size = np.int64(raw)
                    head, tail = np.uint64(0), np.uint64(0)
                    p = np.uint64(at)
                    # spelled out, with unsigned indices, this becomes one load
                    head = (
                        np.uint64(data[p])
                        | np.uint64(data[p + np.uint64(1)]) << np.uint64(8)
                        | np.uint64(data[p + np.uint64(2)]) << np.uint64(16)
                        | np.uint64(data[p + np.uint64(3)]) << np.uint64(24)
                        | np.uint64(data[p + np.uint64(4)]) << np.uint64(32)
                        | np.uint64(data[p + np.uint64(5)]) << np.uint64(40)
                        | np.uint64(data[p + np.uint64(6)]) << np.uint64(48)
                        | np.uint64(data[p + np.uint64(7)]) << np.uint64(56)
                    )
                    if size < 8:
                        head &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
                    for k in range(8, min(size, 16)):
                        tail |= np.uint64(data[at + k]) << np.uint64(8 * (k - 8))
                    code = _code(head, tail, size)
                    at += size
                else:
                    what = _holds(field, wire)
                    if what == 1:
                        number = _integer(field, raw)
                    if what != 0:
                        holds = what
                    if wire == 2:
                        at += np.int64(raw)
            elif wire == 2:
                stop = at + np.int64(raw)
                if field == 10:
                    code, holds, number = -1, 0, np.int64(0)
                    end, inside = stop, True
                elif field == 4 or field == 5:
                    while at < stop:
                        raw, shift = np.uint64(0), np.uint64(0)
                        while True:
                            if at >= stop:
                                return begin, i, deps, ops, CUT, 0
                            byte = np.uint64(data[at])
                            at += 1
                            raw |= (byte & np.uint64(127)) << shift
                            if byte < 128:
                                break
                            shift += np.uint64(7)
                            if shift > 63:
                                return begin, i, deps, ops, BAD_VARINT, 0
                        if shift == 63 and byte > 1:
                            return begin, i, deps, ops, BAD_VARINT, 0
                        if deps == len(dep_id):
                            return begin, i, before, ops, GROW, 0
                        dep_id[deps] = np.int64(raw)
                        deps += 1
                else:
                    at = stop
            elif wire == 0:
                if field == 1:
                    ident = raw
                elif field == 3:
                    kind = np.int64(raw & np.uint64(0xFFFFFFFF))
                elif field == 7:
                    duration = raw
                elif field == 4 or field == 5:
                    if deps == len(dep_id):
                        return begin, i, before, ops, GROW, 0
                    dep_id[deps] = np.int64(raw)
                    deps += 1

        columns.node_id[i] = np.int64(ident & _BIG)
        columns.kind[i] = kind if kind < 8 else 0
        for code in range(len(_LENGTH)):
            if not known >> code & 1:
                value[code] = 0
        status, detail = _judge(kind, rank, ranks, known, other, value)
        if status == OK and ident > _BIG:
            status = BAD_ID
        if status == OK and kind == 4 and duration > MAX_DURATION:
            status = BAD_DURATION
        if status != OK:
            return begin, i, deps, ops, status, detail
        dep_ptr[i + 1] = deps
        if kind == 4:
            columns.peer[i], columns.tag[i], columns.amount[i] = -1, 0, np.int64(duration)
            if known >> NUM_OPS & 1:
                if ops == len(columns.ops_node):
                    return begin, i, before, ops, GROW, 0
                columns.ops_node[ops] = i
                columns.num_ops[ops] = value[NUM_OPS]
                columns.tensor_size[ops] = value[TENSOR]
                ops += 1
        else:
            columns.peer[i] = value[DST] if kind == 5 else value[SRC] if kind == 6 else value[TYPE]
            columns.tag[i] = value[TAG] if kind < 7 else 0
            columns.amount[i] = value[SIZE]
    return at, len(columns.node_id), deps, ops, OK, 0
