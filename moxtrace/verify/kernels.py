"""Kernels of ``verify``: follow every row of the demand through the messages that carry its tag.

They return the first few faults as rows of ``(code, row, npu, node)``; the wording is the caller's.
"""

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.trace import COMP, RECV

__all__ = ["Rows", "Sends", "check_combine", "check_dispatch"]

# faults, in the order in which a row is searched for them
TWICE, NEVER, NOT_HELD, UNCAUSED, USELESS, SENT_TWICE, LOST, EMPTY, UNREDUCED = range(1, 10)


class Rows(NamedTuple):
    """The demand."""

    source: NDArray[np.int32]
    dest_ptr: NDArray[np.int64]
    dest: NDArray[np.int32]


class Sends(NamedTuple):
    """Messages of one phase, sorted by row; those of row ``t`` are ``ptr[t] : ptr[t + 1]``."""

    ptr: NDArray[np.int64]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    node: NDArray[np.int64]  # the SEND, as a global index into the trace


class Nodes(NamedTuple):
    """What is read of the trace."""

    kind: NDArray[np.int8]
    tag: NDArray[np.int32]
    start: NDArray[np.int64]  # global index of the first node of each rank
    dep_ptr: NDArray[np.int64]
    dep: NDArray[np.int32]


@numba.njit(cache=True)
def _add(faults, found, code, row, npu, node):
    if found < len(faults):
        faults[found, 0], faults[found, 1], faults[found, 2], faults[found, 3] = code, row, npu, node
    return found + 1


@numba.njit(cache=True)
def _inputs_covered(nodes, send, rank, tag):
    """RECVs of ``tag`` that a SEND waits for, directly or through one COMP."""
    base = nodes.start[rank]
    covered = 0
    for j in range(nodes.dep_ptr[send], nodes.dep_ptr[send + 1]):
        before = base + nodes.dep[j]
        if nodes.kind[before] == RECV and nodes.tag[before] == tag:
            covered += 1
        elif nodes.kind[before] == COMP:
            for k in range(nodes.dep_ptr[before], nodes.dep_ptr[before + 1]):
                deeper = base + nodes.dep[k]
                covered += nodes.kind[deeper] == RECV and nodes.tag[deeper] == tag
    return covered


@numba.njit(cache=True)
def check_dispatch(rows, sends, nodes, tag_base, num_npus, faults):
    """Every destination is reached exactly once, by NPUs that hold the row; returns how many faults."""
    reached = np.full(num_npus, -1, np.int64)
    wanted = np.full(num_npus, -1, np.int64)
    forwards = np.full(num_npus, -1, np.int64)
    found = 0
    for t in range(len(rows.source)):
        first, last = sends.ptr[t], sends.ptr[t + 1]
        reached[rows.source[t]] = t
        for j in range(rows.dest_ptr[t], rows.dest_ptr[t + 1]):
            wanted[rows.dest[j]] = t
        for i in range(first, last):
            forwards[sends.src[i]] = t
            if reached[sends.dst[i]] == t:
                found = _add(faults, found, TWICE, t, sends.dst[i], sends.node[i])
            reached[sends.dst[i]] = t
        for j in range(rows.dest_ptr[t], rows.dest_ptr[t + 1]):
            if reached[rows.dest[j]] != t:
                found = _add(faults, found, NEVER, t, rows.dest[j], -1)
        for i in range(first, last):
            src, dst, node = sends.src[i], sends.dst[i], sends.node[i]
            if reached[src] != t:
                found = _add(faults, found, NOT_HELD, t, src, node)
            elif src != rows.source[t] and _inputs_covered(nodes, node, src, tag_base + t) == 0:
                found = _add(faults, found, UNCAUSED, t, src, node)
            if wanted[dst] != t and forwards[dst] != t:
                found = _add(faults, found, USELESS, t, dst, node)
    return found


@numba.njit(cache=True)
def check_combine(rows, sends, nodes, tag_base, num_npus, faults):
    """Every expert output reaches the source in exactly one sum; returns how many faults."""
    sent = np.full(num_npus, -1, np.int64)
    wanted = np.full(num_npus, -1, np.int64)
    inputs = np.zeros(num_npus, np.int64)
    found = 0
    for t in range(len(rows.source)):
        first, last = sends.ptr[t], sends.ptr[t + 1]
        for i in range(first, last):
            inputs[sends.src[i]] = 0
            inputs[sends.dst[i]] = 0
        for j in range(rows.dest_ptr[t], rows.dest_ptr[t + 1]):
            wanted[rows.dest[j]] = t
        for i in range(first, last):
            inputs[sends.dst[i]] += 1
            if sent[sends.src[i]] == t:
                found = _add(faults, found, SENT_TWICE, t, sends.src[i], sends.node[i])
            sent[sends.src[i]] = t
        for j in range(rows.dest_ptr[t], rows.dest_ptr[t + 1]):
            if sent[rows.dest[j]] != t:
                found = _add(faults, found, NEVER, t, rows.dest[j], -1)
        for i in range(first, last):
            src, dst, node = sends.src[i], sends.dst[i], sends.node[i]
            if dst != rows.source[t] and sent[dst] != t:
                found = _add(faults, found, LOST, t, dst, node)
            if src == rows.source[t]:
                found = _add(faults, found, SENT_TWICE, t, src, node)
            elif wanted[src] != t and inputs[src] == 0:
                found = _add(faults, found, EMPTY, t, src, node)
            elif _inputs_covered(nodes, node, src, tag_base + t) != inputs[src]:
                found = _add(faults, found, UNREDUCED, t, src, node)
    return found
