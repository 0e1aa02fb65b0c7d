"""Networks of shifted words: de Bruijn, Kautz, and Kautz graphs of any size.  Links are one-way.

Goes in: :class:`Request`.  Comes out: :class:`Wiring`.

A word leads to every word that drops its first letter and appends one.  A word that leads to itself (of one
letter, repeated) has one link fewer; two arcs between the same NPUs are a link with two lanes.

References
----------
De Bruijn, A combinatorial problem, 1946.  Kautz, Bounds on directed (d, k) graphs, 1968.
Imase and Itoh, A design for directed graphs with minimum diameter, IEEE Trans. Computers 1983.
"""

from __future__ import annotations

import numpy as np

from moxtrace.topology.graph import MAX_NPUS
from moxtrace.topology.request import Ends, Request, Wiring, choices, nearest

__all__ = ["de_bruijn", "generalized_kautz", "kautz"]


def _without_loops(ends: Ends) -> Ends:
    return ends[ends[:, 0] != ends[:, 1]]


def _length(request: Request, letters: int, sizes: list[int]) -> int:
    """Letters in a word, given or from the number of NPUs; ``sizes[k]`` NPUs have words of k + 1 letters."""
    length = request.own["word_length"]
    if length is None:
        npus = request.need_npus()
        if npus not in sizes:
            near = nearest(npus, sizes)
            raise request.refuse(
                f"{npus} NPUs; with {letters} symbols the nearest are {choices(near)}; "
                "kind generalized-kautz has any number"
            )
        return sizes.index(npus) + 1
    if length > len(sizes):
        raise request.refuse(
            f"word_length {length} with {letters} symbols; expected at most {len(sizes)}, which gives "
            f"{sizes[-1]} NPUs"
        )
    request.sized(sizes[length - 1], f"word_length {length} and {letters} symbols give")
    return int(length)


def de_bruijn(request: Request) -> Wiring:
    """All words over ``symbols`` letters; NPU x leads to ``symbols * x + r`` for each letter r."""
    letters = request.own["symbols"]
    sizes = [letters**k for k in range(1, 13) if letters**k <= MAX_NPUS]
    length = _length(request, letters, sizes)
    npus = letters**length
    ids = np.repeat(np.arange(npus), letters)
    to = (ids * letters + np.tile(np.arange(letters), npus)) % npus
    ends = _without_loops(np.stack((ids, to), axis=1))
    return Wiring(npus, ends, one_way=True, settled={"word_length": length})


def kautz(request: Request) -> Wiring:
    """All words over ``symbols + 1`` letters in which neighbours differ, in the order of their letters."""
    letters = request.own["symbols"]
    sizes = [
        letters**k + letters ** (k - 1) for k in range(1, 13) if letters**k + letters ** (k - 1) <= MAX_NPUS
    ]
    length = _length(request, letters, sizes)
    words: list[tuple[int, ...]] = [(a,) for a in range(letters + 1)]
    for _ in range(length - 1):
        words = [(*word, a) for word in words for a in range(letters + 1) if a != word[-1]]
    number = {word: i for i, word in enumerate(words)}
    ends = [
        (i, number[(*word[1:], a)]) for word, i in number.items() for a in range(letters + 1) if a != word[-1]
    ]
    return Wiring(len(words), np.array(ends), one_way=True, settled={"word_length": length})


def generalized_kautz(request: Request) -> Wiring:
    """NPU x leads to ``-degree * x - r`` modulo the number of NPUs, for r = 1 .. degree."""
    npus, degree = request.need_npus(), request.need_degree()
    if not 1 <= degree < npus or (degree == 1 and npus > 2):
        raise request.refuse(
            f"degree {degree} and {npus} NPUs; expected 2 to {npus - 1}, the nearest: "
            f"{min(max(2, degree), npus - 1)}"
        )
    ids = np.repeat(np.arange(npus), degree)
    to = (-degree * ids - np.tile(np.arange(1, degree + 1), npus)) % npus
    return Wiring(npus, _without_loops(np.stack((ids, to), axis=1)), one_way=True)
