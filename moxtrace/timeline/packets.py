"""Perfetto's packets in bytes: a small protobuf encoder, for single messages and for columns of them.

Events come by the million and differ in a few numbers only.  Protobuf lets a number be written with more
bytes than it needs, so all events of a kind get one length, and numpy writes them as rows of a table.

References
----------
``protos/perfetto/trace/trace_packet.proto``, ``track_event.proto``, ``track_descriptor.proto``,
``counter_descriptor.proto`` and ``interned_data.proto`` of Perfetto 59.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.wire.messages import varint

__all__ = ["Digits", "Number", "Template", "message", "packet"]

PACKET = 1  # field of Trace
VARINT, BYTES = 0, 2


@dataclass(frozen=True)
class Number:
    """A place for a number below ``2**(7 * width)`` that every row has its own of."""

    column: str
    width: int


@dataclass(frozen=True)
class Digits:
    """Text with a place for a decimal number of so many digits: ``PREFIX000123``."""

    prefix: str
    column: str
    width: int


# a value of a field: a number, text, bytes, a place for one, or the fields of an inner message
Value = Union[int, str, bytes, Number, Digits, "Fields"]
Fields = Sequence[tuple[int, Value]]


@dataclass(frozen=True)
class _Slot:
    at: int
    what: Number | Digits


def _encode(fields: Fields) -> tuple[bytes, list[_Slot]]:
    """A message, zero where its places are, and those places."""
    out, slots = bytearray(), []
    for number, value in fields:
        if isinstance(value, (int, Number)):
            out += varint(number << 3 | VARINT)
            if isinstance(value, int):
                out += varint(value)
                continue
            slots.append(_Slot(len(out), value))
            out += bytes(value.width)
            continue
        inner: list[_Slot] = []
        if isinstance(value, bytes):
            body = value
        elif isinstance(value, str):
            body = value.encode()
        elif isinstance(value, Digits):
            head = value.prefix.encode()
            body = head + bytes(value.width)
            inner = [_Slot(len(head), value)]
        else:
            body, inner = _encode(value)
        out += varint(number << 3 | BYTES) + varint(len(body))
        slots += [_Slot(len(out) + slot.at, slot.what) for slot in inner]
        out += body
    return bytes(out), slots


def message(fields: Fields) -> bytes:
    """Encode one message without places.

    Parameters
    ----------
    fields : sequence of (field number, value)
    """
    return _encode(fields)[0]


def packet(fields: Fields) -> bytes:
    """Encode one packet of a trace.

    Parameters
    ----------
    fields : sequence of (field number, value)
    """
    return message([(PACKET, fields)])


class Template:
    """A packet with places, written once for every row of some columns.

    Parameters
    ----------
    fields : sequence of (field number, value)
    """

    def __init__(self, fields: Fields) -> None:
        encoded, self._slots = _encode([(PACKET, fields)])
        self._row = np.frombuffer(encoded, np.uint8)

    @property
    def width(self) -> int:
        """Bytes of a packet."""
        return len(self._row)

    def rows(self, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
        """The packets, shape (rows, width).

        Parameters
        ----------
        columns : mapping of str to array of int, shape (rows,)
            Numbers for the places, by their names; each fits its place.
        """
        count = len(next(iter(columns.values())))
        rows = np.tile(self._row, (count, 1))
        for slot in self._slots:
            values, width = columns[slot.what.column].astype(np.uint64), slot.what.width
            place = rows[:, slot.at : slot.at + width]
            if isinstance(slot.what, Digits):
                for k in range(width - 1, -1, -1):
                    place[:, k] = values % np.uint64(10) + np.uint64(ord("0"))
                    values //= np.uint64(10)
                continue
            for k in range(width):  # groups of seven bits, the lowest first; the last without its mark
                place[:, k] = values & np.uint64(127) | np.uint64(128 if k < width - 1 else 0)
                values >>= np.uint64(7)
        return rows
