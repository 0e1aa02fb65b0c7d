"""Slow twins of moxtrace.sampling: everything by listing all subsets."""

import math
from itertools import combinations


def set_chances(weights, top_k):
    """Chance of every set of ``top_k`` experts under conditional Poisson sampling, as a dict."""
    mass = {s: math.prod(weights[e] for e in s) for s in combinations(range(len(weights)), top_k)}
    total = math.fsum(mass.values())
    return {s: m / total for s, m in mass.items()}


def marginals(chances, num_experts):
    """Inclusion probability of each expert."""
    return [math.fsum(c for s, c in chances.items() if e in s) for e in range(num_experts)]


def touch(chances, members):
    """Chance that a set holds one of ``members``."""
    return math.fsum(c for s, c in chances.items() if set(s) & set(members))


def draw_row(chances, uniform):
    """The set that the uniform numbers of one token mean: each next expert by its conditional chance.

    The next expert is the last ``m`` such that it is ``m`` or later with a chance of ``1 - u`` or more.
    """
    chosen = ()
    for u in uniform:
        alike = {s: c for s, c in chances.items() if s[: len(chosen)] == chosen}
        total = math.fsum(alike.values())
        after = {m: math.fsum(c for s, c in alike.items() if s[len(chosen)] >= m) / total for m in
                 {s[len(chosen)] for s in alike}}  # fmt: skip
        chosen += (max(m for m, chance in after.items() if chance >= 1 - u),)
    return list(chosen)


def floyd_row(num_experts, uniform):
    """Distinct experts by Floyd's method."""
    chosen = set()
    for k, u in enumerate(uniform):
        last = num_experts - len(uniform) + k
        pick = int(u * (last + 1))
        chosen.add(last if pick in chosen else pick)
    return sorted(chosen)


def clipped(counts, top_k):
    """Inclusion probabilities under clipping, by raising the common factor until they sum to ``top_k``."""
    low, high = 0.0, top_k / min(c for c in counts if c > 0)
    for _ in range(200):
        middle = (low + high) / 2
        if math.fsum(min(1.0, middle * c) for c in counts) < top_k:
            low = middle
        else:
            high = middle
    return [min(1.0, high * c) for c in counts]
