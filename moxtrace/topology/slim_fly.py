"""Slim Fly: McKay-Miller-Siran graphs, of diameter 2 and near Moore's bound.

Goes in: :class:`Request`.  Comes out: :class:`Wiring`.

``q = 4w + delta`` is a prime power, delta -1, 0 or 1; there are 2 q^2 NPUs of degree (3 q - delta) / 2.  NPU
``x * q + y`` is (0, x, y) and ``q^2 + m * q + c`` is (1, m, c); x, y, m, c are elements of the field of q,
numbered by their coefficients in base p.

References
----------
Besta and Hoefler, Slim Fly: a cost effective low-diameter network topology, SC 2014.
Hafner, Geometric realisation of the graphs of McKay-Miller-Siran, J. Comb. Theory B 2004.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology.graph import MAX_NPUS
from moxtrace.topology.request import Request, Wiring, choices, nearest

__all__ = ["slim_fly"]

Table = NDArray[np.int64]


def _prime_of(q: int) -> int | None:
    """The prime of which ``q`` is a power."""
    prime = next(k for k in range(2, q + 1) if q % k == 0)
    rest = q
    while rest % prime == 0:
        rest //= prime
    return prime if rest == 1 else None


def _times(a: int, b: int, p: int, lower: tuple[int, ...]) -> int:
    """Product of two elements modulo ``x^k + lower[k-1] x^(k-1) + ... + lower[0]`` over the field of p."""
    k = len(lower)
    digits = [0] * (2 * k - 1)
    for i, j in product(range(k), range(k)):
        digits[i + j] += a // p**i % p * (b // p**j % p)
    for top in range(2 * k - 2, k - 1, -1):
        for i in range(k):
            digits[top - k + i] -= digits[top] * lower[i]
    return sum(d % p * p**i for i, d in enumerate(digits[:k]))


def _field(q: int, p: int) -> tuple[Table, Table, list[int]]:
    """Sums and products, both shape (q, q), and the powers of a generator: the first polynomial with one.

    A polynomial modulo which some element has all q - 1 powers makes a field.
    """
    k = round(np.log(q) / np.log(p))
    places = p ** np.arange(k)
    digits = np.arange(q)[:, None] // places % p
    plus = ((digits[:, None] + digits[None]) % p) @ places
    for lower in product(range(p), repeat=k):
        for generator in range(2 if q > 2 else 1, q):
            powers = [1]
            while (power := _times(powers[-1], generator, p, lower)) not in powers:
                powers.append(power)
            if len(powers) == q - 1 and power == 1:
                index = {e: i for i, e in enumerate(powers)}
                times = np.zeros((q, q), np.int64)
                for a, b in product(powers, powers):
                    times[a, b] = powers[(index[a] + index[b]) % (q - 1)]
                return plus, times, powers
    raise AssertionError(f"no field of {q} elements")


def _generators(q: int, powers: list[int]) -> tuple[list[int], list[int]]:
    """The two sets of differences that link NPUs of one row."""
    w, delta = (q + 1) // 4, {0: 0, 1: 1, 3: -1}[q % 4]
    if delta >= 0:  # even and odd powers; of 4w elements, 1 is both
        return powers[0::2], [powers[i % (q - 1)] for i in range(1, q, 2)]
    half, end = 2 * w - 1, 4 * w - 2
    even = [*range(0, half, 2), *range(half, end, 2)]
    odd = [*range(1, half + 1, 2), *range(half + 1, end + 1, 2)]
    return [powers[i % (q - 1)] for i in even], [powers[i % (q - 1)] for i in odd]


def slim_fly(request: Request) -> Wiring:
    """Two sets of q rows: NPUs of a row by their difference, of different sets where y = m x + c."""
    q = request.own["prime_power"]
    possible = [k for k in range(3, 46) if _prime_of(k) and k % 4 != 2 and 2 * k * k <= MAX_NPUS]
    if q is None:
        npus = request.need_npus()
        sizes = [2 * k * k for k in possible]
        if npus not in sizes:
            near = choices(nearest(npus, sizes))
            raise request.refuse(f"{npus} NPUs; expected 2 q^2 for a prime power q, the nearest: {near}")
        q = possible[sizes.index(npus)]
    if q not in possible:
        lower, upper = [k for k in possible if k < q][-1:], [k for k in possible if k > q][:1]
        raise request.refuse(
            f"prime_power {q}; expected a prime power from 3 to 43, the nearest: {choices(lower + upper)}"
        )
    npus = request.sized(2 * q * q, f"prime_power {q} gives")
    plus, times, powers = _field(q, _prime_of(q) or q)
    ids = np.arange(q * q).reshape(q, q)
    ends = []
    for base, differences in zip((0, q * q), _generators(q, powers), strict=True):
        for d in differences:
            ends.append(np.stack((ids, ids[:, plus[d]]), axis=-1).reshape(-1, 2) + base)
    rows = np.concatenate(ends)
    m, c = np.divmod(np.arange(q * q), q)
    cross = [np.stack((x * q + plus[times[m, x], c], q * q + m * q + c), axis=1) for x in range(q)]
    # a difference and its opposite give the same cable twice
    rows = np.unique(np.sort(rows, axis=1), axis=0)
    return Wiring(npus, np.concatenate((rows, *cross)), settled={"prime_power": q})
