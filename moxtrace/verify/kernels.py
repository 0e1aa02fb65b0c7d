"""Kernels of ``verify``: follow every row of the demand through the messages that carry its tag.

They return the first few faults as rows of ``(code, row, npu, node)``; the wording is the caller's.  Rows,
sends and nodes come as plain tuples of arrays, in the order of the named tuples of ``verify.py``.
"""

import numpy as np

from moxtrace.chakra.trace import COMP, RECV
from moxtrace.jit import allocating

__all__ = ["check_combine", "check_dispatch"]

# faults, in the order in which a row is searched for them
TWICE, NEVER, NOT_HELD, UNCAUSED, USELESS, SENT_TWICE, LOST, EMPTY, UNREDUCED = range(1, 10)


@allocating
def _add(faults, found, code, row, npu, node):
    if found < len(faults):
        faults[found, 0], faults[found, 1], faults[found, 2], faults[found, 3] = code, row, npu, node
    return found + 1


@allocating
def _inputs_covered(kind, tags, base, dep_ptr, dep, send, tag):
    """RECVs of ``tag`` that a SEND waits for, directly or through one COMP."""
    covered = 0
    for j in range(dep_ptr[send], dep_ptr[send + 1]):
        before = base + dep[j]
        if kind[before] == RECV and tags[before] == tag:
            covered += 1
        elif kind[before] == COMP:
            for k in range(dep_ptr[before], dep_ptr[before + 1]):
                deeper = base + dep[k]
                covered += kind[deeper] == RECV and tags[deeper] == tag
    return covered


@allocating
def check_dispatch(rows, sends, nodes, tag_base, num_npus, faults):
    """Every destination is reached exactly once, by NPUs that hold the row; returns how many faults."""
    source, dest_ptr, dest = rows
    ptr, send_src, send_dst, send_node = sends
    kind, tags, start, dep_ptr, dep = nodes
    reached = np.full(num_npus, -1, np.int64)
    wanted = np.full(num_npus, -1, np.int64)
    forwards = np.full(num_npus, -1, np.int64)
    found = 0
    for t in range(len(source)):
        first, last = ptr[t], ptr[t + 1]
        reached[source[t]] = t
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            wanted[dest[j]] = t
        for i in range(first, last):
            forwards[send_src[i]] = t
            if reached[send_dst[i]] == t:
                found = _add(faults, found, TWICE, t, send_dst[i], send_node[i])
            reached[send_dst[i]] = t
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            if reached[dest[j]] != t:
                found = _add(faults, found, NEVER, t, dest[j], -1)
        for i in range(first, last):
            src, dst, node = send_src[i], send_dst[i], send_node[i]
            if reached[src] != t:
                found = _add(faults, found, NOT_HELD, t, src, node)
            elif (
                src != source[t]
                and _inputs_covered(kind, tags, start[src], dep_ptr, dep, node, tag_base + t) == 0
            ):
                found = _add(faults, found, UNCAUSED, t, src, node)
            if wanted[dst] != t and forwards[dst] != t:
                found = _add(faults, found, USELESS, t, dst, node)
    return found


@allocating
def check_combine(rows, sends, nodes, tag_base, num_npus, faults):
    """Every expert output reaches the source in exactly one sum; returns how many faults."""
    source, dest_ptr, dest = rows
    ptr, send_src, send_dst, send_node = sends
    kind, tags, start, dep_ptr, dep = nodes
    sent = np.full(num_npus, -1, np.int64)
    wanted = np.full(num_npus, -1, np.int64)
    inputs = np.zeros(num_npus, np.int64)
    found = 0
    for t in range(len(source)):
        first, last = ptr[t], ptr[t + 1]
        for i in range(first, last):
            inputs[send_src[i]] = 0
            inputs[send_dst[i]] = 0
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            wanted[dest[j]] = t
        for i in range(first, last):
            inputs[send_dst[i]] += 1
            if sent[send_src[i]] == t:
                found = _add(faults, found, SENT_TWICE, t, send_src[i], send_node[i])
            sent[send_src[i]] = t
        for j in range(dest_ptr[t], dest_ptr[t + 1]):
            if sent[dest[j]] != t:
                found = _add(faults, found, NEVER, t, dest[j], -1)
        for i in range(first, last):
            src, dst, node = send_src[i], send_dst[i], send_node[i]
            if dst != source[t] and sent[dst] != t:
                found = _add(faults, found, LOST, t, dst, node)
            if src == source[t]:
                found = _add(faults, found, SENT_TWICE, t, src, node)
            elif wanted[src] != t and inputs[src] == 0:
                found = _add(faults, found, EMPTY, t, src, node)
            elif _inputs_covered(kind, tags, start[src], dep_ptr, dep, node, tag_base + t) != inputs[src]:
                found = _add(faults, found, UNREDUCED, t, src, node)
    return found
