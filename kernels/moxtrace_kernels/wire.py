"""Bytes on the wire and in memory, in closed form: the kernels' layout without the compiled library.

A token travels once to each rank that hosts one of its experts: a header, the row and its scales. One partial
sum comes back from each. Besides, every rank sends one manifest to every rank: a bitmap over its tokens for
the rank and one for each of the rank's experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from .shape import DTYPE_BYTES, Shape

__all__ = ["Wire", "expected_ranks", "wire_of"]

_LINE = 128  # every buffer starts at a cache line of its own


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


@dataclass(frozen=True)
class Wire:
    """Sizes in bytes.

    Attributes
    ----------
    payload : int
        One row of ``x`` with its scales: what the caller handed in.
    packet : int
        What one token costs on the way out: header of 16 + 8 top_k, row, scales, each part in multiples of
        16.
    partial : int
        What one partial sum costs on the way back.
    manifest : int
        What every rank sends to every rank each epoch.
    result : int
        One combined row, sent to each other member of a DP group.
    symmetric : int
        Symmetric memory on every rank.
    """

    payload: int
    packet: int
    partial: int
    manifest: int
    result: int
    symmetric: int


def wire_of(shape: Shape) -> Wire:
    """Sizes of a shape.

    Parameters
    ----------
    shape : Shape
        What the ranks agreed on.

    Returns
    -------
    Wire
        The same numbers as the kernels' own layout (tests compare them).
    """
    combine = DTYPE_BYTES[shape.combine]
    payload = shape.hidden * DTYPE_BYTES[shape.dispatch] + (
        4 * shape.scale_blocks if shape.dispatch == "fp8" else 0
    )
    header = _up(16 + 8 * shape.top_k, 16)
    packet = _up(header + payload, 16)
    partial = _up(shape.hidden * (4 if shape.wire_fp32 else combine), 16)
    result = _up(shape.hidden * combine, 16)
    manifest = _up((1 + shape.local_experts(0)) * -(-shape.slots // 32) * 4, 16)
    slot, ranks, parts = max(packet, header + partial), shape.ranks, min(shape.top_k, shape.ranks)
    group = shape.dp > 1
    buffers = [
        shape.slots * slot,  # packets that leave
        ranks * shape.slots * slot,  # packets received
        2 * ranks * manifest,  # manifests that leave, of two epochs
        2 * ranks * manifest,  # and received
        2 * ranks * 8,  # their signals
        ranks * shape.slots * 8,  # signals of packets
        shape.slots * parts * partial,  # partial sums received
        shape.slots * parts * 8,  # their signals
        group * shape.slots * result,  # rows for the other members of the group
        group * shape.max_tokens * result,  # rows from them
        group * shape.max_tokens * 8,  # their signals
    ]
    return Wire(payload, packet, partial, manifest, result, sum(_up(size, _LINE) for size in buffers))


def expected_ranks(ranks: int, experts: int, top_k: int) -> float:
    """Ranks that a token goes to, on average, when every set of ``top_k`` experts is equally likely.

    Parameters
    ----------
    ranks, experts, top_k : int
        Experts are dealt out evenly; ``ranks`` divides ``experts``.

    Returns
    -------
    float
        ``ranks * (1 - C(experts - experts / ranks, top_k) / C(experts, top_k))``.
    """
    return ranks * (1 - comb(experts - experts // ranks, top_k) / comb(experts, top_k))
