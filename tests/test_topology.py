"""Builders, measures and relabelling, against closed forms, networkx and brute force."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace.errors import TopologyError
from moxtrace.topology import Topology, build, describe, expander, ideal_switch_of, kernels, metrics
from tests.reference import topology as reference


def cables(topology):
    """Undirected cables of a symmetric topology, sorted."""
    pairs = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    return [(u, v) for u, v in pairs if u < v]


@st.composite
def graphs(draw, max_npus=9):
    """Strongly connected digraphs: a random cycle and random other links, all attributes unequal."""
    n = draw(st.integers(2, max_npus))
    cycle = draw(st.permutations(range(n)))
    links = {(cycle[i - 1], cycle[i]) for i in range(n)}
    node = st.integers(0, n - 1)
    links |= {(u, v) for u, v in draw(st.sets(st.tuples(node, node), max_size=3 * n)) if u != v}
    links = sorted(links)
    rate = draw(
        st.lists(st.sampled_from([25.0, 100.0, 400.0, 0.1]), min_size=len(links), max_size=len(links))
    )
    latency = draw(st.lists(st.sampled_from([0.0, 500.0, 1.5]), min_size=len(links), max_size=len(links)))
    lanes = draw(st.lists(st.integers(1, 3), min_size=len(links), max_size=len(links)))
    names = tuple(f"n{i}" for i in range(n)) if draw(st.booleans()) else ()
    src, dst = np.array(links, np.int32).T
    return Topology("graph", n, src, dst, np.array(rate), np.array(latency), np.array(lanes), names)


# ---- builders


def test_ring_of_four_by_hand():
    ring = build("ring", 4)
    assert cables(ring) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert ring.num_links == 8
    assert ring.is_symmetric
    assert ring.is_uniform
    assert ring.parameters == {"kind": "ring", "npus": 4, "link_gbps": 100, "latency_ns": 500, "lanes": 1}


def test_a_wrap_of_length_2_doubles_the_cable():
    torus = build("torus", 6, dims=[2, 3], lanes=2)
    assert cables(torus) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (3, 5), (4, 5)]
    doubled = (torus.src - torus.dst) % 3 == 0
    assert set(torus.lanes[doubled]) == {4}
    assert set(torus.lanes[~doubled]) == {2}
    pair = build("ring", 2)
    assert (pair.num_links, pair.lanes.tolist()) == (2, [2, 2])


@pytest.mark.parametrize(
    ("kind", "npus", "more", "degree", "diameter", "average"),
    [
        ("ring", 8, {}, 2, 4, 16 / 7),
        ("torus", 16, {"dims": [4, 4]}, 4, 4, 32 / 15),
        ("torus", 16, {}, 4, 4, 32 / 15),
        ("torus", 60, {"dims": [3, 4, 5]}, 6, 5, 60 * (2 / 3 + 1 + 6 / 5) / 59),
        ("hypercube", 32, {}, 5, 5, 80 / 31),
        ("fully-connected", 7, {}, 6, 1, 1),
        ("switch", 5, {}, 1, 2, 2),
    ],
)
def test_closed_forms(kind, npus, more, degree, diameter, average):
    found = describe(build(kind, npus, **more))
    assert (found["degree_min"], found["degree_max"]) == (degree, degree)
    assert (found["diameter"], found["radius"]) == (diameter, diameter)
    assert found["average_path_length"] == pytest.approx(average)
    assert found["is_symmetric"]


def test_torus_numbers_its_last_dimension_fastest():
    torus = build("torus", 24, dims=[2, 3, 4])
    assert sorted(torus.dst[torus.src == 0].tolist()) == [1, 3, 4, 8, 12]


def test_default_torus_is_as_square_as_can_be():
    assert build("torus", 24).parameters["dims"] == [4, 6]


def test_switch_ports_carry_all_links_of_an_endpoint():
    switch = build("switch", 4, degree=8, link_gbps=100, latency_ns=300)
    assert (switch.num_npus, switch.num_nodes, switch.num_links) == (4, 5, 8)
    assert set(switch.capacity_gbps) == {800.0}
    assert set(switch.latency_ns) == {300.0}
    assert metrics.hops(switch)[0].tolist() == [0, 2, 2, 2, 1]


@pytest.mark.parametrize("npus", [16, 17])
def test_the_ideal_switch_of_a_regular_graph_is_the_built_switch(npus):
    made = ideal_switch_of(build("expander", npus, degree=8, link_gbps=50, lanes=2))
    built = build("switch", npus, degree=8, link_gbps=50, lanes=2)
    for name in ("src", "dst", "bandwidth_gbps", "latency_ns", "lanes"):
        assert np.array_equal(getattr(made, name), getattr(built, name)), name
    assert made.kind == "switch"


def test_the_ideal_switch_keeps_unequal_capacities_by_hand():
    src, dst = np.array([0, 1, 2, 0], np.int32), np.array([1, 2, 0, 2], np.int32)
    graph = Topology(
        "graph", 3, src, dst, np.array([100.0, 50, 25, 10]), np.array([5.0, 6, 7, 9]), np.array([1, 2, 1, 1])
    )
    switch = ideal_switch_of(graph)
    up, down = switch.dst == 3, switch.src == 3
    assert switch.capacity_gbps[up].tolist() == [110, 100, 25]
    assert switch.capacity_gbps[down].tolist() == [25, 100, 110]
    assert switch.latency_ns[up].tolist() == [9, 6, 7]
    assert switch.latency_ns[down].tolist() == [7, 5, 9]


# ---- random graphs


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 14), st.integers(1, 13), st.integers(0, 2**40), st.integers(0, 5))
def test_draws_are_regular_and_equal_the_twin(npus, degree, seed, number):
    degree = min(degree, npus - 1)
    if npus * degree % 2:
        npus += 1
    made = [tuple(c) for c in expander.draw(npus, degree, seed, number).tolist()]
    assert made == reference.draw(npus, degree, seed, number, kernels.MEND_TRIES)
    assert all(u < v for u, v in made)
    assert len(set(made)) == len(made)
    assert np.bincount(np.ravel(made), minlength=npus).tolist() == [degree] * npus


def test_a_stuck_pairing_starts_again():
    # 2-regular on 4 nodes: pairings such as two doubled cables cannot always be mended by one switch
    for seed in range(50):
        assert len(expander.draw(4, 2, seed, 0)) == 4


@pytest.mark.parametrize(("npus", "degree", "seed"), [(10, 3, 1), (12, 3, 7), (11, 4, 2), (9, 2, 3)])
def test_expander_is_the_best_draw(npus, degree, seed):
    best = reference.expander(npus, degree, seed, expander.DRAWS, kernels.MEND_TRIES)
    assert cables(build("expander", npus, degree=degree, seed=seed, select="radius")) == best


def test_expander_goes_on_past_disconnected_draws(monkeypatch):
    monkeypatch.setattr(expander, "DRAWS", 1)
    numbers = []
    plain = expander.draw
    monkeypatch.setattr(expander, "draw", lambda *a: numbers.append(a[3]) or plain(*a))
    build("expander", 200, degree=2, seed=5, select="radius")
    assert len(numbers) > 1


def test_expanders_are_the_same_everywhere():
    # printed by this package, and equal to the twin's; a change here changes everybody's traces
    golden = [(0, 4), (0, 6), (0, 7), (1, 2), (1, 4), (1, 5), (2, 5), (2, 6), (3, 4), (3, 6), (3, 7), (5, 7)]
    assert cables(build("expander", 8, degree=3, seed=1, select="radius")) == golden


def test_seeds_and_kinds_differ():
    one, two = (build("expander", 32, degree=4, seed=seed, select="radius") for seed in (1, 2))
    assert cables(one) != cables(two)
    plain = build("random-regular", 32, degree=4, seed=1)
    assert describe(plain)["average_path_length"] >= describe(one)["average_path_length"]
    assert plain.parameters["kind"] == "random-regular"
    assert one.parameters["select"] == "radius"


def test_every_pair_is_linked_about_equally_often():
    count = np.zeros((8, 8), int)
    for seed in range(3000):
        pairs = expander.draw(8, 3, seed, 0)
        count[pairs[:, 0], pairs[:, 1]] += 1
    expected = 3000 * 3 / 7
    spread = math.sqrt(3000 * 3 / 7 * 4 / 7)
    assert (np.abs(count[np.triu_indices(8, 1)] - expected) < 4.5 * spread).all()


def test_a_disconnected_graph_has_no_path_stats():
    ptr, dst = np.array([0, 1, 2, 3, 4]), np.array([1, 0, 3, 2], np.int32)
    assert kernels.path_stats(ptr, dst) == (-1, -1, -1)


# ---- refused requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ring", 1), "npus: 1; expected 2 to 4096"),
        (("ring", 5000), "npus: 5000; expected 2 to 4096"),
        (("expander", None), "topology expander: npus is missing"),
        (("expnder", 8), "unknown kind 'expnder'; did you mean 'expander'?; expected one of ring, torus"),
        (("expander", 16), "degree is missing; give the links per NPU, such as degree: 8"),
        (
            ("expander", 15, 7),
            "15 NPUs of degree 7 have 105 link ends, an odd number, which cannot be paired; "
            "the nearest: degree 6 or 8, or 14 or 16 NPUs",
        ),
        (("expander", 16, 16), "degree 16 needs at least 17 NPUs, found 16; the nearest: degree 15"),
        (("random-regular", 16, 1), "degree 1 cannot connect 16 NPUs; the nearest: degree 2"),
        (("expander", 16, 0), "degree 0 cannot connect"),
        (("switch", 16, 0), "degree 0; expected at least 1"),
        (("hypercube", 12), "12 NPUs; expected a power of two, the nearest: 8 or 16"),
        (("hypercube", 16, 8), "degree 8: 16 NPUs of this kind have degree 4; leave degree out"),
        (("torus", 13), "13 NPUs make no 2-D torus, 13 is prime; the nearest: 12 or 14"),
        (
            ("torus", 16, None, [4, 5]),
            "dims [4, 5] hold 4 x 5 = 20 NPUs, but npus is 16; give npus: 20, or dims: [4, 4]",
        ),
        (("torus", 16, None, [16]), "dims [16]; expected 2 or 3 lengths of at least 2"),
        (("torus", 16, None, [16, 1]), "dims: found [16, 1]; expected a list of whole numbers from 2"),
        (
            ("ring", 16, None, [4, 4]),
            "dims: found [4, 4], which is nothing that kind ring has; its keys: npus, degree",
        ),
    ],
)
def test_requests_that_no_network_fits(arguments, message):
    kind, npus, degree, dims = (*arguments, None, None)[:4]
    with pytest.raises(TopologyError) as caught:
        build(kind, npus, degree=degree, dims=dims)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"link_gbps": 0}, "link_gbps: 0; expected a rate > 0"),
        ({"link_gbps": math.nan}, "link_gbps: nan"),
        ({"latency_ns": -1}, "latency_ns: -1; expected >= 0"),
        ({"lanes": 0}, "lanes: 0; expected >= 1"),
        ({"seed": -1}, "seed: -1; expected >= 0"),
        ({"select": "radios"}, "select: found 'radios'; did you mean 'radius'?"),
        (
            {"path": "net.csv"},
            "path: found 'net.csv', which is nothing that kind expander has; its keys: select",
        ),
    ],
)
def test_options_out_of_range(option, message):
    with pytest.raises(TopologyError) as caught:
        build("expander", 8, **{"degree": 3, **option})
    assert message in str(caught.value)


def test_a_graph_needs_its_path_and_brings_its_links(tmp_path):
    with pytest.raises(TopologyError, match="topology graph: path is missing; name the file"):
        build("graph", 4)
    with pytest.raises(TopologyError, match="degree 2; the file has the links, leave degree out"):
        build("graph", 4, degree=2, path=tmp_path / "net.csv")


@pytest.mark.parametrize(
    ("links", "rate", "message"),
    [
        ([(0, 1), (1, 0), (1, 1)], 100, "link 1 -> 1: is a self-loop"),
        ([(0, 1), (1, 0), (0, 1)], 100, "link 0 -> 1: stands twice"),
        ([(0, 1), (1, 0), (1, 5)], 100, "link 1 -> 5: names a node outside 0..3"),
        ([(0, 1), (1, 0)], 0, "rate must be positive and finite, Gbit/s; found 0.0"),
        ([(0, 1), (1, 0)], math.nan, "found nan"),
        ([(0, 1), (1, 0)], 100, "2 of 4 nodes (2, 3) cannot be reached from NPU 0"),
        ([(0, 1), (1, 2), (2, 0), (0, 3)], 100, "1 of 4 nodes (3) cannot reach NPU 0"),
    ],
)
def test_a_topology_checks_itself(links, rate, message):
    src, dst = np.array(links, np.int32).T
    with pytest.raises(TopologyError) as caught:
        Topology("graph", 4, src, dst, rate, 500.0, 1)
    assert message in str(caught.value)


# ---- measures


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_measures_equal_their_twins(graph):
    table = metrics.hops(graph)
    assert table.dtype == np.int16
    assert np.array_equal(table, reference.hops(graph))
    assert metrics.triangles(graph) == reference.triangles(graph)
    least = reference.bisection_gbps(graph)
    assert metrics.bisection_gbps(graph) >= least - 1e-9
    found = describe(graph)
    assert found["radius"] == table.max(axis=1).min()
    assert found["diameter"] == table.max()
    radius, diameter, total = kernels.path_stats(graph.out_ptr, graph.dst)
    assert (radius, diameter, total) == (found["radius"], found["diameter"], table.sum())


@pytest.mark.parametrize("npus", [64, 65, 130])
def test_hops_across_word_borders(npus):
    graph = build("ring", npus)
    assert np.array_equal(metrics.hops(graph), reference.hops(graph))
    dense = build("random-regular", 66, degree=3)
    assert np.array_equal(metrics.hops(dense), reference.hops(dense))


@pytest.mark.parametrize(
    ("kind", "npus", "dims", "expected"),
    [
        ("ring", 10, None, 200),
        ("torus", 16, [4, 4], 800),
        ("hypercube", 16, None, 800),
        ("fully-connected", 8, None, 1600),
        ("fully-connected", 7, None, 1200),
        ("torus", 8, [2, 4], 400),
    ],
)
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_bisection_of_known_graphs_however_numbered(kind, npus, dims, expected, seed):
    graph = build(kind, npus, dims=dims)
    if seed is not None:
        graph = graph.relabelled(np.random.default_rng(seed).permutation(npus))
    assert metrics.bisection_gbps(graph) == expected
    if npus <= 10:
        assert reference.bisection_gbps(graph) == expected


def test_bisection_finds_the_neck_of_two_cliques():
    links = [(u, v) for side in (range(0, 12, 2), range(1, 12, 2)) for u in side for v in side if u != v]
    src, dst = np.array([*links, (0, 1), (1, 0)], np.int32).T
    assert metrics.bisection_gbps(Topology("graph", 12, src, dst, 100.0, 500.0, 1)) == 100


def test_bisection_takes_the_thinner_direction():
    src, dst = np.array([[0, 1], [1, 0]], np.int32)
    graph = Topology("graph", 2, src, dst, np.array([400.0, 25.0]), 500.0, 1)
    assert metrics.bisection_gbps(graph) == 25
    assert not graph.is_symmetric


@pytest.mark.parametrize("side", [[0, 1], [1, 0]])
def test_both_directions_of_one_halving_count(monkeypatch, side):
    monkeypatch.setattr(metrics, "_starts", lambda n, distance: [np.array(side)])
    src, dst = np.array([[0, 1], [1, 0]], np.int32)
    for rates in ([400.0, 25.0], [25.0, 400.0]):
        assert metrics.bisection_gbps(Topology("graph", 2, src, dst, np.array(rates), 500.0, 1)) == 25


@pytest.mark.parametrize("seed", range(12))
def test_bisection_of_small_random_graphs_is_the_thinnest(seed):
    graph = build("random-regular", 12, degree=4, seed=seed)
    assert metrics.bisection_gbps(graph) == reference.bisection_gbps(graph)


@given(graphs(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_refining_never_widens_the_cut_and_keeps_the_sizes(graph, random):
    ptr, nbr, weight = metrics._undirected(graph)
    side = np.arange(graph.num_npus) % 2
    random.shuffle(side)
    near = np.repeat(np.arange(graph.num_npus), np.diff(ptr))
    before, ones = weight[side[near] != side[nbr]].sum(), side.sum()
    kernels.refine_bisection(ptr, nbr, weight, side)
    assert side.sum() == ones
    assert weight[side[near] != side[nbr]].sum() <= before + 1e-6


@settings(deadline=None, max_examples=20)
@given(graphs(max_npus=7))
def test_bisection_of_a_switch_is_exact(graph):
    switch = ideal_switch_of(graph)
    assert metrics.bisection_gbps(switch) == pytest.approx(reference.bisection_gbps(switch))


def test_what_describe_returns():
    assert describe(build("torus", 8, dims=[2, 4], link_gbps=50, latency_ns=20)) == {
        "kind": "torus",
        "npus": 8,
        "links": 24,
        "degree_min": 3,
        "degree_max": 3,
        "lanes_min": 1,
        "lanes_max": 2,
        "diameter": 3,
        "radius": 3,
        "average_path_length": 12 / 7,
        "bisection_gbps": 200.0,
        "link_gbps_min": 50.0,
        "link_gbps_max": 100.0,
        "npu_out_gbps_min": 200.0,
        "npu_out_gbps_max": 200.0,
        "npu_in_gbps_min": 200.0,
        "npu_in_gbps_max": 200.0,
        "latency_ns_min": 20.0,
        "latency_ns_max": 20.0,
        "triangles": 0,
        "has_switch": False,
        "is_symmetric": True,
        "is_uniform": False,
    }


# ---- relabelling


@settings(deadline=None, max_examples=60)
@given(graphs(), st.randoms(use_true_random=False), st.booleans())
def test_relabelling_renames_and_changes_nothing_else(graph, random, switched):
    graph = ideal_switch_of(graph) if switched else graph
    new = list(range(graph.num_npus))
    random.shuffle(new)
    moved = graph.relabelled(new)
    to = np.array([*new, *range(graph.num_npus, graph.num_nodes)])
    link = moved.link_id(to[graph.src], to[graph.dst])
    assert sorted(link.tolist()) == list(range(graph.num_links))
    for name in ("bandwidth_gbps", "latency_ns", "lanes"):
        assert np.array_equal(getattr(moved, name)[link], getattr(graph, name)), name
    assert np.array_equal(metrics.hops(moved)[np.ix_(to, to)], metrics.hops(graph))
    assert [moved.npu_name(to[i]) for i in range(graph.num_npus)] == [
        graph.names[i] if graph.names else str(to[i]) for i in range(graph.num_npus)
    ]
    same = lambda found: {k: v for k, v in found.items() if k != "bisection_gbps"}  # noqa: E731
    assert same(describe(moved)) == pytest.approx(same(describe(graph)))
    back = moved.relabelled(np.argsort(new))
    for name in ("src", "dst", "bandwidth_gbps", "latency_ns", "lanes", "reverse_link", "names"):
        assert np.array_equal(getattr(back, name), getattr(graph, name)), name


def test_relabelling_wants_a_permutation():
    with pytest.raises(TopologyError, match="not a permutation"):
        build("ring", 4).relabelled([0, 1, 1, 2])
