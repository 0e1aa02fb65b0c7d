"""Slow twins of the Chakra wire format and of the checks: plain Python, one node at a time.

The format is encoded and decoded from its description (field numbers of et_def.proto, protobuf's encoding);
:func:`messages` has protobuf itself do it, from the same field table.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from functools import cache
from types import SimpleNamespace

import numpy as np

from moxtrace.chakra.trace import COLL, COMP, RECV, SEND, Trace

NAMES = {COMP: "comp", SEND: "send", RECV: "recv", COLL: "coll"}
VARINT = {7: "int32", 9: "int64", 11: "uint32", 13: "uint64", 15: "sint32", 17: "sint64", 27: "bool"}
FIXED32 = {5: "<f", 19: "<I", 23: "<i"}
FIXED64 = {3: "<d", 21: "<Q", 25: "<q"}


class BadFileError(Exception):
    """A file that must be refused."""


@cache
def messages():
    """``GlobalMetadata`` and ``Node`` as protobuf classes, in a pool of their own."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="twin.proto", package="twin", syntax="proto3")
    types = {
        "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8,
        "string": 9, "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
    }  # fmt: skip

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            added = made.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in types:
                added.type = types[kind]
            else:
                added.type, added.type_name = 11, f".twin.{kind}"
        return made

    kinds = [
        "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
        "sfixed32", "sfixed64", "bool", "string", "bytes",
    ]  # fmt: skip
    attribute = message("Attribute", (1, "name", "string", 0), (2, "doc_string", "string", 0))
    attribute.oneof_decl.add(name="value")
    for i, kind in enumerate(kinds):
        message(f"{kind}_list", (1, "values", kind, 1))
        one = attribute.field.add(name=f"{kind}_val", number=3 + 2 * i, label=1, type=types[kind])
        many = attribute.field.add(name=f"{kind}_list", number=4 + 2 * i, label=1, type=11)
        many.type_name = f".twin.{kind}_list"
        one.oneof_index = many.oneof_index = 0
    message("GlobalMetadata", (1, "version", "string", 0), (2, "attr", "Attribute", 1))
    message("IOInfo", (1, "values", "string", 0), (2, "shapes", "string", 0), (3, "types", "string", 0))
    message(
        "Node",
        (1, "id", "uint64", 0), (2, "name", "string", 0), (3, "type", "int32", 0),
        (4, "ctrl_deps", "uint64", 1), (5, "data_deps", "uint64", 1),
        (6, "start_time_micros", "uint64", 0), (7, "duration_micros", "uint64", 0),
        (8, "inputs", "IOInfo", 0), (9, "outputs", "IOInfo", 0), (10, "attr", "Attribute", 1),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = message_factory.GetMessageClass
    return SimpleNamespace(
        metadata=make(pool.FindMessageTypeByName("twin.GlobalMetadata")),
        node=make(pool.FindMessageTypeByName("twin.Node")),
    )


def node_values(trace: Trace, rank: int, i: int) -> list[tuple[str, str, int]]:
    """Attributes of a node after is_cpu_op, in the order of writing: name, type, value."""
    kind, peer, tag, amount = (int(c[i]) for c in (trace.kind, trace.peer, trace.tag, trace.amount))
    if kind in (SEND, RECV):
        src, dst = (rank, peer) if kind == SEND else (peer, rank)
        return [
            ("comm_src", "uint32", src),
            ("comm_dst", "uint32", dst),
            ("comm_size", "uint64", amount),
            ("comm_tag", "uint32", tag),
        ]
    if kind == COLL:
        return [("comm_type", "int64", peer), ("comm_size", "int64", amount)]
    at = np.flatnonzero(trace.ops_node == i)
    if not len(at):
        return []
    return [
        ("num_ops", "uint64", int(trace.num_ops[at[0]])),
        ("tensor_size", "uint64", int(trace.tensor_size[at[0]])),
    ]


def deps(trace: Trace, rank: int, i: int) -> list[int]:
    """Ids of a node's dependencies."""
    base = trace.rank_ptr[rank]
    return [int(trace.node_id[base + d]) for d in trace.dep[trace.dep_ptr[i] : trace.dep_ptr[i + 1]]]


def protobuf_file(trace: Trace, rank: int, version: str = "0.0.4", names=None, node_names=None) -> bytes:
    """A rank's file as protobuf writes it."""
    types = messages()
    head = types.metadata(version=version)
    nodes = range(trace.rank_ptr[rank], trace.rank_ptr[rank + 1])
    head.attr.add(name="moxtrace_num_nodes", uint64_val=len(nodes))
    out = [head]
    for i in nodes:
        kind, ident = int(trace.kind[i]), int(trace.node_id[i])
        name = (node_names or {}).get(ident, {**NAMES, **(names or {})}[kind])
        node = types.node(id=ident, name=name, type=kind, data_deps=deps(trace, rank, i))
        if kind == COMP:
            node.duration_micros = int(trace.amount[i])
        node.attr.add(name="is_cpu_op", bool_val=False)
        for attr, type_name, value in node_values(trace, rank, i):
            node.attr.add(name=attr, **{f"{type_name}_val": value})
        out.append(node)
    return b"".join(frame(m.SerializeToString(deterministic=True)) for m in out)


def varint(value: int) -> bytes:
    out = b""
    value &= 2**64 - 1
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def frame(message: bytes) -> bytes:
    return varint(len(message)) + message


def chunk(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + frame(data)


def encode(trace: Trace, rank: int) -> bytes:
    """A rank's file, built byte by byte."""
    nodes = range(trace.rank_ptr[rank], trace.rank_ptr[rank + 1])
    count = chunk(1, b"moxtrace_num_nodes") + varint(13 << 3) + varint(len(nodes))
    out = frame(chunk(1, b"0.0.4") + chunk(2, count))
    numbers = {name: field for field, name in VARINT.items()}
    for i in nodes:
        kind = int(trace.kind[i])
        node = varint(1 << 3) + varint(int(trace.node_id[i])) if trace.node_id[i] else b""
        node += chunk(2, NAMES[kind].encode()) + varint(3 << 3) + varint(kind)
        packed = b"".join(varint(d) for d in deps(trace, rank, i))
        node += chunk(5, packed) if packed else b""
        if kind == COMP and trace.amount[i]:
            node += varint(7 << 3) + varint(int(trace.amount[i]))
        for name, type_name, value in [("is_cpu_op", "bool", 0), *node_values(trace, rank, i)]:
            node += chunk(10, chunk(1, name.encode()) + varint(numbers[type_name] << 3) + varint(value))
        out += frame(node)
    return out


class Bytes:
    """A cursor over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def more(self) -> bool:
        return self.at < len(self.data)

    def varint(self) -> int:
        value = 0
        for k in range(10):
            byte = self.take(1)[0]
            value |= (byte & 127) << 7 * k
            if byte < 128:
                if value >= 2**64:
                    raise BadFileError("varint")
                return value
        raise BadFileError("varint")

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise BadFileError("cut")
        self.at += size
        return self.data[self.at - size : self.at]

    def fields(self):
        """(field, wire type, number or bytes)."""
        while self.more():
            begin = self.at
            tag = self.varint()
            if self.at - begin > 5 or not 0 < tag >> 3 < 2**29:
                raise BadFileError("tag")
            wire = tag & 7
            if wire == 0:
                yield tag >> 3, wire, self.varint()
            elif wire in (1, 2, 5):
                yield tag >> 3, wire, self.take(self.varint() if wire == 2 else 8 if wire == 1 else 4)
            else:
                raise BadFileError("wire type")


def integer(field: int, wire: int, value) -> int | str | None:
    """What a field of AttributeProto puts into the oneof: a number, "other", or None if it is unknown."""
    if wire == 0 and field in VARINT:
        low = value & 0xFFFFFFFF
        return {
            7: low - (low >> 31 << 32),
            9: value - (value >> 63 << 64),
            11: low,
            13: value,
            15: (low >> 1) ^ -(low & 1),
            17: (value >> 1) ^ -(value & 1),
            27: int(value != 0),
        }[field]
    formats = {5: FIXED32, 1: FIXED64}.get(wire, {})
    if field in formats:
        number = struct.unpack(formats[field], value)[0]
        return number if isinstance(number, int) else "other"
    if wire == 2 and (field in (29, 31) or (4 <= field <= 32 and field % 2 == 0)):
        return "other"
    return None


def decode_node(data: bytes) -> dict:
    node = {"id": 0, "type": 0, "duration": 0, "deps": [], "attr": {}}
    for field, wire, value in Bytes(data).fields():
        if field == 10 and wire == 2:
            name, holds = None, "other"
            for f, w, v in Bytes(value).fields():
                if f == 1 and w == 2:
                    name = v
                elif (found := integer(f, w, v)) is not None:
                    holds = found
            node["attr"].setdefault(name, holds)
        elif field in (4, 5) and wire == 2:
            packed = Bytes(value)
            while packed.more():
                node["deps"].append(packed.varint())
        elif field in (4, 5) and wire == 0:
            node["deps"].append(value)
        elif wire == 0 and field in (1, 3, 7):
            node[{1: "id", 3: "type", 7: "duration"}[field]] = value
    node["type"] &= 0xFFFFFFFF
    return node


def refuse(when: bool, why: str) -> None:
    if when:
        raise BadFileError(why)


def judge(node: dict, rank: int, ranks: int) -> tuple[int, int, int, tuple[int, int] | None]:
    """Peer, tag, amount and (num_ops, tensor_size) of a node."""
    kind = node["type"]
    attr = {name.decode(): v for name, v in node["attr"].items() if name and name.isascii()}
    refuse(kind not in (COMP, SEND, RECV, COLL), "kind")
    refuse(attr.get("is_cpu_op", 0) not in (0, "other"), "cpu")
    refuse(node["id"] >= 2**63, "id")
    if kind == COMP:
        refuse(node["duration"] > 2**62 // 1000, "duration")
        ops = [attr.get(n, 0) for n in ("num_ops", "tensor_size")]
        refuse(any(v == "other" or v < 0 for v in ops), "ops")
        ops = [min(v, 2**63 - 1) for v in ops]
        return -1, 0, node["duration"], tuple(ops) if "num_ops" in attr else None
    for name in ("comm_src", "comm_dst", "comm_size", "comm_tag", "comm_type"):
        refuse(attr.get(name) == "other", name)
    size = attr.get("comm_size", -1)
    refuse(not 0 <= size <= 2**62, "size")
    if kind == COLL:
        refuse(not 0 <= attr.get("comm_type", -1) <= 9, "comm_type")
        return attr["comm_type"], 0, size, None
    refuse(size == 0, "size")
    own, other = ("comm_src", "comm_dst") if kind == SEND else ("comm_dst", "comm_src")
    refuse(attr.get(own, rank) != rank, own)
    peer, tag = attr.get(other, -1), attr.get("comm_tag", -1)
    refuse(not 0 <= peer < ranks or peer == rank, other)
    refuse(not 0 <= tag < 2**31, "tag")
    return peer, tag, size, None


def decode(files: list[bytes]) -> dict[str, list[int]]:
    """Columns of all ranks, as lists; raises :class:`BadFileError` where the reader must raise."""
    out = defaultdict(list, rank_ptr=[0], dep_ptr=[0])
    for rank, data in enumerate(files):
        rest = Bytes(data)
        head = rest.take(rest.varint())
        expected = None
        for field, wire, value in Bytes(head).fields():
            refuse(3 <= field <= 10 or (field == 1 and wire == 0), "metadata")
            if field == 2 and wire == 2:
                pair = {f: (w, v) for f, w, v in Bytes(value).fields()}
                if pair.get(1) == (2, b"moxtrace_num_nodes") and pair.get(13, (None,))[0] == 0:
                    expected = pair[13][1]
        nodes = []
        while rest.more():
            begin = rest.at
            size = rest.varint()
            refuse(rest.at - begin > 5, "length")
            nodes.append(decode_node(rest.take(size)))
        refuse(not nodes or expected not in (None, len(nodes)), "number of nodes")
        position = {node["id"]: at for at, node in enumerate(nodes)}
        for node in nodes:
            peer, tag, amount, ops = judge(node, rank, len(files))
            if ops:
                out["ops_node"].append(len(out["node_id"]))
                out["num_ops"].append(ops[0])
                out["tensor_size"].append(ops[1])
            for name, value in zip(
                ("node_id", "kind", "peer", "tag", "amount"),
                (node["id"], node["type"], peer, tag, amount),
                strict=True,
            ):
                out[name].append(value)
            refuse(node["id"] in node["deps"], "self dependency")
            refuse(any(d not in position for d in node["deps"]), "unknown dependency")
            out["dep"] += [position[d] for d in dict.fromkeys(node["deps"])]
            out["dep_ptr"].append(len(out["dep"]))
        refuse(len(position) != len(nodes), "duplicate id")
        out["rank_ptr"].append(len(out["node_id"]))
    return out


def same(trace: Trace, columns: dict[str, list[int]]) -> bool:
    """Whether a trace holds exactly these columns."""
    return all(getattr(trace, name).tolist() == columns[name] for name in Trace.__dataclass_fields__)


def faults(trace: Trace) -> dict[str, int]:
    """Number of problems by kind, from counting messages and peeling leaves."""
    sends, recvs = Counter(), Counter()
    queue = defaultdict(list)
    for rank in range(trace.num_ranks):
        for i in range(trace.rank_ptr[rank], trace.rank_ptr[rank + 1]):
            peer, tag, amount = int(trace.peer[i]), int(trace.tag[i]), int(trace.amount[i])
            if trace.kind[i] == SEND:
                sends[rank, peer, tag, amount] += 1
                queue[rank, peer, tag, amount].append(i)
            elif trace.kind[i] == RECV:
                recvs[peer, rank, tag, amount] += 1
    left, over = sends - recvs, recvs - sends
    totals = defaultdict(lambda: [0, 0])
    for (src, dst, tag, _), number in left.items():
        totals[src, dst, tag][0] += number
    for (src, dst, tag, _), number in over.items():
        totals[src, dst, tag][1] += number
    return {
        "no recv": sum(max(0, a - b) for a, b in totals.values()),
        "no send": sum(max(0, b - a) for a, b in totals.values()),
        "mismatch": sum(min(a, b) for a, b in totals.values()),
        "ambiguous": sum(n - 1 for n in sends.values()),
        "cyclic": len(on_cycles(trace, queue)),
    }


def on_cycles(trace: Trace, queue) -> set[int]:
    """Nodes that can never start: what is left when nodes that wait for nothing are taken away."""
    waits = {}
    for rank in range(trace.num_ranks):
        base = int(trace.rank_ptr[rank])
        for i in range(base, trace.rank_ptr[rank + 1]):
            waits[i] = {base + int(d) for d in trace.dep[trace.dep_ptr[i] : trace.dep_ptr[i + 1]]}
            if trace.kind[i] == RECV:
                key = int(trace.peer[i]), rank, int(trace.tag[i]), int(trace.amount[i])
                if queue[key]:
                    waits[i].add(queue[key].pop(0))
    while free := [i for i, on in waits.items() if not on & waits.keys()]:
        for i in free:
            del waits[i]
    return set(waits)
