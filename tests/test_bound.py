"""Bounds: worked cases, every kernel against its twin, and what must hold of any bound."""

import json

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace.bound import bounds_of, cuts, duals, program, rows
from moxtrace.bound.best import port_load
from moxtrace.bound.kernels import cross_cut, flip_gains
from moxtrace.demand import demand_of
from moxtrace.routing import loads, route
from moxtrace.topology.graph import Topology
from tests.reference import bound as twin
from tests.strategies import random_demand, random_topology
from tests.test_cli import CONFIG, fails, moxtrace
from tests.test_routing import demand, hub, topology_of

POLICIES = ("min-hop", "tree", "mox-paper")


def busiest(topology, tokens, policy):
    weights = topology.capacity_gbps if policy == "mox-paper" else None
    return float(loads.link_load(route(topology, tokens, policy, weights, 1)).max())


@st.composite
def cases(draw, most_npus=7, one_way=True):
    """A small network, perhaps with one-way links and unequal capacities, and a demand on it."""
    npus = draw(st.integers(3, most_npus))
    seed = draw(st.integers(0, 2**32 - 1))
    topology = random_topology(npus, seed, extra=draw(st.integers(0, 5)), uneven=draw(st.booleans()))
    if one_way and draw(st.booleans()):  # keep the ring in one direction, and some of the rest
        rng = np.random.default_rng(seed)
        keep = (topology.dst == (topology.src + 1) % npus) | (rng.random(topology.num_links) < 0.5)
        topology = Topology(
            "one-way", npus, topology.src[keep], topology.dst[keep], topology.bandwidth_gbps[keep],
            500.0, topology.lanes[keep],
        )  # fmt: skip
    return topology, random_demand(npus, draw(st.integers(1, 4)), draw(st.integers(1, 4)), seed)


# ---- worked by hand


def test_a_ring_that_must_relay():
    # from 0 to the opposite corner of a square: two links of four tokens, eight links to share them
    square = topology_of(nx.cycle_graph(4))
    tokens = demand([(0, [2])] * 4, 4)
    bounds = bounds_of(square, tokens, exact=True)
    assert bounds.rows == 1
    assert bounds.loads["ingress"] == bounds.loads["egress"] == 4 / 200
    assert bounds.loads["steiner-mean"] == 4 * 2 / 800
    assert bounds.kind == "ingress"
    assert bounds.program.upper == pytest.approx(2 / 100)
    assert busiest(square, tokens, "tree") == 2 / 100


def test_a_bottleneck_between_two_cliques_is_a_cut():
    two = nx.disjoint_union(nx.complete_graph(4), nx.complete_graph(4))
    two.add_edge(0, 4)
    topology = topology_of(two)
    tokens = demand([(s, [5, 6]) for s in range(4)], 8)
    bounds = bounds_of(topology, tokens)
    assert (bounds.kind, bounds.load) == ("cut", 4 / 100)  # four tokens over one link, one copy each
    assert bounds.cut == (4, 5, 6, 7)
    assert busiest(topology, tokens, "tree") == 4 / 100


def test_relays_bind_where_everyone_sends_through_strangers():
    # a star: every token from a leaf to three leaves needs the centre, and the centre gets nothing itself
    star = topology_of(nx.star_graph(4))
    tokens = demand([(s, [d for d in range(1, 5) if d != s]) for s in range(1, 5)], 5)
    loads_ = bounds_of(star, tokens).loads
    assert loads_["steiner-mean"] == 4 * 4 / 800
    assert loads_["ingress"] == 3 / 100


def test_tokens_out_bind_at_a_hot_source():
    # NPU 0 has one link and sends all; the others have more than one link each to receive over
    kite = topology_of(nx.Graph([(0, 1), (1, 2), (1, 3), (2, 3)]))
    tokens = demand([(0, [1, 2, 3])] * 5, 4)
    bounds = bounds_of(kite, tokens)
    assert bounds.loads["egress"] == 5 / 100
    assert bounds.kind == "egress"
    assert bounds.load == busiest(kite, tokens, "tree")


def test_lanes_and_rates_are_capacity():
    topology = Topology("pair", 2, [0, 1], [1, 0], [50.0, 100.0], 0.0, [4, 1])
    bounds = bounds_of(topology, demand([(0, [1])] * 6 + [(1, [0])] * 5, 2))
    assert bounds.load == 5 / 100  # six tokens over 200 Gbit/s are less


def test_nothing_to_send_is_no_error():
    bounds = bounds_of(topology_of(nx.cycle_graph(3)), demand([(0, []), (2, [])], 3), exact=True)
    assert (bounds.load, bounds.kind, bounds.normalized(0.0)) == (0.0, "nothing sent", 1.0)


def test_through_a_hub_the_port_is_the_bound():
    tokens = random_demand(6, 5, 3, seed=4)
    bounds = bounds_of(hub(6), tokens)
    ingress = np.bincount(tokens.dest, minlength=6).max() / 800
    assert bounds.loads["ingress"] == ingress
    assert bounds.load <= busiest(hub(6), tokens, "min-hop")


# ---- twins


@given(cases())
def test_rows_are_those_of_the_tokens(case):
    _, tokens = case
    distinct = rows.distinct_rows(tokens)
    said = {
        (int(s), tuple(distinct.dest[distinct.ptr[q] : distinct.ptr[q + 1]].tolist())): int(distinct.count[q])
        for q, s in enumerate(distinct.source)
    }
    assert said == twin.token_rows(tokens)
    assert list(said) == sorted(said)


@given(cases(most_npus=9))
@settings(max_examples=60)
def test_relays_are_the_fewest(case):
    topology, tokens = case
    distinct = rows.distinct_rows(tokens)
    want = [twin.relays(topology, s, dests) for s, dests in twin.token_rows(tokens)]
    got = duals.relays_of(topology, distinct).tolist()
    assert all(g == w if w <= 4 else 5 <= g <= w for g, w in zip(got, want, strict=True))


def test_many_relays_are_counted_or_bounded():
    ring = topology_of(nx.cycle_graph(20))
    tokens = demand([(0, [6]), (0, [5]), (0, [10]), (0, [3, 17])], 20)
    assert duals.relays_of(ring, rows.distinct_rows(tokens)).tolist() == [2 + 2, 4, 5, 9]


@given(cases(most_npus=5), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_minimum_trees_are_minimal_and_are_trees(case, seed):
    topology, tokens = case
    distinct = rows.distinct_rows(tokens)
    price = np.random.default_rng(seed).integers(1, 30, topology.num_links).astype(float)
    load, carried, cost = duals.link_prices_load(topology, distinct, price, np.arange(len(distinct)))
    for q, ((s, dests), count) in enumerate(twin.token_rows(tokens).items()):
        assert cost[q] == twin.cheapest_tree(topology, s, dests, price)
        used = carried[q] / count
        assert set(used.tolist()) <= {0.0, 1.0}
        assert used @ price == cost[q]
        assert frozenset(np.flatnonzero(used).tolist()) in twin.trees(topology, s, dests)
    total = sum(c * t for c, t in zip(twin.token_rows(tokens).values(), cost, strict=True))
    assert load == pytest.approx(total / (price @ topology.capacity_gbps))


@given(cases(most_npus=5), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_node_prices_never_exceed_the_minimum_trees(case, seed):
    topology, tokens = case
    distinct = rows.distinct_rows(tokens)
    relays = duals.relays_of(topology, distinct)
    price = np.random.default_rng(seed).integers(1, 30, topology.num_nodes).astype(float)
    load, used = duals.node_prices_load(topology, distinct, relays, price)
    exact, _, _ = duals.link_prices_load(topology, distinct, price[topology.dst])
    assert load <= exact * (1 + 1e-12)
    in_capacity = topology.in_capacity_gbps()
    total = twin.node_prices_total(topology, tokens, price, relays)
    assert load == pytest.approx(total / (in_capacity @ price))
    assert (used * in_capacity) @ price == pytest.approx(load * (in_capacity @ price))
    equal, _ = duals.node_prices_load(topology, distinct, relays, np.ones(topology.num_nodes))
    mean, _, _ = duals.link_prices_load(topology, distinct, np.ones(topology.num_links))
    assert equal == pytest.approx(mean)


@given(cases(most_npus=9), st.integers(0, 2**32 - 1))
def test_cuts_and_their_gains(case, seed):
    topology, tokens = case
    arrays = rows.distinct_rows(tokens).arrays
    inside = np.random.default_rng(seed).random(topology.num_nodes) < 0.5
    now = twin.cut_tokens(tokens, set(np.flatnonzero(inside)))
    assert cross_cut(arrays, inside) == now
    gain = flip_gains(arrays, inside)
    for v in range(topology.num_nodes):
        other = set(np.flatnonzero(inside)) ^ {v}
        assert gain[v] == twin.cut_tokens(tokens, other) - now


@given(cases())
@settings(max_examples=40)
def test_no_single_node_helps_the_best_cut(case):
    topology, tokens = case
    distinct = rows.distinct_rows(tokens)
    if not len(distinct):
        return
    load, inside = cuts.best_cut(topology, distinct)
    assert load == cuts.cut_load(topology, distinct, inside)
    assert load >= max(cuts.ingress_load(topology, distinct), cuts.egress_load(topology, distinct)) - 1e-12
    for v in range(topology.num_nodes):
        other = inside.copy()
        other[v] = ~other[v]
        if other.any() and not other.all():
            assert cuts.cut_load(topology, distinct, other) <= load * (1 + 1e-8)


@given(cases())
def test_the_unit_is_that_of_the_summary(case):
    topology, tokens = case
    distinct = rows.distinct_rows(tokens)
    if len(distinct):
        phase = route(topology, tokens, "tree", None, 1)
        assert port_load(topology, distinct) == pytest.approx(loads.switch_load(phase, tokens))


# ---- a bound is below everything


@given(cases(most_npus=5))
@settings(max_examples=25)
def test_the_program_is_that_of_all_trees(case):
    topology, tokens = case
    bounds = bounds_of(topology, tokens, exact=True)
    if bounds.program is None:
        return
    optimum = twin.linear_program(topology, tokens)
    assert bounds.program.lower <= optimum * (1 + 1e-9)
    assert bounds.program.upper == pytest.approx(optimum, rel=2e-6)
    for name, load in bounds.loads.items():
        assert load <= optimum * (1 + 1e-9), name


@given(cases(most_npus=12, one_way=False))
@settings(max_examples=30)
def test_bound_program_and_policies_stand_in_order(case):
    topology, tokens = case
    bounds = bounds_of(topology, tokens, exact=True)
    if bounds.program is None:
        return
    assert bounds.load <= bounds.program.upper * (1 + 1e-9)
    assert bounds.program.upper - bounds.program.lower <= 1.1e-6 * bounds.program.upper
    for policy in POLICIES:
        assert bounds.program.upper <= busiest(topology, tokens, policy) * (1 + 1e-9), policy


def test_improved_prices_close_most_of_the_gap():
    topology, tokens = random_topology(9, 4, extra=6, uneven=True), random_demand(9, 20, 4, 4)
    bounds = bounds_of(topology, tokens, exact=True)
    best = bounds.program.lower
    assert bounds.loads["steiner-mean"] < 0.3 * best
    assert bounds.loads["node-prices"] > 0.95 * best
    assert bounds.loads["link-prices"] > 0.95 * best


def test_a_bound_does_not_know_names():
    topology, tokens = random_topology(10, 3, extra=9), random_demand(10, 30, 3, 3)
    bounds = bounds_of(topology, tokens, exact=True)
    to = np.random.default_rng(1).permutation(10)
    order = np.argsort(to[tokens.source], kind="stable")
    sets = [to[tokens.dest[tokens.dest_ptr[t] : tokens.dest_ptr[t + 1]]].tolist() for t in order]
    renamed = demand(list(zip(to[tokens.source][order].tolist(), sets, strict=True)), 10)
    other = bounds_of(topology.relabelled(to), renamed, exact=True)
    for name in ("ingress", "egress", "cut", "steiner-mean"):
        assert other.loads[name] == pytest.approx(bounds.loads[name]), name
    assert other.program.upper == pytest.approx(bounds.program.upper, rel=3e-6)


def test_what_is_only_sampled_is_told_apart(monkeypatch):
    topology, tokens = random_topology(10, 3, extra=9), random_demand(10, 40, 4, 3)
    whole = bounds_of(topology, tokens)
    assert not whole.estimates
    monkeypatch.setattr("moxtrace.bound.best._FULL_WORK", 1.0)
    monkeypatch.setattr(
        "moxtrace.bound.best._SEARCH_WORK", duals.trees_work(topology, rows.distinct_rows(tokens)) / 3
    )
    part = bounds_of(topology, tokens)
    assert "link-prices" not in part.loads
    said = part.estimates["link-prices"]
    assert 0 < said.standard_error < 0.1 * said.load
    assert said.rows < part.rows
    assert abs(said.load - whole.loads["link-prices"]) < 0.1 * said.load


def test_more_than_the_program_takes_is_said():
    wide = topology_of(nx.complete_graph(20))
    tokens = demand([(0, list(range(1, 16)))], 20)
    bounds = bounds_of(wide, tokens, exact=True)
    assert bounds.program is None
    assert "15 destinations on 20 nodes" in bounds.not_exact
    assert "link-prices" not in bounds.loads
    assert 1 / 1900 <= bounds.load <= busiest(wide, tokens, "tree")


# ---- the paper's claim: a sample of uniform tokens is as good as all of them


def test_sampled_and_enumerated_tokens_give_the_same_optimum():
    from itertools import combinations

    npus, top_k = 8, 3
    topology = topology_of(nx.circulant_graph(npus, [1, 3]))
    host = np.arange(npus, dtype=np.int32)
    every = np.array(list(combinations(range(npus), top_k)), np.int32)
    source = np.repeat(np.arange(npus, dtype=np.int32), len(every))
    enumerated = demand_of(source, np.tile(every, (npus, 1)), host, npus)
    rng = np.random.default_rng(1)
    many = np.repeat(np.arange(npus, dtype=np.int32), 1000)
    sampled = demand_of(many, every[rng.integers(len(every), size=len(many))], host, npus)
    optimum = []
    for tokens in (enumerated, sampled):
        solved = program.solve_program(topology, rows.distinct_rows(tokens))
        optimum.append(solved.upper / tokens.num_tokens)
    assert optimum[1] == pytest.approx(optimum[0], rel=0.03)


# ---- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("bound")
    (made / "run.yaml").write_text(CONFIG)
    return made


def test_the_command_prints_what_the_design_names(folder):
    answer = json.loads(moxtrace("bound", "run.yaml", "--json", "--exact", cwd=folder).stdout)
    assert answer["bound"] == answer["bounds"][answer["kind"]] == max(answer["bounds"].values())
    assert answer["certified"] is True
    assert answer["exact"]["lower"] == pytest.approx(answer["exact"]["upper"], rel=2e-6)
    assert {"min-hop", "tree", "mox-paper"} <= set(answer["policies"])
    for policy in answer["policies"].values():
        assert policy["ratio"] == pytest.approx(policy["max_load"] / answer["bound"])
        assert policy["ratio"] >= 1 - 1e-9
    run = json.loads(moxtrace("generate", "run.yaml", "-o", "run", "--json", cwd=folder).stdout)
    assert answer["policies"]["mox-paper"]["max_load"] == pytest.approx(run["normalized_max_load"])


def test_the_command_speaks_to_people(folder):
    text = moxtrace("bound", "run.yaml", "--policies", "tree", cwd=folder).stdout
    assert "<- the bound" in text
    assert "over the bound" in text
    assert "mox-paper" not in text
    none = json.loads(moxtrace("bound", "run.yaml", "--policies", "none", "--json", cwd=folder).stdout)
    assert none["policies"] == {}


def test_the_command_says_what_it_does_not_take(folder):
    assert "did you mean 'tree'?" in fails("bound", "run.yaml", "--policies", "trees", cwd=folder)
    big = ("--set", "topology.npus=24", "--set", "model.num_experts=48", "--set", "model.top_k=16")
    done = moxtrace("bound", "run.yaml", "--exact", "--policies", "none", "--json", *big, cwd=folder)
    assert "--exact:" in done.stderr
    assert "the bound is by" in done.stderr
    assert json.loads(done.stdout)["exact"] is None
