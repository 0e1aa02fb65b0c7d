"""Random regular graphs, and rules that choose a good one among many.

Goes in: NPUs, degree, seed.  Comes out: the cables of a connected graph, the same on every machine: draws
use only a small generator of our own, seeded through numpy's ``SeedSequence``, whose values numpy promises
never to change.

References
----------
Singla et al., Jellyfish: networking data centers randomly, NSDI 2012.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology import kernels

__all__ = ["RULES", "Rule", "draw", "first_connected"]

DRAWS = 200

Cables = NDArray[np.int32]
Rule = Callable[[int, int, int], Cables]  # (npus, degree, seed)
Score = tuple[int, int, int]


def draw(npus: int, degree: int, seed: int, number: int) -> Cables:
    """Draw ``number`` of the graphs of ``seed``: close to uniform among all regular graphs.

    A graph with more than half of all links is drawn as the complement of a sparse one, which is as
    uniform and never crowded.

    Returns
    -------
    array of int32, shape (npus * degree / 2, 2)
        Cables, each once, sorted, the lower NPU first.
    """
    stream = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
    sparse = min(degree, npus - 1 - degree)
    cables = np.sort(kernels.random_regular(npus, sparse, stream), axis=1)
    if sparse == degree:
        return cables[np.lexsort((cables[:, 1], cables[:, 0]))]
    absent = np.zeros((npus, npus), dtype=bool)
    absent[cables[:, 0], cables[:, 1]] = True
    return np.argwhere(np.triu(~absent, 1)).astype(np.int32)


def _score(npus: int, cables: Cables) -> Score:
    """(radius, diameter, sum of hops over ordered pairs); all -1 if disconnected."""
    src = np.concatenate((cables[:, 0], cables[:, 1]))
    dst = np.concatenate((cables[:, 1], cables[:, 0]))
    ptr = np.zeros(npus + 1, np.int64)
    np.cumsum(np.bincount(src, minlength=npus), out=ptr[1:])
    return kernels.path_stats(ptr, dst[np.argsort(src, kind="stable")])


def _least_hops(npus: int, degree: int) -> int:
    """Moore's bound: the least sum of hops over ordered pairs that any graph of this degree can have."""
    total, left, ring, distance = 0, npus - 1, degree, 1
    while left > 0:
        here = min(left, ring)
        total += here * distance
        left, ring, distance = left - here, ring * (degree - 1), distance + 1
    return total * npus


def first_connected(npus: int, degree: int, seed: int) -> Cables:
    """The first draw that is connected: at degree 2 about one in ``0.5 * sqrt(npus)``, else nearly any."""
    number = 0
    while True:
        cables = draw(npus, degree, seed, number)
        if _score(npus, cables)[0] > 0:
            return cables
        number += 1


def _by_radius(npus: int, degree: int, seed: int) -> Cables:
    """The draw, of 200, with the lowest (radius, diameter, average path length); the first among equals.

    Disconnected draws are no candidates; where all 200 are, the first connected one after them is taken.
    A draw that reaches Moore's bound ends the search: none is better, and later equals would lose.
    """
    best: tuple[Score, Cables] | None = None
    least = _least_hops(npus, degree)
    number = 0
    while True:
        cables = draw(npus, degree, seed, number)
        score = _score(npus, cables)
        if score[0] > 0 and (best is None or score < best[0]):
            best = (score, cables)
        number += 1
        if best and (number >= DRAWS or best[0][2] == least):
            return best[1]


RULES: dict[str, Rule] = {"radius": _by_radius}
