"""Routing: worked cases, properties on random graphs, and every kernel against its twin."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from moxtrace.demand import Demand, demand_of
from moxtrace.errors import RoutingError
from moxtrace.routing import POLICIES, WEIGHTED_POLICIES, loads, policies, route
from moxtrace.topology.graph import Topology
from moxtrace.transfers import combine_of
from tests.reference import routing as twin


def topology_of(graph, gbps=100.0, lanes=1, kind="test"):
    """Both directions of each edge of an undirected networkx graph, or the arcs of a directed one."""
    edges = np.array(sorted(graph.to_directed().edges()))
    return Topology(kind, graph.number_of_nodes(), edges[:, 0], edges[:, 1], gbps, 500.0, lanes)


def hub(npus):
    """An ideal switch: NPUs ``0 .. npus - 1`` and the hub ``npus``."""
    npu, centre = np.arange(npus), np.full(npus, npus)
    src, dst = np.concatenate([npu, centre]), np.concatenate([centre, npu])
    return Topology("switch", npus, src, dst, 800.0, 500.0, 1, num_nodes=npus + 1)


def demand(rows, npus):
    """A demand from (source, destinations), sources ascending."""
    ptr = np.cumsum([0] + [len(d) for _, d in rows])
    dest = np.array([d for _, dests in rows for d in sorted(dests)], np.int32)
    source = np.array([s for s, _ in rows], np.int32)
    return Demand(npus, source, ptr, dest, np.arange(len(rows), dtype=np.int32), np.zeros(npus, np.int64))


def uniform_demand(npus, tokens_per_npu, top_k, experts, seed):
    source = np.repeat(np.arange(npus, dtype=np.int32), tokens_per_npu)
    topk = twin.uniform_demand_sets(len(source), experts, top_k, seed)
    host = np.random.default_rng(seed).permutation(np.arange(experts) % npus).astype(np.int32)
    return demand_of(source, topk, host, npus)


def expander(npus, degree, seed=0):
    return topology_of(nx.random_regular_graph(degree, npus, seed=seed))


def links(phase, tree):
    """(from, to) of the transfers of a tree, in order."""
    a, b = phase.tree_ptr[tree : tree + 2]
    return list(zip(phase.src[a:b].tolist(), phase.dst[a:b].tolist(), strict=True))


@st.composite
def networks(draw):
    """A strongly connected directed graph, sparse or dense, with unequal capacities, and a demand on it."""
    n = draw(st.integers(2, 11))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    density = draw(st.sampled_from([0.0, 0.1, 0.3, 1.0]))
    order = rng.permutation(n)
    adjacent = rng.random((n, n)) < density
    adjacent[order, np.roll(order, 1)] = True
    if draw(st.booleans()):
        adjacent |= adjacent.T
    np.fill_diagonal(adjacent, False)
    src, dst = np.nonzero(adjacent)
    gbps = rng.choice([50.0, 100.0, 130.0], len(src)) if draw(st.booleans()) else np.full(len(src), 100.0)
    topology = Topology("random", n, src, dst, gbps, 500.0, rng.integers(1, 3, len(src)))
    rows = []
    for source in range(n):
        for _ in range(int(rng.integers(0, 5))):
            others = [v for v in range(n) if v != source]
            rows.append((source, rng.permutation(others)[: rng.integers(0, n)].tolist()))
    return topology, demand(rows, n), rng.uniform(0.5, 2.0, len(src))


def options(policy, weights):
    return weights if policy in WEIGHTED_POLICIES else None


# ---- worked by hand


def test_a_token_hops_from_destination_to_destination_without_tax():
    ring = topology_of(nx.cycle_graph(6))
    phase = route(ring, demand([(0, [1, 2, 5])], 6), "tree", None, 10)
    assert links(phase, 0) == [(0, 1), (0, 5), (1, 2)]
    assert phase.parent.tolist() == [-1, -1, 0]
    assert phase.delivers.all()
    assert loads.summary(phase, demand([(0, [1, 2, 5])], 6))["bandwidth_tax"] == 0.0


def test_a_relay_serves_later_destinations():
    star = topology_of(nx.star_graph(4))  # 0 in the middle
    phase = route(star, demand([(1, [2, 3, 4])], 5), "tree", None, 10)
    assert links(phase, 0) == [(1, 0), (0, 2), (0, 3), (0, 4)]
    assert phase.parent.tolist() == [-1, 0, 0, 0]
    assert phase.delivers.tolist() == [False, True, True, True]
    assert loads.summary(phase, demand([(1, [2, 3, 4])], 5))["bandwidth_tax"] == pytest.approx(1 / 3)


def test_equal_relays_take_turns():
    square = topology_of(nx.cycle_graph(4))
    rows = demand([(0, [2])] * 4, 4)
    for policy in ("tree", "min-hop"):
        phase = route(square, rows, policy, None, 10)
        assert [links(phase, t)[0] for t in range(4)] == [(0, 1), (0, 3), (0, 1), (0, 3)]


def test_a_fast_link_takes_its_share():
    # two relays between 0 and 3; the way over 1 is three times as fast
    src, dst = [0, 1, 0, 2, 3], [1, 3, 2, 3, 0]
    topology = Topology("diamond", 4, src, dst, [300.0, 300.0, 100.0, 100.0, 100.0], 0.0, 1)
    rows = demand([(0, [3])] * 8, 4)
    over_1 = [links(route(topology, rows, "tree", None, 10), t)[0] == (0, 1) for t in range(8)]
    assert sum(over_1) == 6
    weights = np.ones(5)
    over_1 = [links(route(topology, rows, "mox-paper", weights, 10), t)[0] == (0, 1) for t in range(8)]
    assert sum(over_1) == 4


def test_counters_begin_anew_with_every_source_and_call():
    square = topology_of(nx.cycle_graph(4))
    rows = demand([(0, [2]), (1, [3]), (2, [0])], 4)
    for _ in range(2):
        phase = route(square, rows, "tree", None, 10)
        assert [links(phase, t)[0] for t in range(3)] == [(0, 1), (1, 0), (2, 1)]


def test_the_costliest_link_decides_between_paths():
    # 0 -> 1 -> 3 costs 1, 5; 0 -> 2 -> 3 costs 4, 4: the greater sum, the lesser maximum
    src, dst = [0, 0, 1, 2, 3], [1, 2, 3, 3, 0]
    topology = Topology("diamond", 4, src, dst, 100.0, 0.0, 1)
    weights = 1 / np.array([1.0, 4.0, 5.0, 4.0, 1.0])
    assert links(route(topology, demand([(0, [3])], 4), "mox-paper", weights, 10), 0) == [(0, 2), (2, 3)]


def test_the_switch_is_up_and_down():
    rows = demand([(0, [1, 2]), (2, [0])], 3)
    phase = route(hub(3), rows, "switch", None, 10)
    assert [links(phase, t) for t in range(3)] == [[(0, 3), (3, 1)], [(0, 3), (3, 2)], [(2, 3), (3, 0)]]
    assert phase.delivers.tolist() == [False, True] * 3
    assert loads.summary(phase, rows) == {
        "busiest_link_bytes": 20,
        "mean_link_bytes": 10.0,
        "bandwidth_tax": 0.0,
        "normalized_max_load": 1.0,
    }


def test_no_destination_sends_nothing():
    topology = expander(8, 3)
    rows = demand([(0, []), (3, []), (3, [])], 8)
    for policy in ("min-hop", "tree"):
        phase = route(topology, rows, policy, None, 10)
        assert phase.num_transfers == 0
        assert loads.summary(phase, rows) == {
            "busiest_link_bytes": 0,
            "mean_link_bytes": 0.0,
            "bandwidth_tax": 0.0,
            "normalized_max_load": 1.0,
        }
    assert route(topology, demand([], 8), "tree", None, 10).num_trees == 0


def test_loads_worked_by_hand():
    # a one-way ring of 3 with one fast link; 0 sends to 2 through 1
    topology = Topology("ring", 3, [0, 1, 2], [1, 2, 0], [100.0, 200.0, 50.0], 0.0, [1, 2, 1])
    rows = demand([(0, [2]), (0, [1, 2])], 3)
    phase = route(topology, rows, "tree", None, 7)
    assert loads.link_load(phase).tolist() == [2 / 100, 2 / 400, 0.0]
    assert loads.switch_load(phase, rows) == 3 / 100  # out of NPU 0
    summary = loads.summary(phase, rows)
    assert summary["busiest_link_bytes"] == 14
    assert summary["bandwidth_tax"] == pytest.approx(1 / 3)
    assert summary["normalized_max_load"] == pytest.approx(2 / 3)  # multicast may beat the switch's copies
    back = combine_of(phase, topology.reversed(), 7)
    assert loads.summary(back, rows)["bandwidth_tax"] == pytest.approx(1 / 3)
    assert loads.switch_load(back, rows) == 3 / 100  # into NPU 0


# ---- against the twins


@settings(max_examples=150, deadline=None)
@given(networks())
def test_trees_equal_their_twin(case):
    topology, rows, weights = case
    capacity = topology.capacity_gbps
    phase = route(topology, rows, "tree", None, 10, threads=1)
    assert phase.link.tolist() == sum(twin.route_trees(topology, rows, capacity.max() / capacity), [])
    twin.check_forest(phase, rows)
    phase = route(topology, rows, "mox-paper", weights, 10, threads=1)
    assert phase.link.tolist() == sum(twin.route_trees(topology, rows, 1 / weights), [])
    twin.check_forest(phase, rows)


@settings(max_examples=100, deadline=None)
@given(networks())
def test_paths_equal_their_twin_and_are_shortest(case):
    topology, rows, _ = case
    phase = route(topology, rows, "min-hop", None, 10, threads=1)
    copies = rows.unicast()
    assert phase.link.tolist() == sum(twin.route_paths(topology, copies), [])
    twin.check_forest(phase, copies)
    hops = twin.hop_distances(topology)
    length = [hops[d][s] for s, d in zip(copies.source, copies.dest, strict=True)]
    assert np.diff(phase.tree_ptr).tolist() == length


def test_larger_graphs_equal_their_twin():
    """Trees with paths of two and more relays, on both sides of 64 NPUs."""
    for topology, top_k in (
        (topology_of(nx.convert_node_labels_to_integers(nx.grid_2d_graph(7, 10, periodic=True))), 4),
        (expander(64, 8), 8),
        (expander(96, 4), 6),
        (topology_of(nx.circulant_graph(65, [1])), 3),
    ):
        n = topology.num_npus
        rows = uniform_demand(n, 3, top_k, 2 * n, seed=n)
        phase = route(topology, rows, "tree", None, 10)
        assert phase.link.tolist() == sum(twin.route_trees(topology, rows, np.ones(topology.num_links)), [])
        twin.check_forest(phase, rows)


def test_hop_distances_equal_networkx():
    graph = nx.gnp_random_graph(40, 0.1, seed=3, directed=True)
    graph.add_edges_from(zip(range(40), [*range(1, 40), 0], strict=True))
    topology = topology_of(graph)
    hops = policies.hop_distances(topology.in_ptr, topology.in_link, topology.src, 40)
    for v, lengths in nx.all_pairs_shortest_path_length(graph):
        assert [hops[d, v] for d in range(40)] == [lengths[d] for d in range(40)]


# ---- properties


@settings(max_examples=60, deadline=None)
@given(networks())
def test_one_destination_costs_its_distance(case):
    topology, rows, weights = case
    copies = rows.unicast()
    hops = twin.hop_distances(topology)
    length = [hops[d][s] for s, d in zip(copies.source, copies.dest, strict=True)]
    for policy in ("tree", "mox-paper"):
        phase = route(topology, copies, policy, options(policy, weights), 10)
        assert np.diff(phase.tree_ptr).tolist() == length


@settings(max_examples=60, deadline=None)
@given(networks())
def test_tax_is_never_negative_and_trees_never_cost_more_than_copies(case):
    topology, rows, weights = case
    unicast = route(topology, rows, "min-hop", None, 10)
    for policy in ("tree", "mox-paper"):
        phase = route(topology, rows, policy, options(policy, weights), 10)
        assert loads.summary(phase, rows)["bandwidth_tax"] >= 0
        assert phase.num_transfers <= unicast.num_transfers
        assert phase.delivers.sum() == unicast.delivers.sum() == len(rows.dest)
        assert loads.switch_load(phase, rows) == pytest.approx(twin.busiest_port(topology, rows))


def test_no_tax_on_a_complete_graph():
    topology = topology_of(nx.complete_graph(9))
    rows = uniform_demand(9, 20, 4, 18, seed=1)
    for policy in ("min-hop", "tree"):
        assert loads.summary(route(topology, rows, policy, None, 10), rows)["bandwidth_tax"] == 0


@settings(max_examples=60, deadline=None)
@given(networks(), st.randoms(use_true_random=False))
def test_relabelling_relabels_the_trees(case, random):
    """Weights without ties: the trees of the renamed network are the renamed trees."""
    topology, rows, weights = case
    n = topology.num_npus
    new = list(range(n))
    random.shuffle(new)
    new = np.array(new)
    other = topology.relabelled(new)
    link = other.link_id(new[topology.src], new[topology.dst])
    moved = np.empty_like(weights)
    moved[link] = weights
    order = np.argsort(new[rows.source], kind="stable")
    sets = list(twin.rows_of(rows))
    renamed = demand([(new[sets[t][0]], new[sets[t][1]].tolist()) for t in order], n)
    a = route(topology, rows, "mox-paper", weights, 10)
    b = route(other, renamed, "mox-paper", moved, 10)
    for i, t in enumerate(order):
        old = a.link[a.tree_ptr[t] : a.tree_ptr[t + 1]]
        assert b.link[b.tree_ptr[i] : b.tree_ptr[i + 1]].tolist() == link[old].tolist()


@pytest.mark.parametrize("policy", ["min-hop", "tree"])
def test_threads_and_runs_change_nothing(policy, monkeypatch):
    topology = topology_of(nx.convert_node_labels_to_integers(nx.grid_2d_graph(5, 6, periodic=True)))
    rows = uniform_demand(30, 25, 3, 60, seed=2)
    whole = route(topology, rows, policy, None, 10, threads=1)
    done = []
    for per_run in (1, 60, 200):
        monkeypatch.setattr(policies, "_ROWS_PER_RUN", per_run)
        for threads in (1, 3):
            phase = route(
                topology, rows, policy, None, 10, threads=threads, progress=lambda *at: done.append(at)
            )
            for name in ("link", "parent", "tree_ptr", "delivers"):
                assert getattr(phase, name).tobytes() == getattr(whole, name).tobytes()
    assert done[-1] == (whole.num_trees, whole.num_trees)
    twin.check_forest(whole, rows if policy == "tree" else rows.unicast())


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 4))
@example(4096)
def test_from_2_to_4096_npus(npus):
    topology = topology_of(nx.circulant_graph(npus, [1, 64] if npus > 64 else [1]))
    rows = demand([(0, [npus - 1]), (1, [0])], npus)
    phase = route(topology, rows, "tree", None, 10)
    assert links(phase, 0) == [(0, npus - 1)]
    assert links(phase, 1) == [(1, 0)]


# ---- refusals


def test_unknown_policy_names_the_known_ones():
    with pytest.raises(
        RoutingError, match="policy 'moe' is unknown; expected one of min-hop, tree, mox-paper, mox, switch"
    ):
        route(expander(8, 3), demand([], 8), "moe", None, 10)


def test_policies_and_topologies_must_fit():
    with pytest.raises(RoutingError, match="topology test has no switch"):
        route(expander(8, 3), demand([], 8), "switch", None, 10)
    for policy in sorted(set(POLICIES) - {"min-hop", "switch"}):
        with pytest.raises(RoutingError, match="is no NPU and copies no tokens; use policy switch"):
            route(hub(3), demand([], 3), policy, None, 10)
    with pytest.raises(RoutingError, match="demand is for 9 NPUs and topology test has 8"):
        route(expander(8, 3), demand([], 9), "tree", None, 10)


def test_weights_must_fit():
    topology = expander(8, 3)
    with pytest.raises(RoutingError, match="mox-paper needs link weights"):
        route(topology, demand([], 8), "mox-paper", None, 10)
    with pytest.raises(RoutingError, match="tree takes no weights"):
        route(topology, demand([], 8), "tree", np.ones(24), 10)
    with pytest.raises(RoutingError, match=r"shape \(23,\) for 24 links"):
        route(topology, demand([], 8), "mox-paper", np.ones(23), 10)
    for bad in (0.0, -1.0, np.nan, np.inf):
        weights = np.ones(24)
        weights[3] = bad
        with pytest.raises(
            RoutingError, match=f"weight of link 1 -> .* is {bad}; expected a finite number > 0"
        ):
            route(topology, demand([], 8), "mox-paper", weights, 10)
