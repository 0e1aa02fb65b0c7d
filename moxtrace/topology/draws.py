"""Seeded random orders that are the same on every machine and with every numpy.

They rank values of ``SeedSequence.generate_state``, which numpy promises never to change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["order", "ranks"]


def ranks(count: int, *key: int) -> NDArray[np.uint64]:
    """Random numbers, uint64, shape (count,), that depend on ``key`` alone."""
    return np.random.SeedSequence(key).generate_state(count, np.uint64).astype(np.uint64)


def order(count: int, *key: int) -> NDArray[np.int64]:
    """A random order of ``0 .. count - 1`` that depends on ``key`` alone, shape (count,)."""
    return np.argsort(ranks(count, *key), kind="stable")
