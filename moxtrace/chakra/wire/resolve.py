# mypy: allow-untyped-defs, no-check-untyped-defs
"""Resolve dependencies: from the ids that a file uses to positions in it."""

from __future__ import annotations

import numpy as np

from moxtrace.jit import allocating

__all__ = [
    "ASCENDING",
    "CONSECUTIVE",
    "DEP_SELF",
    "DEP_UNKNOWN",
    "RESOLVED",
    "UNORDERED",
    "order_of",
    "resolve",
]

UNORDERED, ASCENDING, CONSECUTIVE = 0, 1, 2
RESOLVED, DEP_UNKNOWN, DEP_SELF = 0, 1, 2


@allocating
def order_of(node_id):
    """How the ids of a file stand: each one more than the last, ascending, or neither."""
    consecutive = True
    for i in range(1, len(node_id)):
        if node_id[i] <= node_id[i - 1]:
            return UNORDERED
        consecutive &= node_id[i] == node_id[i - 1] + 1
    return CONSECUTIVE if consecutive else ASCENDING


@allocating
def resolve(sorted_id, order, node_id, dep_ptr, dep_id, dep):
    """Fill ``dep`` with positions, each once per node in the order of first mention.

    Parameters
    ----------
    sorted_id : array of int64, shape (nodes,)
        Ids in ascending order; ``node_id`` itself where they stand so.
    order : array of int64, shape (nodes,) or (0,)
        Position of each id in ``sorted_id``; empty if they are the same array.
    node_id : array of int64, shape (nodes,)
    dep_ptr : array of int64, shape (nodes + 1,)
        Changed in place where a node names a dependency twice.
    dep_id : array of int64
    dep : array of int32, shape of ``dep_id``

    Returns
    -------
    status, node, dependency : int
        ``RESOLVED`` with the dependencies that remain in ``dependency``, or the first node in file order
        with a dependency on itself or on an id that is not in the file.
    """
    nodes = len(node_id)
    consecutive = order_of(sorted_id) == CONSECUTIVE
    last = np.full(nodes, -1, np.int64)  # the node that named each one last
    kept, begin = 0, 0
    for i in range(nodes):
        end = dep_ptr[i + 1]
        for k in range(begin, end):
            want = dep_id[k]
            if consecutive:
                at = want - sorted_id[0] if want >= 0 else -1
            else:
                at = np.searchsorted(sorted_id, want)
            if at < 0 or at >= nodes or sorted_id[at] != want:
                return DEP_UNKNOWN, i, want
            if len(order) > 0:
                at = order[at]
            if at == i:
                return DEP_SELF, i, want
            if last[at] != i:
                last[at] = i
                dep[kept] = at
                kept += 1
        begin = end
        dep_ptr[i + 1] = kept
    return RESOLVED, nodes, kept
