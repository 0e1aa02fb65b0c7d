"""Random regular graphs, and rules that choose a good one among many.

Goes in: NPUs, degree, seed.  Comes out: the cables of a connected graph, the same on every machine: draws
use only a small generator of our own, seeded through numpy's ``SeedSequence``, whose values numpy promises
never to change.

References
----------
Singla et al., Jellyfish: networking data centers randomly, NSDI 2012.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology import kernels

__all__ = ["anneal", "by_radius", "draw", "first_connected", "is_connected"]

log = logging.getLogger(__name__)

DRAWS = 200
HEAT = 2.0  # at which annealing starts, in units of its score

Cables = NDArray[np.int32]
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


def by_radius(npus: int, degree: int, seed: int) -> Cables:
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


def is_connected(npus: int, cables: Cables) -> bool:
    """Whether every NPU reaches every other."""
    return bool(_score(npus, cables)[0] > 0)


def anneal(npus: int, degree: int, seed: int, proposals: int) -> tuple[Cables, dict[str, Any]]:
    """The plain draw, annealed for ``3 * triangles + 0.5 * pairs at distance > 2``.

    Triangles and distant pairs go with a busier busiest link and more relays.  The best connected graph
    met on the way is returned.  Where more than half of all links are there, hardly a token needs a relay and
    triangles give balance, so a graph is chosen by :func:`by_radius`.

    Parameters
    ----------
    npus, degree, seed : int
    proposals : int
        Swaps of two cables' ends that are tried.

    Returns
    -------
    cables : array of int32, shape (npus * degree / 2, 2)
    won : dict
        ``proposals``, and before and after: ``score``, ``triangles``, ``pairs_beyond_2_hops``; empty where
        nothing was annealed.
    """
    if 2 * degree > npus - 1:
        log.info("expander of %d NPUs, degree %d: more than half of all links, not annealed", npus, degree)
        return by_radius(npus, degree, seed), {}
    cables = first_connected(npus, degree, seed).copy()
    stream = np.random.SeedSequence([seed, npus, degree]).generate_state(1, np.uint64)[0]
    counts = [int(x) for x in kernels.anneal(cables, npus, proposals, HEAT, stream)]
    won: dict[str, Any] = {"proposals": proposals}
    for name, (before, after) in {
        "score": (counts[0] / 2, counts[2] / 2),
        "triangles": (counts[1], counts[3]),
        "pairs_beyond_2_hops": (counts[0] - 6 * counts[1], counts[2] - 6 * counts[3]),
    }.items():
        won[name] = [before, after]
    log.info("expander of %d NPUs, degree %d: annealed, %s", npus, degree, won)
    cables = np.sort(cables, axis=1)
    return cables[np.lexsort((cables[:, 1], cables[:, 0]))], won
