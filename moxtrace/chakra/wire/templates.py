"""What is the same in all nodes of a kind, laid out once per rank for the encoder."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import COLL, COMP, RECV, SEND
from moxtrace.chakra.wire.encode import OPS, PADDING, SEGMENTS, Columns, Templates
from moxtrace.chakra.wire.messages import attribute, text, varint

__all__ = ["NODE_NAMES", "Rows", "templates_of"]

NODE_NAMES = {COMP: "comp", SEND: "send", RECV: "recv", COLL: "coll"}
INT64, UINT32, UINT64, BOOL = 9, 11, 13, 27  # fields of AttributeProto

# Attributes whose values differ, in the order of writing.  Their fields are those of the traces on which
# ASTRA-sim was measured, and of Chakra's own generator for collectives; its feeder takes any integer field.
_VALUES = {
    COMP: (),
    SEND: (("comm_dst", UINT32), ("comm_size", UINT64), ("comm_tag", UINT32)),
    RECV: (("comm_src", UINT32), ("comm_size", UINT64), ("comm_tag", UINT32)),
    COLL: (("comm_type", INT64), ("comm_size", INT64)),
    OPS: (("num_ops", UINT64), ("tensor_size", UINT64)),
}


def _segments(kind: int, name: str, rank: int) -> list[bytes]:
    """The constant bytes of nodes of one kind and name, around the values that differ."""
    own = varint(rank)
    node_type = COMP if kind == OPS else kind
    parts = [text(2, name) + bytes((3 << 3, node_type)), attribute(10, "is_cpu_op", BOOL, b"\0")]
    parts += [b""] * (SEGMENTS - len(parts))
    for i, (value, field) in enumerate(_VALUES[kind], 1):
        if kind == SEND and value == "comm_dst":
            parts[i] += attribute(10, "comm_src", UINT32, own)
        elif kind == RECV and value == "comm_size":
            parts[i] += attribute(10, "comm_dst", UINT32, own)
        parts[i] += attribute(10, value, field)
    return parts


class Rows:
    """Which template each node takes: its kind's, or one of its own where it has a name of its own.

    Parameters
    ----------
    names : mapping from kind to str
        Instead of :data:`NODE_NAMES`.
    node_names : mapping from node id to str
        Instead of the kind's.
    """

    def __init__(self, names: Mapping[int, str], node_names: Mapping[int, str]) -> None:
        merged = {**NODE_NAMES, **names}
        merged[OPS] = merged[COMP]
        self.ids = np.array(sorted(node_names), np.int64)
        self.table = [(kind, merged.get(kind, "")) for kind in range(OPS + 1)]
        for node_id in self.ids:
            self.table += [(kind, node_names[int(node_id)]) for kind in range(OPS + 1)]

    def of(self, columns: Columns) -> NDArray[np.int64]:
        """Row of every node of a rank; empty where the kind alone decides."""
        if not len(self.ids):
            return np.empty(0, np.int64)
        row = columns.kind.astype(np.int64)
        row[columns.ops_node] = OPS
        at = np.minimum(np.searchsorted(self.ids, columns.node_id), len(self.ids) - 1)
        named = self.ids[at] == columns.node_id
        return np.where(named, (at + 1) * (OPS + 1) + row, row)


def templates_of(rows: Rows, columns: Columns, rank: int) -> Templates:
    """The constant bytes of a rank's nodes."""
    data = bytearray()
    ptr = np.zeros((len(rows.table), SEGMENTS + 1), np.int64)
    back = np.zeros((len(rows.table), SEGMENTS), np.int64)
    values = np.full(len(rows.table), -1, np.int64)
    for r, (kind, name) in enumerate(rows.table):
        if kind not in _VALUES:
            continue
        values[r] = len(_VALUES[kind])
        for s, part in enumerate(_segments(kind, name, rank)):
            ptr[r, s] = len(data)
            data += part
        ptr[r, SEGMENTS] = len(data)
        for s, (value, _) in enumerate(_VALUES[kind], 1):
            back[r, s] = len(value) + 4  # length, tag and length of the name, the name, tag of the value
    padded = np.frombuffer(bytes(data) + bytes(PADDING), np.uint8)
    return Templates(padded, ptr, back, values, rows.of(columns))
