"""Small messages in plain Python: the pieces of a node that never vary, and ``GlobalMetadata``."""

from __future__ import annotations

__all__ = ["NUM_NODES", "attribute", "metadata", "read_metadata", "text", "varint"]

# An attribute of GlobalMetadata that our writer adds and our reader compares.  Nothing in the format says how
# many nodes follow, so a file cut between two nodes would look whole.  Other tools pass over it.
NUM_NODES = "moxtrace_num_nodes"
MAX_METADATA_BYTES = 1 << 22  # a longer one is damage; it would also take long in plain Python
UINT64 = 13  # field of AttributeProto


def varint(value: int) -> bytes:
    """``value`` (>= 0) in groups of seven bits, the lowest first."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def text(field: int, value: str) -> bytes:
    """A string field; nothing if it is empty, as proto3 has it."""
    data = value.encode()
    return varint(field << 3 | 2) + varint(len(data)) + data if data else b""


def attribute(message_field: int, name: str, field: int, value: bytes = b"") -> bytes:
    """An ``AttributeProto`` as field ``message_field`` of a message, its value in field ``field``.

    Without a value it stops where the value begins, and its length has to grow by what follows.
    """
    body = text(1, name) + varint(field << 3) + value
    return varint(message_field << 3 | 2) + varint(len(body)) + body


def metadata(version: str, nodes: int) -> bytes:
    """The first message of a file, with its length before it."""
    message = text(1, version) + attribute(2, NUM_NODES, UINT64, varint(nodes))
    return varint(len(message)) + message


def _take(data: memoryview, at: int) -> tuple[int, int]:
    """A varint and the position behind it."""
    value = 0
    for k in range(10):
        if at + k >= len(data):
            raise ValueError("the message ends inside a number")
        value |= (data[at + k] & 127) << (7 * k)
        if data[at + k] < 128:
            if value >= 2**64:
                break
            return value, at + k + 1
    raise ValueError("a number is longer than 64 bits")


def _fields(data: memoryview) -> list[tuple[int, int | memoryview]]:
    """Field numbers and values of a message: numbers, or bytes where the length is given or fixed."""
    fields: list[tuple[int, int | memoryview]] = []
    at = 0
    while at < len(data):
        begin = at
        tag, at = _take(data, at)
        field, wire = tag >> 3, tag & 7
        if at - begin > 5 or not 0 < field < 2**29:
            raise ValueError(f"found field number {field}, which protobuf does not have")
        if wire == 0:
            value, at = _take(data, at)
            fields.append((field, value))
            continue
        if wire == 2:
            size, at = _take(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"found wire type {wire}, which no Chakra file has")
        if size > len(data) - at:
            raise ValueError("a field runs past the end of the message")
        fields.append((field, data[at : at + size]))
        at += size
    return fields


def read_metadata(data: memoryview) -> tuple[int, int | None]:
    """Read the first message of a file.

    Returns
    -------
    at : int
        Where the nodes begin.
    nodes : int or None
        How many there are, where moxtrace wrote the file.

    Raises
    ------
    ValueError
        It is cut or damaged, or a ``Node``: ASTRA-sim would abort.
    """
    size, at = _take(data, 0)
    if size > min(len(data) - at, MAX_METADATA_BYTES):
        raise ValueError(f"a message of {size} bytes in a file of {len(data)}; expected a GlobalMetadata")
    nodes = None
    for field, value in _fields(data[at : at + size]):
        if (field == 1 and isinstance(value, int)) or 3 <= field <= 10:
            raise ValueError("the first message is a Node; expected a GlobalMetadata")
        if field == 2 and isinstance(value, memoryview):
            pair = dict(_fields(value))
            name, number = pair.get(1), pair.get(UINT64)
            if isinstance(name, memoryview) and name == NUM_NODES.encode() and isinstance(number, int):
                nodes = number
    return at + size, nodes
