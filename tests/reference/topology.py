"""Slow, plain twins of moxtrace.topology: networkx, brute force and Python integers."""

from itertools import combinations

import networkx as nx
import numpy as np

from moxtrace.topology import Topology

MASK = 2**64 - 1


def digraph(topology: Topology) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.num_nodes))
    for u, v, capacity in zip(
        topology.src.tolist(), topology.dst.tolist(), topology.capacity_gbps.tolist(), strict=True
    ):
        graph.add_edge(u, v, capacity=capacity)
    return graph


def hops(topology: Topology) -> np.ndarray:
    table = np.full((topology.num_nodes, topology.num_nodes), -1, np.int16)
    for u, reached in nx.all_pairs_shortest_path_length(digraph(topology)):
        for v, distance in reached.items():
            table[u, v] = distance
    return table


def triangles(topology: Topology) -> int:
    graph = digraph(topology).to_undirected()
    graph.remove_nodes_from(range(topology.num_npus, topology.num_nodes))
    return sum(nx.triangles(graph).values()) // 3


def bisection_gbps(topology: Topology) -> float:
    """The thinnest halving, by trying all of them; a switch may stand on either side."""
    least = np.inf
    extra = topology.num_nodes - topology.num_npus
    for half in combinations(range(topology.num_npus), topology.num_npus // 2):
        for with_switch in range(2 if extra else 1):
            inside = np.zeros(topology.num_nodes, bool)
            inside[list(half)] = True
            inside[topology.num_npus :] = bool(with_switch)
            leaving, entering = inside[topology.src], inside[topology.dst]
            out = topology.capacity_gbps[leaving & ~entering].sum()
            into = topology.capacity_gbps[entering & ~leaving].sum()
            least = min(least, out, into)
    return float(least)


class SplitMix64:
    """splitmix64 (Steele, Lea and Flood 2014) on Python integers."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def bits(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        return (self.bits() >> 1) % bound


def _mend(edges: list[list[int]], random: SplitMix64, tries: int) -> bool:
    def times(u: int, v: int) -> int:
        return sum(sorted(edge) == sorted((u, v)) for edge in edges)

    for e, edge in enumerate(edges):
        tried = 0
        while edge[0] == edge[1] or times(*edge) > 1:
            if tried == tries:
                return False
            tried += 1
            other = random.below(len(edges))
            turned = random.below(2)
            (u, v), (x, y) = edge, edges[other][::-1] if turned else edges[other]
            clash = u == x or v == y or times(u, x) or times(v, y) or (u == v and x == y)
            if other != e and not clash:
                edges[e][:] = u, x
                edges[other][:] = v, y
    return True


def random_regular(npus: int, degree: int, stream: int, tries: int) -> list[tuple[int, int]]:
    """Sorted cables of the pairing model, mended by switching."""
    random = SplitMix64(stream)
    while True:
        ends = [u for u in range(npus) for _ in range(degree)]
        for i in range(len(ends) - 1, 0, -1):
            j = random.below(i + 1)
            ends[i], ends[j] = ends[j], ends[i]
        edges = [[ends[i], ends[i + 1]] for i in range(0, len(ends), 2)]
        if _mend(edges, random, tries):
            return sorted((min(e), max(e)) for e in edges)


def draw(npus: int, degree: int, seed: int, number: int, tries: int) -> list[tuple[int, int]]:
    """Draw ``number``: the complement of a sparser graph where that is sparser."""
    stream = int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
    sparse = min(degree, npus - 1 - degree)
    cables = random_regular(npus, sparse, stream, tries)
    if sparse == degree:
        return cables
    return sorted(set(combinations(range(npus), 2)) - set(cables))


def expander(npus: int, degree: int, seed: int, draws: int, tries: int) -> list[tuple[int, int]]:
    """The first best of ``draws`` by (radius, diameter, average path length)."""
    best = None
    for number in range(draws):
        cables = draw(npus, degree, seed, number, tries)
        graph = nx.empty_graph(npus)
        graph.add_edges_from(cables)
        if not nx.is_connected(graph):
            continue
        total = sum(sum(lengths.values()) for _, lengths in nx.all_pairs_shortest_path_length(graph))
        score = (nx.radius(graph), nx.diameter(graph), total)
        if best is None or score < best[0]:
            best = (score, cables)
    return best[1]


def annealing_score(npus: int, cables: list[tuple[int, int]]) -> tuple[int, int]:
    """Twice ``3 * triangles + 0.5 * pairs at distance > 2``, and the triangles."""
    graph = nx.empty_graph(npus)
    graph.add_edges_from(cables)
    near = sum(len(nx.single_source_shortest_path_length(graph, u, 2)) - 1 for u in graph) // 2
    corners = sum(nx.triangles(graph).values()) // 3
    return 6 * corners + npus * (npus - 1) // 2 - near, corners


def anneal(
    npus: int, cables: list[tuple[int, int]], proposals: int, heat: float, seed: int
) -> tuple[list[tuple[int, int]], tuple[int, int, int, int]]:
    """The best connected graph that annealing meets, and its score and triangles, after those before."""
    random = SplitMix64(seed)
    now = [tuple(cable) for cable in cables]
    best = now
    before = score = least = annealing_score(npus, now)
    for k in range(proposals):
        i, j, turned = random.below(len(now)), random.below(len(now)), random.below(2)
        (a, b), (c, d) = now[i], now[j][::-1] if turned else now[j]
        linked = {frozenset(cable) for cable in now}
        if i == j or a == c or b == d or frozenset((a, c)) in linked or frozenset((b, d)) in linked:
            continue
        trial = list(now)
        trial[i], trial[j] = (a, c), (b, d)
        found = annealing_score(npus, trial)
        change = found[0] - score[0]
        if change > 0:
            chance = max(0.0, 1 - change / 2 / max(heat * (proposals - k) / proposals, 1e-3) / 1024) ** 1024
            if random.bits() >> 11 >= chance * 2**53:
                continue
        now, score = trial, found
        graph = nx.empty_graph(npus)
        graph.add_edges_from(now)
        if score[0] < least[0] and nx.is_connected(graph):
            best, least = now, score
    return best, (*before, *least)


def best_direct_traffic(traffic: np.ndarray, degree: int) -> float:
    """The most direct traffic of any connected graph of at most ``degree``, by trying all."""
    npus = len(traffic)
    pairs = list(combinations(range(npus), 2))
    most = -1.0
    for chosen in range(1 << len(pairs)):
        cables = [pair for k, pair in enumerate(pairs) if chosen >> k & 1]
        graph = nx.empty_graph(npus)
        graph.add_edges_from(cables)
        if max(dict(graph.degree).values()) <= degree and nx.is_connected(graph):
            most = max(most, sum(traffic[a, b] + traffic[b, a] for a, b in cables))
    return most
