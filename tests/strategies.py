"""Hypothesis strategies for networks, demands and forests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from moxtrace.demand import Demand, demand_of
from moxtrace.topology.graph import Topology
from moxtrace.transfers import Phase, combine_of


def random_topology(npus: int, seed: int, *, extra: int = 6, uneven: bool = False) -> Topology:
    """A ring with some chords; unequal rates, latencies and lanes when ``uneven``."""
    rng = np.random.default_rng(seed)
    pairs = {(i, (i + 1) % npus) for i in range(npus)} | {((i + 1) % npus, i) for i in range(npus)}
    for _ in range(extra):
        a, b = rng.integers(npus, size=2)
        if a != b:
            pairs |= {(int(a), int(b)), (int(b), int(a))}
    src, dst = np.array(sorted(pairs)).T
    links = len(src)
    rate = rng.choice([50.0, 100.0, 400.0], links) if uneven else np.full(links, 100.0)
    latency = rng.choice([0.0, 37.0, 500.0], links) if uneven else np.full(links, 500.0)
    lanes = rng.integers(1, 3, links) if uneven else np.ones(links, int)
    return Topology("graph", npus, src, dst, rate, latency, lanes)


def random_demand(npus: int, tokens_per_npu: int, top_k: int, seed: int, experts_per_npu: int = 2) -> Demand:
    """Uniformly drawn experts, two on each NPU."""
    rng = np.random.default_rng(seed)
    experts = npus * experts_per_npu
    source = np.repeat(np.arange(npus, dtype=np.int32), tokens_per_npu)
    ids = np.argsort(rng.random((len(source), experts)), axis=1)[:, : min(top_k, experts)]
    host = rng.permutation(np.arange(experts) % npus).astype(np.int32)
    return demand_of(source, ids.astype(np.int32), host, npus)


def random_forest(topology: Topology, demand: Demand, seed: int, size_bytes: int = 1000) -> Phase:
    """A dispatch that grows each tree by random links until it covers the row, leaf relays cut off."""
    rng = np.random.default_rng(seed)
    link: list[int] = []
    parent: list[int] = []
    delivers: list[bool] = []
    tree_ptr = [0]
    for t in range(demand.num_rows):
        source = int(demand.source[t])
        wanted = set(demand.dest[demand.dest_ptr[t] : demand.dest_ptr[t + 1]].tolist())
        via = {source: -1}
        grown: list[tuple[int, int]] = []  # (link, index of the parent in grown)
        while not wanted <= via.keys():
            free = [e for e in range(topology.num_links)
                    if topology.src[e] in via and topology.dst[e] not in via]  # fmt: skip
            e = int(rng.choice(free))
            grown.append((e, via[int(topology.src[e])]))
            via[int(topology.dst[e])] = len(grown) - 1
        needed = set()
        for d in wanted:
            i = via[d]
            while i >= 0 and i not in needed:
                needed.add(i)
                i = grown[i][1]
        new = {old: tree_ptr[-1] + k for k, old in enumerate(sorted(needed))}
        for old in sorted(needed):
            e, above = grown[old]
            link.append(e)
            parent.append(new.get(above, -1))
            delivers.append(int(topology.dst[e]) in wanted)
        tree_ptr.append(len(link))
    return Phase(
        "dispatch", topology, np.array(link, np.int32), np.array(parent, np.int32),
        np.array(tree_ptr, np.int64), np.array(delivers, bool), size_bytes,
    )  # fmt: skip


@st.composite
def blocks(draw: st.DrawFn, uneven: bool = False) -> tuple[Demand, Phase, Phase]:
    """A demand, its dispatch and its combine on a small random network."""
    npus = draw(st.integers(2, 7))
    seed = draw(st.integers(0, 2**32 - 1))
    topology = random_topology(npus, seed, uneven=uneven)
    demand = random_demand(npus, draw(st.integers(1, 4)), draw(st.integers(1, 5)), seed)
    dispatch = random_forest(topology, demand, seed)
    return demand, dispatch, combine_of(dispatch, topology, draw(st.sampled_from([1000, 777])))
