"""The policy mox: both kernels against the slow twin, properties, and its tables and their file."""

import dataclasses

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace.demand import demand_of
from moxtrace.errors import RoutingError
from moxtrace.routing import loads, policies, route
from moxtrace.routing.mox import kernels, policy
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.routing.mox.train import compute_tables
from moxtrace.routing.weights import compute_weights
from moxtrace.topology import build
from tests.reference import mox as twin
from tests.reference.routing import check_forest, rows_of
from tests.test_cli import fails, moxtrace
from tests.test_routing import demand, expander, links, networks, topology_of, uniform_demand

HOST = np.arange(16, dtype=np.int32) % 8
LINE = topology_of(nx.path_graph(4))


def drawn_tables(topology, seed):
    """Tables that no training would find, to reach every branch."""
    rng = np.random.default_rng(seed)
    npus, count = topology.num_npus, topology.num_links
    share = rng.integers(0, kernels.FINE, (npus, count)) // rng.choice([1, 8, 64], count)
    level = rng.integers(300, kernels.UNIT + 1, count)
    stretch = int(rng.integers(0, 3))
    price = rng.integers(-400, 1200 if stretch else 400, count)
    ingress = rng.integers(200, 3000, npus)
    prior = rng.integers(0, 3, npus) * kernels.FINE // 3
    return MoxTables(share, level, price, ingress, prior, (1.0,), "", "", 2, npus, stretch=stretch)


def flat_tables(topology):
    """All links and NPUs alike, plenty of ingress: only the counters tell links apart."""
    npus, count = topology.num_npus, topology.num_links
    return MoxTables(
        np.full((npus, count), kernels.FINE // 4), np.full(count, kernels.UNIT), np.zeros(count, np.int64),
        np.full(npus, 1), np.full(npus, kernels.FINE // 2), (1.0,), "", "", 2, npus,
    )  # fmt: skip


def trees(phase):
    return [phase.link[a:b].tolist() for a, b in zip(phase.tree_ptr, phase.tree_ptr[1:], strict=False)]


@settings(max_examples=150, deadline=None)
@given(networks(), st.integers(0, 2**32 - 1))
def test_both_kernels_equal_the_twin(case, seed):
    topology, rows, _ = case
    tables = drawn_tables(topology, seed)
    expected, _ = twin.route(topology, rows, tables)
    phase = route(topology, rows, "mox", tables, 10)
    assert trees(phase) == expected
    check_forest(phase, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "MASK_NODES", 0)
        other = route(topology, rows, "mox", tables, 10)
    assert trees(other) == expected
    assert other.parent.tolist() == phase.parent.tolist()
    assert other.delivers.tolist() == phase.delivers.tolist()


@pytest.mark.parametrize("nodes", [24, 64])
def test_kernels_agree_on_expanders(nodes, monkeypatch):
    topology = expander(nodes, 5)
    rows = uniform_demand(nodes, 90, 6, 2 * nodes, seed=3)
    tables = drawn_tables(topology, 5)
    phase = route(topology, rows, "mox", tables, 10)
    check_forest(phase, rows)
    monkeypatch.setattr(policy, "MASK_NODES", 0)
    assert trees(route(topology, rows, "mox", tables, 10)) == trees(phase)
    few = demand([(s, d) for s, d in list(rows_of(rows))[:180]], nodes)
    assert trees(route(topology, few, "mox", tables, 10)) == twin.route(topology, few, tables)[0]


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_long_collectives_equal_the_twin(seed, monkeypatch):
    """Long enough that counters outweigh the quotients, on skewed traffic."""
    topology = expander(8, 3, seed=seed)
    rng = np.random.default_rng(seed)
    odds = rng.permutation([0.9, 0.6, 0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
    sets = [
        (s, [d for d in range(8) if d != s and rng.random() < odds[d]]) for s in (0, 3, 6) for _ in range(150)
    ]
    rows, tables = demand(sets, 8), drawn_tables(topology, seed)
    expected, _ = twin.route(topology, rows, tables)
    assert trees(route(topology, rows, "mox", tables, 10)) == expected
    monkeypatch.setattr(policy, "MASK_NODES", 0)
    assert trees(route(topology, rows, "mox", tables, 10)) == expected


def test_more_nodes_than_bits():
    topology = topology_of(nx.convert_node_labels_to_integers(nx.grid_2d_graph(9, 10, periodic=True)))
    rows = uniform_demand(90, 3, 4, 90, seed=1)
    tables = drawn_tables(topology, 2)
    phase = route(topology, rows, "mox", tables, 10)
    check_forest(phase, rows)
    few = demand(list(rows_of(rows))[:40], 90)
    assert trees(route(topology, few, "mox", tables, 10)) == twin.route(topology, few, tables)[0]


def test_more_destinations_than_bits():
    topology = topology_of(nx.convert_node_labels_to_integers(nx.grid_2d_graph(9, 10, periodic=True)))
    rng = np.random.default_rng(5)
    sets = [(s, rng.choice(np.delete(np.arange(90), s), 30 + 20 * k, replace=False)) for s, k in
            [(4, 0), (4, 2), (50, 1), (50, 2), (89, 2)]]  # fmt: skip
    rows, tables = demand([(s, sorted(d.tolist())) for s, d in sets], 90), drawn_tables(topology, 6)
    assert trees(route(topology, rows, "mox", tables, 10)) == twin.route(topology, rows, tables)[0]


@settings(max_examples=300, deadline=None)
@given(st.integers(-(2**61), 2**61), st.integers(2**12, 2**40), st.integers(-2, 2))
def test_quotients_are_whole(a, b, off):
    """Also next to multiples, where a float's last bit decides."""
    a = a // b % 2**22 * b + off if off else a
    if abs(a // b) < 2**52:
        assert kernels.quotient(a, b) == a // b


# ---- worked by hand


def test_two_ways_take_turns():
    square = topology_of(nx.cycle_graph(4))
    phase = route(square, demand([(0, [2])] * 6, 4), "mox", flat_tables(square), 10)
    firsts = [links(phase, t)[0] for t in range(6)]
    assert firsts == [(0, 1), (0, 3)] * 3


def test_a_relay_that_leads_to_more_is_taken():
    # 0 reaches 3 over 1 or 2; only over 2 lies 4 as well
    topology = topology_of(nx.Graph([(0, 1), (0, 2), (1, 3), (2, 3), (2, 4)]))
    phase = route(topology, demand([(0, [3, 4])], 5), "mox", flat_tables(topology), 10)
    assert sorted(links(phase, 0)) == [(0, 2), (2, 3), (2, 4)]


def test_a_far_destination_is_approached_hop_by_hop():
    phase = route(LINE, demand([(0, [3])], 4), "mox", flat_tables(LINE), 10)
    assert links(phase, 0) == [(0, 1), (1, 2), (2, 3)]
    assert phase.delivers.tolist() == [False, False, True]


def test_an_overloaded_link_is_avoided_where_hops_are_cheap():
    # ingress of 1 binds (2.9 times the mean), so hops cost little, and 0 -> 1 is far over its share
    triangle = topology_of(nx.complete_graph(3))
    base = flat_tables(triangle)
    share = base.share.copy()
    direct = int(triangle.link_id(0, 1))
    share[:, direct] = 1000
    tables = dataclasses.replace(base, share=share, ingress=np.array([1, 3000, 1]))
    phase = route(triangle, demand([(0, [1])] * 60, 3), "mox", tables, 10)
    detours = sum(links(phase, t) == [(0, 2), (2, 1)] for t in range(60))
    assert detours > 20
    free = dataclasses.replace(base, share=share)
    phase = route(triangle, demand([(0, [1])] * 60, 3), "mox", free, 10)
    assert all(links(phase, t) == [(0, 1)] for t in range(60))


# ---- properties


@settings(max_examples=25, deadline=None)
@given(networks())
def test_costs_are_frozen_between_refreshes(case):
    """Within a batch, the order of tokens changes no tree."""
    topology, rows, _ = case
    sets = [(0, d) for _, d in rows_of(rows)] * 6
    tables = drawn_tables(topology, 9)
    sets = [(0, [d for d in dests if d != 0]) for _, dests in sets]
    a = trees(route(topology, demand(sets, topology.num_npus), "mox", tables, 10))
    swapped = [*sets]
    for first in (16, 18, 20, 22):  # batches of two tokens
        if first + 1 < len(sets):
            swapped[first], swapped[first + 1] = swapped[first + 1], swapped[first]
            b = trees(route(topology, demand(swapped, topology.num_npus), "mox", tables, 10))
            swapped[first], swapped[first + 1] = swapped[first + 1], swapped[first]
            assert b[first] == a[first + 1]
            assert b[first + 1] == a[first]
            assert b[first + 2 :] == a[first + 2 :]


def test_counters_start_afresh_in_each_collective_and_sources_do_not_meet():
    topology = expander(12, 3)
    rows = uniform_demand(12, 40, 4, 24, seed=2)
    tables = drawn_tables(topology, 1)
    whole = trees(route(topology, rows, "mox", tables, 10))
    assert trees(route(topology, rows, "mox", tables, 10)) == whole
    some = [i for i, s in enumerate(rows.source) if s in (3, 7)]
    sets = list(rows_of(rows))
    alone = route(topology, demand([sets[i] for i in some], 12), "mox", tables, 10)
    assert trees(alone) == [whole[i] for i in some]


def test_threads_and_runs_change_nothing(monkeypatch):
    topology = expander(20, 4)
    rows = uniform_demand(20, 30, 4, 40, seed=2)
    tables = drawn_tables(topology, 4)
    whole = route(topology, rows, "mox", tables, 10, threads=1)
    monkeypatch.setattr(policies, "_ROWS_PER_RUN", 60)
    for threads in (1, 3):
        phase = route(topology, rows, "mox", tables, 10, threads=threads)
        for name in ("link", "parent", "delivers", "tree_ptr"):
            np.testing.assert_array_equal(getattr(phase, name), getattr(whole, name))


@settings(max_examples=40, deadline=None)
@given(networks(), st.randoms(use_true_random=False))
def test_relabelling_relabels_the_trees(case, random):
    """With prices that differ, no two paths tie: the trees of the renamed network are the renamed trees."""
    topology, rows, _ = case
    n = topology.num_npus
    new = list(range(n))
    random.shuffle(new)
    new = np.array(new)
    other = topology.relabelled(new)
    link = other.link_id(new[topology.src], new[topology.dst])
    base = drawn_tables(topology, 7)
    price = (np.random.default_rng(3).permutation(len(link)) + 1) * 400 // len(link)
    tables = dataclasses.replace(base, price=price)
    back = np.argsort(link)
    old = np.argsort(new)
    moved = dataclasses.replace(
        tables, share=tables.share[old][:, back], level=tables.level[back], price=price[back],
        ingress=tables.ingress[old], prior=tables.prior[old],
    )  # fmt: skip
    first = [(s, d) for i, (s, d) in enumerate(rows_of(rows)) if i == 0 or rows.source[i - 1] != s]
    sets = demand(first, n)
    order = np.argsort(new[sets.source], kind="stable")
    renamed = demand([(new[first[t][0]], new[first[t][1]].tolist()) for t in order], n)
    _, costs = twin.route(topology, sets, tables)
    a, b = trees(route(topology, sets, "mox", tables, 10)), trees(route(other, renamed, "mox", moved, 10))
    for i, t in enumerate(order):
        if len(set(costs[t])) == len(costs[t]):
            assert len(b[i]) == len(a[t])
            assert sorted(b[i]) == sorted(link[a[t]].tolist()) or len(a[t]) > 1


def test_one_destination_takes_a_path_and_none_sends_nothing():
    topology = expander(16, 3)
    rows = uniform_demand(16, 20, 1, 32, seed=6)
    phase = route(topology, rows, "mox", drawn_tables(topology, 3), 10)
    check_forest(phase, rows)
    for t in range(phase.num_trees):
        a, b = phase.tree_ptr[t], phase.tree_ptr[t + 1]
        assert phase.parent[a:b].tolist() == [-1, *range(a, b - 1)][: b - a]
    nothing = route(topology, demand([(3, []), (3, [])], 16), "mox", drawn_tables(topology, 3), 10)
    assert nothing.num_transfers == 0


def test_a_complete_graph_has_no_tax_but_where_a_link_is_overloaded():
    topology = topology_of(nx.complete_graph(8))
    rows = uniform_demand(8, 200, 4, 16, seed=1)
    tables = compute_tables(topology, HOST, 16, 4, tokens_per_source=50, replays=4)
    phase = route(topology, rows, "mox", tables, 10)
    assert loads.summary(phase, rows)["bandwidth_tax"] < 0.002


# ---- tables


@pytest.fixture(scope="module")
def made():
    topology = expander(8, 3, seed=4)
    return topology, compute_tables(topology, HOST, 16, 3, tokens_per_source=100, replays=4, seed=5)


def test_tables_balance_an_expander():
    topology = expander(32, 8)
    host = np.random.default_rng(7).permutation(np.arange(256) % 32).astype(np.int32)
    tables = compute_tables(topology, host, 256, 8, tokens_per_source=600, replays=12, seed=1)
    rows = uniform_demand(32, 600, 8, 256, seed=9)
    busiest = {}
    for name, weights in (
        ("tree", None),
        ("mox-paper", compute_weights(topology, host, 256, 8, seed=1).weight),
        ("mox", tables),
    ):
        load = loads.link_load(route(topology, rows, name, weights, 1))
        busiest[name] = load.max()
        level = load.max() / load.mean()
    assert level < 1.08  # of mox, the last
    assert busiest["mox"] < min(busiest["tree"], busiest["mox-paper"])
    assert tables.share.sum() / kernels.FINE == pytest.approx(32 * tables.prior.sum() / kernels.FINE, rel=0.2)


@pytest.mark.parametrize(
    ("kind", "npus", "parameters"),
    [
        ("expander", 8, {"degree": 4}),
        ("expander", 12, {"degree": 4}),
        ("ring", 8, {}),
        ("mesh", 16, {"dims": [4, 4]}),
        ("fully-connected", 8, {}),
        ("hypercube", 16, {}),
    ],
)
def test_small_networks_are_no_worse_than_under_tree(kind, npus, parameters):
    topology = build(kind, npus, seed=1, **parameters)
    host = np.random.default_rng(3).permutation(np.arange(64, dtype=np.int32) % npus)
    # half of the sources prefer other experts than the rest: the tables expect neither
    rng = np.random.default_rng(4)
    source = np.repeat(np.arange(npus, dtype=np.int32), 1500)
    weight = np.where(source[:, None] % 2 == 0, rng.gamma(2, size=64), rng.gamma(2, size=64))
    ids = np.argsort(rng.exponential(size=weight.shape) / weight, axis=1)[:, :6].astype(np.int32)
    traffic = demand_of(source, ids, host, npus)
    tables = compute_tables(topology, host, 64, 6, seed=2)
    ours, tree = (
        loads.link_load(route(topology, traffic, policy, given, 1)).max()
        for policy, given in (("mox", tables), ("tree", None))
    )
    assert ours <= 1.05 * tree


def test_far_apart_the_better_measure_of_ways_is_kept():
    """On a ring of cliques all far traffic meets on few links; the busiest link is no worse than by hops."""
    graph = nx.connected_caveman_graph(5, 4)
    topology = topology_of(nx.convert_node_labels_to_integers(graph))
    host = np.arange(40, dtype=np.int32) % 20
    calls = []
    tables = compute_tables(
        topology, host, 40, 3, tokens_per_source=60, replays=4, progress=lambda *at: calls.append(at)
    )
    assert calls[-1] == (8, 8)
    assert tables.stretch in (0, 2)
    assert len(tables.history) == 4


def test_unequal_capacities_are_loaded_alike():
    graph = topology_of(nx.circulant_graph(24, [1, 5, 7]))
    fast = (graph.src + graph.dst) % 3 == 0
    topology = dataclasses.replace(graph, bandwidth_gbps=np.where(fast, 200.0, 100.0))
    host = np.arange(48, dtype=np.int32) % 24
    tables = compute_tables(topology, host, 48, 6, tokens_per_source=500, replays=16)
    rows = uniform_demand(24, 500, 6, 48, seed=9)
    load = loads.link_load(route(topology, rows, "mox", tables, 1))
    tree = loads.link_load(route(topology, rows, "tree", None, 1))
    assert load.max() < tree.max()


def test_the_file_round_trips(made, tmp_path):
    topology, tables = made
    tables.save(tmp_path / "a")
    tables.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = MoxTables.load(tmp_path / "a")
    for field in dataclasses.fields(tables):
        found, expected = getattr(again, field.name), getattr(tables, field.name)
        assert np.array_equal(found, expected), field.name
    again.check(topology, HOST, 3)
    assert again.parameters["policy"] == "mox"
    assert again.state_bytes() == {"own": 12 * 24 + 32, "common": 8 * 24 + 64 + 256}


def test_tables_are_refused_elsewhere(made):
    topology, tables = made
    with pytest.raises(RoutingError, match="another topology than this test of 8 NPUs"):
        tables.check(expander(8, 3, seed=5), HOST, 3)
    with pytest.raises(RoutingError, match="another placement of the experts and top-3, not top-4"):
        tables.check(topology, HOST[::-1].copy(), 4)
    with pytest.raises(RoutingError, match="mox tables for 8 NPUs and 24 links"):
        route(expander(10, 3), demand([(0, [1])], 10), "mox", tables, 10)
    with pytest.raises(RoutingError, match="needs link weights"):
        route(topology, demand([(0, [1])], 8), "mox", None, 10)
    for name, given_weights in (("mox", np.ones(24)), ("mox-paper", tables)):
        with pytest.raises(RoutingError, match="another policy's"):
            route(topology, demand([(0, [1])], 8), name, given_weights, 10)


def test_a_file_of_something_else_is_refused(made, tmp_path):
    with pytest.raises(RoutingError, match="cannot be read"):
        MoxTables.load(tmp_path / "missing")
    for name, content in (("text", b"{}"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RoutingError, match="no mox tables"):
            MoxTables.load(tmp_path / name)
    np.savez(tmp_path / "other.npz", about=np.frombuffer(b"{}", np.uint8))
    with pytest.raises(RoutingError, match="no mox tables"):
        MoxTables.load(tmp_path / "other.npz")
    made[1].save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RoutingError, match="no mox tables"):
        MoxTables.load(tmp_path / "cut")
    with pytest.raises(RoutingError, match="disagree about the number"):
        dataclasses.replace(made[1], level=made[1].level[1:])
    with pytest.raises(RoutingError, match="is negative"):
        dataclasses.replace(made[1], level=-made[1].level)
    with pytest.raises(RoutingError, match="stretch 3; expected 0, 1 or 2"):
        dataclasses.replace(made[1], stretch=3)
    with pytest.raises(RoutingError, match="a price is not from -410 to 410"):
        dataclasses.replace(made[1], price=made[1].price + 900)
    with pytest.raises(RoutingError, match="whole numbers in 1 dim"):
        dataclasses.replace(made[1], level=made[1].level * 1.0)


def test_tables_are_the_same_again(made):
    topology, tables = made
    again = compute_tables(topology, HOST, 16, 3, tokens_per_source=100, replays=4, seed=5)
    assert np.array_equal(again.share, tables.share)
    assert np.array_equal(again.price, tables.price)
    other = compute_tables(topology, HOST, 16, 3, tokens_per_source=100, replays=4, seed=6)
    assert not np.array_equal(other.share, tables.share)


def test_way_costs_are_shortest_ways():
    topology = expander(14, 3)
    cost = np.random.default_rng(0).integers(1, 50, topology.num_links)
    way = kernels.way_costs(topology.src, topology.in_ptr, topology.in_link, cost, 14)
    graph = nx.DiGraph()
    for e in range(topology.num_links):
        graph.add_edge(int(topology.src[e]), int(topology.dst[e]), weight=int(cost[e]))
    for v, row in nx.all_pairs_dijkstra_path_length(graph):
        assert [way[d, v] for d in range(14)] == [row[d] for d in range(14)]


def test_the_exponential_is_the_twins():
    assert policy.exponential().tolist() == [twin.exponential(i) for i in range(2 * kernels.UNIT)]


def test_generate_and_weights_take_the_policy(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {num_experts: 16, top_k: 3, hidden_dim: 64, intermediate_dim: 64}\n"
        "traffic: {tokens_per_npu: 20, sampling: uniform}\nrouting: {policy: mox}\n"
        "topology: {kind: expander, npus: 8, degree: 3}\n"
    )
    moxtrace("weights", config, "-o", tmp_path / "tables")
    moxtrace("generate", config, "-o", tmp_path / "a")
    file = ("--set", f"routing.weights={tmp_path / 'tables'}")
    moxtrace("generate", config, "-o", tmp_path / "b", *file)
    assert (tmp_path / "a" / "links.csv").read_bytes() == (tmp_path / "b" / "links.csv").read_bytes()
    wrong = fails("generate", config, "-o", tmp_path / "c", "--set", "model.top_k=4", *file)
    assert "top-3, not top-4" in wrong
