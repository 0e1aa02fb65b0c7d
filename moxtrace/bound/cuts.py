"""Bounds by counting: what must enter or leave a set of nodes, over the capacity of the links that do.

A token whose source lies outside a set of nodes, with a destination inside, crosses into the set at least
once, however it is routed.  Single nodes give the *ingress* bound (their copies), all nodes but one the
*egress* bound (its tokens); larger sets are looked for by local search.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moxtrace.bound.kernels import cross_cut, flip_gains
from moxtrace.bound.rows import Rows
from moxtrace.topology.graph import Topology

__all__ = ["best_cut", "cut_load", "egress_load", "ingress_load"]

_SAMPLE = 20_000  # rows that the search looks at; the sets it finds are then counted on all
_KEPT = 5
_MOST_STARTS = 96

Inside = NDArray[np.bool_]


def ingress_load(topology: Topology, rows: Rows) -> float:
    """Copies per Gbit/s at the NPU that receives most."""
    return float(_copies(topology, rows).max())


def egress_load(topology: Topology, rows: Rows) -> float:
    """Tokens with a destination per Gbit/s at the NPU that sends most: each leaves at least once."""
    return float(_tokens(topology, rows).max())


def _copies(topology: Topology, rows: Rows) -> NDArray[np.float64]:
    """Copies into each node per Gbit/s."""
    copies = np.bincount(rows.dest, np.repeat(rows.count, rows.size), topology.num_nodes)
    return copies / topology.in_capacity_gbps()


def _tokens(topology: Topology, rows: Rows) -> NDArray[np.float64]:
    """Tokens out of each node per Gbit/s."""
    return np.bincount(rows.source, rows.count, topology.num_nodes) / topology.out_capacity_gbps()


def cut_load(topology: Topology, rows: Rows, inside: Inside) -> float:
    """Tokens that must enter a set of nodes per Gbit/s of the links into it.

    Parameters
    ----------
    topology : Topology
    rows : Rows
    inside : array of bool, shape (nodes,)
        Neither all nor none.
    """
    return cross_cut(rows.arrays, inside) / _capacity(topology, inside)


def best_cut(topology: Topology, rows: Rows, seed: int = 0) -> tuple[float, Inside]:
    """The heaviest cut that a local search finds.

    It starts from balls of neighbours round the nodes (at most 96 starts, evenly picked) and moves one node
    at a time to the other side, the one that helps most, while any helps; the search looks at a sample of the
    rows.  Its best five sets are counted on all of them, as are the node that receives most and the one that
    sends most, so no single node is a better cut.

    Parameters
    ----------
    topology : Topology
    rows : Rows
    seed : int
        Of the sample.

    Returns
    -------
    load : float
        Tokens per Gbit/s, exact for the set returned.
    inside : array of bool, shape (nodes,)
    """
    some = rows
    if len(rows) > _SAMPLE:
        some = rows.taken(np.random.default_rng(seed).choice(len(rows), _SAMPLE, replace=False))
    found: dict[bytes, float] = {}
    for start in _balls(topology):
        inside, load = _climb(topology, some, start)
        found[inside.tobytes()] = load
    best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_KEPT]
    nodes = np.arange(topology.num_nodes)
    sets = [
        nodes == np.argmax(_copies(topology, rows)),
        nodes != np.argmax(_tokens(topology, rows)),
        *(np.frombuffer(key, np.bool_) for key, _ in best),
    ]
    loads = [cut_load(topology, rows, inside) for inside in sets]
    i = int(np.argmax(loads))
    return loads[i], sets[i]


def _capacity(topology: Topology, inside: Inside) -> float:
    return float(topology.capacity_gbps[inside[topology.dst] & ~inside[topology.src]].sum())


def _balls(topology: Topology) -> list[Inside]:
    """Nodes with their neighbours, theirs and so on: from one node up to half of all, and what is left."""
    starts = []
    for centre in range(topology.num_nodes):
        inside = np.zeros(topology.num_nodes, bool)
        inside[centre] = True
        while inside.sum() <= topology.num_nodes // 2:
            starts += [inside, ~inside]
            inside = inside.copy()
            inside[topology.dst[inside[topology.src]]] = True
    step = max(1, -(-len(starts) // _MOST_STARTS))
    return starts[::step]


def _climb(topology: Topology, rows: Rows, inside: Inside) -> tuple[Inside, float]:
    """Move single nodes while the load grows."""
    inside = inside.copy()
    src, dst, capacity = topology.src, topology.dst, topology.capacity_gbps
    tokens, width = cross_cut(rows.arrays, inside), _capacity(topology, inside)
    while True:
        gain = flip_gains(rows.arrays, inside)
        # a node's links from the other side stop to cross into the set, or links to its own side begin to
        enters, leaves = inside[dst] & ~inside[src], inside[dst] == inside[src]
        change = np.zeros(len(inside))
        np.add.at(change, dst, capacity * np.where(enters, -1.0, leaves & ~inside[dst]))
        np.add.at(change, src, capacity * np.where(enters, -1.0, leaves & inside[src]))
        after = np.maximum(width + change, 0.0)
        # whoever leaves nothing on one side of the cut would divide by nothing
        alone = (inside & (inside.sum() == 1)) | (~inside & (inside.sum() == len(inside) - 1))
        load = np.where(alone, -1.0, (tokens + gain) / np.where(alone, 1.0, after))
        best = int(np.argmax(load))
        if load[best] <= tokens / width * (1 + 1e-9):
            return inside, tokens / width
        inside[best] = ~inside[best]
        tokens, width = cross_cut(rows.arrays, inside), _capacity(topology, inside)
