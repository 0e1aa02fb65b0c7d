"""Demand: which NPUs every token must reach.

Goes in: the top-K experts of every token and where experts live.  Comes out: :class:`Demand`, one row per
token (or per copy), which routing turns into trees.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RoutingError, TraceError
from moxtrace.jit import allocating

__all__ = ["Demand", "demand_of", "read_demand", "write_demand"]


@dataclass(frozen=True, eq=False)
class Demand:
    """Destination sets of tokens, in CSR form, grouped by source.

    A *row* is what travels along one tree: a token under multicast, one copy of it under unicast.

    Parameters
    ----------
    num_npus : int
    source : array of int32, shape (rows,)
        NPU that holds the token; ascending.
    dest_ptr : array of int64, shape (rows + 1,)
        Destinations of row ``t`` are ``dest[dest_ptr[t] : dest_ptr[t + 1]]``.
    dest : array of int32
        NPUs that host one of the token's experts; each once, ascending, the source left out.
    token : array of int32, shape (rows,)
        Token of each row: ``0, 1, 2, ...`` unless the rows are copies.
    pairs : array of int64, shape (num_npus,)
        Token-expert pairs that each NPU computes.
    """

    num_npus: int
    source: NDArray[np.int32]
    dest_ptr: NDArray[np.int64]
    dest: NDArray[np.int32]
    token: NDArray[np.int32]
    pairs: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.dest_ptr) != self.num_rows + 1 or len(self.token) != self.num_rows:
            raise RoutingError("demand: source, token and dest_ptr disagree about the number of rows")
        if self.num_rows and (np.diff(self.source) < 0).any():
            raise RoutingError("demand: rows must be grouped by source, in ascending order")
        for array in (self.source, self.dest_ptr, self.dest, self.token, self.pairs):
            array.setflags(write=False)

    @property
    def num_rows(self) -> int:
        """Trees to route."""
        return len(self.source)

    @property
    def num_tokens(self) -> int:
        """Tokens, however many copies each has."""
        return int(self.token[-1]) + 1 if self.num_rows else 0

    def row_source(self) -> NDArray[np.int32]:
        """Source NPU of each entry of ``dest``."""
        return np.repeat(self.source, np.diff(self.dest_ptr))

    def traffic(self) -> NDArray[np.int64]:
        """Copies that each NPU owes each other NPU, shape [src, dst]."""
        n = self.num_npus
        return np.bincount(self.row_source() * np.int64(n) + self.dest, minlength=n * n).reshape(n, n)

    def unicast(self) -> Demand:
        """The same demand with one row per copy: what pairwise all-to-all sends."""
        count = np.diff(self.dest_ptr)
        return Demand(
            self.num_npus,
            np.repeat(self.source, count),
            np.arange(len(self.dest) + 1, dtype=np.int64),
            self.dest,
            np.repeat(self.token, count),
            self.pairs,
        )

    def first_rows(self, per_source: int) -> Demand:
        """The first rows of every source, ``per_source`` at most; pairs are those of the whole."""
        turn = np.arange(self.num_rows) - np.searchsorted(self.source, self.source)
        kept = turn < per_source
        count = np.diff(self.dest_ptr)
        return Demand(
            self.num_npus,
            self.source[kept],
            np.concatenate(([0], np.cumsum(count[kept]))),
            self.dest[np.repeat(kept, count)],
            np.arange(np.count_nonzero(kept), dtype=np.int32),
            self.pairs,
        )


@allocating
def _destination_sets(source, topk, host, num_npus, dest_ptr, dest, pairs):  # type: ignore[no-untyped-def]
    """Fill CSR rows with the sorted distinct hosts of each token's experts; returns the number of copies."""
    stamp = np.full(num_npus, -1, np.int64)
    filled = np.int64(0)
    for t in range(topk.shape[0]):
        start = filled
        for k in range(topk.shape[1]):
            expert = topk[t, k]
            if expert < 0:  # an unused slot of the recording
                continue
            npu = host[expert]
            pairs[npu] += 1
            if npu == source[t] or stamp[npu] == t:
                continue
            stamp[npu] = t
            at = filled
            while at > start and dest[at - 1] > npu:
                dest[at] = dest[at - 1]
                at -= 1
            dest[at] = npu
            filled += 1
        dest_ptr[t + 1] = filled
    return filled


def demand_of(
    source: NDArray[np.int32], topk_ids: NDArray[np.integer], host: NDArray[np.int32], num_npus: int
) -> Demand:
    """Destination sets of tokens whose experts are known.

    Parameters
    ----------
    source : array of int32, shape (tokens,)
        NPU of each token, ascending.
    topk_ids : array of int, shape (tokens, top_k)
        Experts of each token; -1 marks an unused slot.
    host : array of int32, shape (experts,)
        NPU of each expert.
    num_npus : int

    Returns
    -------
    Demand
    """
    tokens, top_k = topk_ids.shape
    dest_ptr = np.zeros(tokens + 1, np.int64)
    dest = np.empty(tokens * top_k, np.int32)
    pairs = np.zeros(num_npus, np.int64)
    filled = _destination_sets(source, topk_ids, host, num_npus, dest_ptr, dest, pairs)
    return Demand(
        num_npus,
        np.ascontiguousarray(source, np.int32),
        dest_ptr,
        dest[:filled].copy(),
        np.arange(tokens, dtype=np.int32),
        pairs,
    )


def write_demand(path: Path, demand: Demand) -> None:
    """Write a demand of tokens (not of copies) as a compact ``.npz``."""
    np.savez(
        path,
        tokens=np.bincount(demand.source, minlength=demand.num_npus).astype(np.int32),
        count=np.diff(demand.dest_ptr).astype(np.int16),
        dest=demand.dest.astype(np.int16),
        pairs=demand.pairs,
    )


def read_demand(path: Path) -> Demand:
    """Read what :func:`write_demand` wrote.

    Raises
    ------
    TraceError
        When the file is missing, cut or something else, or its numbers are no demand: kernels index by them
        without looking.
    """
    columns = _stored(path)
    problem = _not_a_demand(*columns)
    if problem:
        raise TraceError(f"{path}: {problem}; generate the run again")
    tokens, count, dest, pairs = columns
    return Demand(
        len(tokens),
        np.repeat(np.arange(len(tokens), dtype=np.int32), tokens),
        np.concatenate(([0], np.cumsum(count, dtype=np.int64))),
        dest.astype(np.int32),
        np.arange(len(count), dtype=np.int32),
        pairs,
    )


_STORED = {"tokens": np.int32, "count": np.int16, "dest": np.int16, "pairs": np.int64}


def _stored(path: Path) -> tuple[NDArray[Any], ...]:
    """The columns of the file, each a vector of its type."""
    columns = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name, dtype in _STORED.items():
                with archive.open(f"{name}.npy") as file:
                    column = np.lib.format.read_array(file, allow_pickle=False)
                if column.dtype != dtype or column.ndim != 1:
                    raise ValueError(
                        f"{name} is {column.dtype} of shape {column.shape}; expected a vector of "
                        f"{np.dtype(dtype)}"
                    )
                columns.append(column)
    except OSError as error:
        raise TraceError(f"{path}: cannot read the demand: {error.strerror or error}") from None
    except (
        ValueError, KeyError, EOFError, MemoryError, SyntaxError, NotImplementedError, RuntimeError,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split()).strip("'\"")
        raise TraceError(f"{path}: cannot read the demand: {reason}; generate the run again") from None
    return tuple(columns)


def _not_a_demand(
    tokens: NDArray[np.integer],
    count: NDArray[np.integer],
    dest: NDArray[np.integer],
    pairs: NDArray[np.integer],
) -> str:
    """What keeps the columns from being a demand; empty where nothing does."""
    n = len(tokens)
    if n < 1 or len(pairs) != n:
        return f"tokens of {n} NPUs, pairs of {len(pairs)}; expected as many, at least 1"
    for name, column in (("tokens", tokens), ("count", count), ("dest", dest), ("pairs", pairs)):
        if column.min(initial=0) < 0:
            i = int(np.argmin(column))
            return f"{name}[{i}] is {column[i]}; expected 0 or more"
    if tokens.sum(dtype=np.int64) != len(count):
        return f"NPUs have {tokens.sum(dtype=np.int64)} tokens, but {len(count)} destination sets"
    if count.sum(dtype=np.int64) != len(dest):
        return f"destination sets of {count.sum(dtype=np.int64)} NPUs together, but {len(dest)} are named"
    if dest.max(initial=0) >= n:
        i = int(np.argmax(dest))
        return f"dest[{i}] is NPU {dest[i]}; expected 0 to {n - 1}"
    token = np.repeat(np.arange(len(count)), count)
    source = np.repeat(np.arange(n), tokens)
    bad = dest == source[token]
    bad[1:] |= (token[1:] == token[:-1]) & (dest[1:] <= dest[:-1])
    if bad.any():
        t = int(token[np.argmax(bad)])
        return f"token {t} of NPU {source[t]}: expected its other NPUs, each once, in ascending order"
    owed = np.bincount(dest, minlength=n)
    if (owed > pairs).any():
        i = int(np.argmax(owed > pairs))
        return f"{owed[i]} tokens go to NPU {i}, which computes {pairs[i]} token-expert pairs"
    return ""
