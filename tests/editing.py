"""Traces as lists of nodes that a test can edit, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moxtrace.chakra.trace import Trace


@dataclass
class Node:
    """One node; dependencies are ids."""

    id: int
    kind: int
    peer: int
    tag: int
    amount: int
    deps: list[int]


def unpack(trace: Trace) -> list[list[Node]]:
    """Nodes of every rank."""
    ranks = []
    for r in range(trace.num_ranks):
        first, last = trace.rank_ptr[r], trace.rank_ptr[r + 1]
        ids = trace.node_id[first:last]
        ranks.append(
            [
                Node(
                    int(trace.node_id[i]),
                    int(trace.kind[i]),
                    int(trace.peer[i]),
                    int(trace.tag[i]),
                    int(trace.amount[i]),
                    ids[trace.dep[trace.dep_ptr[i] : trace.dep_ptr[i + 1]]].tolist(),
                )  # fmt: skip
                for i in range(first, last)
            ]
        )
    return ranks


def pack(ranks: list[list[Node]]) -> Trace:
    """A trace of such nodes; dependencies on ids that are gone are left out."""
    nodes = [node for rank in ranks for node in rank]
    deps: list[list[int]] = []
    for rank in ranks:
        at = {node.id: i for i, node in enumerate(rank)}
        deps += [[at[d] for d in node.deps if d in at] for node in rank]
    none = np.zeros(0, np.int64)
    return Trace(
        np.cumsum([0, *map(len, ranks)]),
        np.array([n.id for n in nodes], np.int64),
        np.array([n.kind for n in nodes], np.int8),
        np.array([n.peer for n in nodes], np.int32),
        np.array([n.tag for n in nodes], np.int32),
        np.array([n.amount for n in nodes], np.int64),
        np.cumsum([0, *map(len, deps)]),
        np.array([d for one in deps for d in one], np.int32),
        none,
        none,
        none,
    )
