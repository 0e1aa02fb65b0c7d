"""Distinct rows of a demand: tokens of one source with the same destinations need the same trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moxtrace.demand import Demand

__all__ = ["Rows", "distinct_rows"]


@dataclass(frozen=True, eq=False)
class Rows:
    """Distinct (source, destination set) pairs, and how many tokens share each.

    Parameters
    ----------
    source : array of int32, shape (rows,)
        Ascending.
    ptr : array of int64, shape (rows + 1,)
        Destinations of row ``q`` are ``dest[ptr[q] : ptr[q + 1]]``; there is at least one.
    dest : array of int32
    count : array of int64, shape (rows,)
        Tokens that each row stands for.
    """

    source: NDArray[np.int32]
    ptr: NDArray[np.int64]
    dest: NDArray[np.int32]
    count: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.source)

    @property
    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """What kernels take."""
        return self.source, self.ptr, self.dest, self.count

    @property
    def size(self) -> NDArray[np.int64]:
        """Destinations of each row."""
        return np.diff(self.ptr)

    def taken(self, which: NDArray[np.integer]) -> Rows:
        """Some of the rows, in the order given."""
        size = self.size[which]
        ptr = np.concatenate(([0], np.cumsum(size)))
        entry = np.arange(ptr[-1]) + np.repeat(self.ptr[which] - ptr[:-1], size)
        return Rows(self.source[which], ptr, self.dest[entry], self.count[which])


def distinct_rows(demand: Demand) -> Rows:
    """Rows of a demand without repetition and without those that go nowhere.

    Parameters
    ----------
    demand : Demand
        One row per token; destinations ascending.

    Returns
    -------
    Rows
        By source, then by destinations.
    """
    size = np.diff(demand.dest_ptr)
    some = np.flatnonzero(size)
    if not len(some):
        none = np.empty(0, np.int32)
        return Rows(none, np.zeros(1, np.int64), none, np.empty(0, np.int64))
    width = int(size.max())
    # one record of bytes per row, most significant first, so that sorting bytes sorts sources and sets
    key = np.zeros((demand.num_rows, width + 1), ">u2")
    key[:, 0] = demand.source
    inside = np.arange(width) < size[:, None]
    key[:, 1:][inside] = demand.dest + 1
    records = np.ascontiguousarray(key[some]).view(f"V{2 * (width + 1)}").ravel()
    _, first, count = np.unique(records, return_index=True, return_counts=True)
    every = Rows(demand.source, demand.dest_ptr, demand.dest, np.ones(demand.num_rows, np.int64))
    rows = every.taken(some[first])
    return Rows(rows.source, rows.ptr, rows.dest, count.astype(np.int64))
