"""Lubotzky-Phillips-Sarnak graphs: Ramanujan, of degree p + 1, for primes p and q that are 1 modulo 4.

Goes in: :class:`Request`.  Comes out: :class:`Wiring`.

NPUs are 2 x 2 matrices over the field of q, up to a factor: those whose determinant is a square where p is
one (q (q^2 - 1) / 2 of them), else all (q (q^2 - 1), bipartite).  They are numbered in the order of their
entries, scaled so that the first that is not 0 is 1.  Matrix M is linked with M g for the p + 1 matrices g
that stand for the sums a^2 + b^2 + c^2 + d^2 = p with a > 0 odd and b, c, d even.

References
----------
Lubotzky, Phillips and Sarnak, Ramanujan graphs, Combinatorica 1988.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology.graph import MAX_NPUS
from moxtrace.topology.request import Request, Wiring, choices, nearest

__all__ = ["lps"]

Matrices = NDArray[np.int64]


def _is_prime(k: int) -> bool:
    return k > 1 and all(k % i for i in range(2, int(k**0.5) + 1))


def _size(p: int, q: int) -> int:
    """NPUs of the graph: half as many where p is a square modulo q."""
    return q * (q * q - 1) // (2 if pow(p, (q - 1) // 2, q) == 1 else 1)


def _possible() -> dict[tuple[int, int], int]:
    """(p, q) -> NPUs, of all graphs that fit."""
    primes = [k for k in range(5, 72) if k % 4 == 1 and _is_prime(k)]
    pairs = {(p, q): _size(p, q) for q in primes for p in primes if p != q and q * q > 4 * p}
    return {pair: npus for pair, npus in pairs.items() if npus <= MAX_NPUS}


def _scaled(matrices: Matrices, q: int) -> Matrices:
    """Entries (a, b, c, d), shape (n, 4), divided by the first that is not 0."""
    inverse = np.array([0, *(pow(k, -1, q) for k in range(1, q))])
    lead = matrices[np.arange(len(matrices)), (matrices != 0).argmax(axis=1)]
    return matrices * inverse[lead][:, None] % q


def _keys(matrices: Matrices, q: int) -> NDArray[np.int64]:
    return matrices @ q ** np.arange(3, -1, -1)


def _generators(p: int, q: int) -> Matrices:
    """The p + 1 matrices of norm p."""
    root = next(x for x in range(q) if x * x % q == q - 1)
    most = int(p**0.5)
    found = [
        (a + root * b, c + root * d, -c + root * d, a - root * b)
        for a in range(1, most + 1, 2)
        for b, c, d in product(range(-(most // 2) * 2, most + 1, 2), repeat=3)
        if a * a + b * b + c * c + d * d == p
    ]
    return _scaled(np.array(found) % q, q)


def lps(request: Request) -> Wiring:
    """A Cayley graph of PSL(2, q), or of PGL(2, q)."""
    p, q = request.only(("p", "q"))
    possible = _possible()
    if p is None or q is None:
        npus = request.need_npus()
        fits = [pair for pair, size in possible.items() if size == npus and p in (None, pair[0])]
        if not fits:
            some = ", ".join(f"{size} (p {a}, q {b})" for (a, b), size in sorted(possible.items())[:4])
            near = choices(nearest(npus, possible.values()))
            raise request.refuse(f"{npus} NPUs; expected a size such as {some}; the nearest: {near}")
        p, q = fits[0]
    if (p, q) not in possible:
        fit = min(possible, key=lambda pair: (abs(pair[1] - q), abs(pair[0] - p)))
        raise request.refuse(
            f"p {p} and q {q}; expected different primes, 1 modulo 4, q above 2 sqrt(p) and at most "
            f"{MAX_NPUS} NPUs; the nearest: p {fit[0]} and q {fit[1]}"
        )
    npus = request.sized(possible[p, q], f"p {p} and q {q} give")
    every = np.stack(np.unravel_index(np.arange(q**4), (q,) * 4), axis=1)
    lead = every[np.arange(len(every)), (every != 0).argmax(axis=1)]
    determinant = (every[:, 0] * every[:, 3] - every[:, 1] * every[:, 2]) % q
    squares = np.isin(determinant, np.arange(1, q) ** 2 % q)
    kept = every[(lead == 1) & (squares if 2 * npus == q * (q * q - 1) else determinant != 0)]
    keys, ids = _keys(kept, q), np.arange(npus)
    a, b, c, d = kept.T
    ends = []
    for e, f, g, h in _generators(p, q):
        to = np.stack((a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h), axis=1) % q
        ends.append(np.stack((ids, np.searchsorted(keys, _keys(_scaled(to, q), q))), axis=1))
    both = np.sort(np.concatenate(ends), axis=1)  # every cable, once from each end
    return Wiring(npus, np.unique(both, axis=0), settled={"p": p, "q": q})
