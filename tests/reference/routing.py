"""Slow twins of the routing kernels: the rules of ``moxtrace.routing.route``, word for word."""

from collections import deque

import numpy as np


def hop_distances(topology):
    """``hops[d][v]``: links from node ``v`` to NPU ``d``, by breadth-first search."""
    into = {v: [] for v in range(topology.num_nodes)}
    for u, v in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        into[v].append(u)
    table = []
    for d in range(topology.num_npus):
        hops = {d: 0}
        queue = deque([d])
        while queue:
            v = queue.popleft()
            for u in into[v]:
                if u not in hops:
                    hops[u] = hops[v] + 1
                    queue.append(u)
        table.append([hops[v] for v in range(topology.num_nodes)])
    return table


def rows_of(demand):
    """(source, destinations) of each row."""
    for t in range(demand.num_rows):
        yield int(demand.source[t]), demand.dest[demand.dest_ptr[t] : demand.dest_ptr[t + 1]].tolist()


def route_paths(topology, demand):
    """Links of every row's path; ``demand`` has one destination per row."""
    hops = hop_distances(topology)
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    used, paths = {}, []
    for source, (d,) in rows_of(demand):
        v, path = source, []
        while v != d:
            choices = [e for e, (a, b) in enumerate(ends) if a == v and hops[d][b] == hops[d][v] - 1]
            e = min(choices, key=lambda e: (used.get((source, e), 0), e))
            used[source, e] = used.get((source, e), 0) + 1
            path.append(e)
            v = ends[e][1]
        paths.append(path)
    return paths


def route_trees(topology, demand, inverse_weight):
    """Links of every row's tree, in the order in which they are chosen."""
    hops = hop_distances(topology)
    ends = list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    into = {v: [e for e, (_, b) in enumerate(ends) if b == v] for v in range(topology.num_nodes)}
    used, trees = {}, []
    for source, dests in rows_of(demand):
        holders, pending, tree = {source}, set(dests), []
        while pending:
            cost = [(used.get((source, e), 0) + 1) * w for e, w in enumerate(inverse_weight.tolist())]
            pairs = [e for e, (a, b) in enumerate(ends) if a in holders and b in pending]
            if pairs:
                path = [min(pairs, key=lambda e: (cost[e], e))]
            else:
                path = _relayed_path(hops, ends, into, cost, holders, pending)
            for e in path:
                used[source, e] = used.get((source, e), 0) + 1
                holders.add(ends[e][1])
            pending -= holders
            tree += path
        trees.append(tree)
    return trees


def _relayed_path(hops, ends, into, cost, holders, pending):
    length = min(hops[d][h] for d in pending for h in holders)

    def best(d, v, links):
        """(greatest cost, sum of costs, last link, path) of the best path of so many links to ``v``."""
        found = []
        for e in into[v]:
            u = ends[e][0]
            if hops[d][u] != hops[d][v] + 1:
                continue
            if links == 1 and u in holders:
                found.append((cost[e], cost[e], e, [e]))
            elif links > 1 and u not in holders:
                before = best(d, u, links - 1)
                if before is not None:
                    found.append((max(before[0], cost[e]), before[1] + cost[e], e, before[3] + [e]))
        return min(found, default=None)

    paths = [best(d, d, length) for d in pending]
    return min(p for p in paths if p is not None)[3]


def check_forest(phase, demand):
    """Assert that a dispatch serves ``demand``: links meet, parents come first, everyone is reached once."""
    topology = phase.topology
    assert phase.num_trees == demand.num_rows
    assert phase.tree_ptr[0] == 0
    for t, (source, dests) in enumerate(rows_of(demand)):
        first, stop = int(phase.tree_ptr[t]), int(phase.tree_ptr[t + 1])
        at = {-1: source}
        reached = []
        for i in range(first, stop):
            parent, e = int(phase.parent[i]), int(phase.link[i])
            assert parent == -1 or first <= parent < i
            assert topology.src[e] == at[parent]
            at[i] = int(topology.dst[e])
            reached.append(at[i])
            assert bool(phase.delivers[i]) == (at[i] in dests)
        assert source not in reached
        assert len(set(reached)) == len(reached)
        assert set(dests) <= set(reached)
        relays = {at[int(phase.parent[i])] for i in range(first, stop)}
        assert set(reached) - set(dests) <= relays, "a relay that serves nobody"


def busiest_port(topology, demand):
    """Copies per Gbit/s at the busiest port of the ideal switch."""
    traffic = demand.traffic()
    n = topology.num_npus
    capacity = topology.bandwidth_gbps * topology.lanes
    worst = 0.0
    for v in range(n):
        worst = max(worst, traffic[v].sum() / capacity[topology.src == v].sum())
        worst = max(worst, traffic[:, v].sum() / capacity[topology.dst == v].sum())
    return worst


def uniform_demand_sets(rows, num_experts, top_k, seed):
    """Top-K sets drawn uniformly, an independent way: a shuffle per token."""
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(num_experts)[:top_k] for _ in range(rows)], dtype=np.int32)
