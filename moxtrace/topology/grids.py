"""Rings, and products of rings, paths and complete graphs.

Goes in: :class:`Request`.  Comes out: :class:`Wiring`.  NPUs of a product are numbered row-major, the last
dimension fastest.

References
----------
Camara et al., Twisted torus topologies for enhanced interconnection networks, IEEE TPDS 2010.
Jouppi et al., TPU v4, ISCA 2023: n x n x 2n and n x 2n x 2n, twisted.
Ahn et al., HyperX: topology, routing, and packaging of efficient large-scale networks, SC 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from moxtrace.topology.graph import MAX_NPUS
from moxtrace.topology.request import Ends, Request, Wiring, choices, nearest

__all__ = ["circulant", "fully_connected", "hypercube", "hyperx", "mesh", "ring", "torus", "twisted_torus"]


def _wraps(dims: Sequence[int]) -> Ends:
    """Cables of a torus; a wrap of length 2 gives its cable twice."""
    ids = np.arange(math.prod(dims)).reshape(dims)
    ends = [np.stack((ids, np.roll(ids, -1, axis)), axis=-1).reshape(-1, 2) for axis in range(len(dims))]
    return np.concatenate(ends)


def _split(npus: int, parts: int) -> tuple[int, ...] | None:
    """``npus`` as a product of ``parts`` factors of at least 2, as equal as they can be, ascending."""
    if parts == 1:
        return (npus,) if npus >= 2 else None
    found: list[tuple[int, ...]] = []
    for first in range(2, npus // 2 + 1):
        if npus % first == 0 and (rest := _split(npus // first, parts - 1)):
            found.append(tuple(sorted((first, *rest))))
    return min(found, key=lambda dims: (sum(dims), dims)) if found else None


def _dims(request: Request, least: int = 2, most: int = 3) -> tuple[int, ...]:
    """Lengths of the dimensions; without any, two that are as equal as they can be."""
    dims = request.own["dims"]
    if dims is None:
        npus = request.need_npus()
        if split := _split(npus, 2):
            return split
        near = [k for k in (npus - 1, npus + 1) if _split(k, 2)]
        raise request.refuse(
            f"{npus} NPUs make no 2-D {request.kind}, {npus} is prime; the nearest: {choices(near)}"
        )
    if not least <= len(dims) <= most:
        raise request.refuse(
            f"dims {list(dims)}; expected {choices(range(least, most + 1))} lengths of at least 2, "
            "such as [4, 4]"
        )
    fits = None if request.npus is None else _split(request.npus, len(dims))
    mend = f", or dims: {list(fits)}" if fits else ""
    request.sized(math.prod(dims), f"dims {list(dims)} hold {' x '.join(map(str, dims))} =", mend)
    return tuple(dims)


def ring(request: Request) -> Wiring:
    """One cycle."""
    npus = request.need_npus()
    return Wiring(npus, _wraps([npus]))


def torus(request: Request) -> Wiring:
    """A product of two or three rings."""
    dims = _dims(request)
    return Wiring(math.prod(dims), _wraps(dims), settled={"dims": list(dims)})


def mesh(request: Request) -> Wiring:
    """A product of paths: a torus without its wraps."""
    dims = _dims(request, 1)
    ids = np.arange(math.prod(dims)).reshape(dims)
    ends = []
    for axis in range(len(dims)):
        along = np.moveaxis(ids, axis, -1)
        ends.append(np.stack((along[..., :-1], along[..., 1:]), axis=-1).reshape(-1, 2))
    return Wiring(math.prod(dims), np.concatenate(ends), settled={"dims": list(dims)})


def _twist(request: Request, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The offset of a twisted wrap along each dimension; by default k along those that are 2k long."""
    twist = request.own["twist"]
    if twist is None:
        short = min(dims)
        if set(dims) != {short, 2 * short}:
            k = max(2, max(dims) // 2)
            usual = [k, 2 * k] if len(dims) == 2 else [k, k, 2 * k]
            raise request.refuse(
                f"dims {list(dims)} have no usual twist, which takes lengths k and 2k; give twist, or dims "
                f"such as {usual}"
            )
        return tuple(short if length == 2 * short else 0 for length in dims)
    if len(twist) != len(dims) or all(twist) or not any(twist):
        raise request.refuse(
            f"twist {list(twist)} for dims {list(dims)}; expected an offset for each dimension, 0 for those "
            "whose wraps are twisted, such as twist: [0, 4] for dims: [4, 8]"
        )
    return tuple(twist)


def twisted_torus(request: Request) -> Wiring:
    """A torus in which wraps of the dimensions with twist 0 also step by ``twist`` along the others."""
    dims = _dims(request)
    twist = _twist(request, dims)
    ids = np.arange(math.prod(dims)).reshape(dims)
    others = tuple(axis for axis, step in enumerate(twist) if step)
    ends = []
    for axis, length in enumerate(dims):
        to = np.roll(ids, -1, axis)
        if twist[axis] == 0:
            moved = np.roll(to, [-twist[other] for other in others], others)
            last = np.arange(length).reshape([-1 if a == axis else 1 for a in range(len(dims))]) == length - 1
            to = np.where(last, moved, to)
        ends.append(np.stack((ids, to), axis=-1).reshape(-1, 2))
    settled = {"dims": list(dims), "twist": list(twist)}
    return Wiring(math.prod(dims), np.concatenate(ends), settled=settled)


def hypercube(request: Request) -> Wiring:
    """NPUs whose numbers differ in one bit."""
    npus = request.need_npus()
    size = npus.bit_length() - 1
    if npus != 1 << size:
        near = nearest(npus, (1 << k for k in range(1, 13)))
        raise request.refuse(f"{npus} NPUs; expected a power of two, the nearest: {choices(near)}")
    ids = np.arange(npus)
    ends = [np.stack((ids, ids ^ (1 << k)), axis=1)[(ids >> k) & 1 == 0] for k in range(size)]
    return Wiring(npus, np.concatenate(ends))


def circulant(request: Request) -> Wiring:
    """NPU i beside i + offset, for each offset; n / 2 gives one cable to a pair, others two to an NPU."""
    npus, offsets = request.need_npus(), request.own["offsets"]
    if offsets is None:
        raise request.refuse("offsets are missing; give the steps of the chords, such as offsets: [1, 4]")
    most = npus // 2
    odd = [k for k in offsets if k > most] or [k for k in offsets if list(offsets).count(k) > 1]
    if odd:
        raise request.refuse(
            f"offsets {list(offsets)}: {odd[0]}; expected different steps from 1 to {most}, half the ring"
        )
    if (common := math.gcd(npus, *offsets)) > 1:
        raise request.refuse(
            f"offsets {list(offsets)} and {npus} NPUs share the factor {common}, which leaves {common} "
            "separate parts; the nearest: add offset 1"
        )
    ids = np.arange(npus)
    ends = [
        np.stack((ids, (ids + k) % npus), axis=1)[: npus // 2 if 2 * k == npus else npus] for k in offsets
    ]
    return Wiring(npus, np.concatenate(ends))


def fully_connected(request: Request) -> Wiring:
    """Every pair."""
    npus = request.need_npus()
    return Wiring(npus, np.stack(np.triu_indices(npus, 1), axis=1))


def hyperx(request: Request) -> Wiring:
    """A product of complete graphs, each dimension with its own number of cables per pair."""
    dims = _dims(request, 1, MAX_NPUS.bit_length() - 1)
    lanes = request.own["dim_lanes"] or [1] * len(dims)
    if len(lanes) != len(dims):
        raise request.refuse(
            f"dim_lanes {list(lanes)} for dims {list(dims)}; expected one number for each dimension"
        )
    ids = np.arange(math.prod(dims)).reshape(dims)
    ends = []
    for axis, length in enumerate(dims):
        low, high = np.triu_indices(length, 1)
        rows = np.moveaxis(ids, axis, -1)
        pairs = np.stack((rows[..., low], rows[..., high]), axis=-1).reshape(-1, 2)
        ends.append(np.repeat(pairs, lanes[axis], axis=0))
    settled = {"dims": list(dims), "dim_lanes": list(lanes)}
    return Wiring(math.prod(dims), np.concatenate(ends), settled=settled)
