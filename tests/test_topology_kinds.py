"""Every kind of network: node count, degree and diameter against the literature, and what is refused."""

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace import kinds
from moxtrace.config import TopologyConfig
from moxtrace.errors import TopologyError
from moxtrace.kinds import COMMON, KINDS, PARAMETERS
from moxtrace.topology import build, builders, describe, expander, kernels, slim_fly
from tests.reference import topology as reference

SIZED = {
    "circulant": {"npus": 16, "offsets": [1, 5]},
    "expander": {"npus": 16, "degree": 4, "proposals": 2000},
    "random-regular": {"npus": 16, "degree": 6},
    "xpander": {"npus": 15, "degree": 4},
    "dragonfly": {"npus": 36},
    "slim-fly": {"npus": 50},
    "twisted-torus": {"npus": 8},
    "kautz": {"npus": 12},
    "generalized-kautz": {"npus": 11, "degree": 3},
    "lps": {"p": 17, "q": 13},
    "nvlink-domains": {"npus": 5},
    "boardfly": {"npus": 100},
}


def pairs_of(topology):
    return list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))


# ---- one table


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "path" not in KINDS[kind].parameters])
def test_building_twice_gives_the_same_arrays(kind):
    wanted = SIZED.get(kind, {"npus": 16})
    one, two = (build(kind, **wanted) for _ in range(2))
    for name in ("src", "dst", "bandwidth_gbps", "latency_ns", "lanes", "names"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    again = {k: v for k, v in one.parameters.items() if k in (*COMMON, *KINDS[kind].parameters)}
    three = build(**again)
    assert np.array_equal(one.src, three.src)
    assert np.array_equal(one.dst, three.dst)
    assert np.array_equal(one.lanes, three.lanes)


def test_the_configuration_has_a_key_for_every_parameter():
    assert set(TopologyConfig.model_fields) == {*COMMON, *PARAMETERS}
    assert {name for kind in KINDS.values() for name in kind.parameters} == set(PARAMETERS)
    assert set(builders._WIRINGS) == set(KINDS) - {"switch", "graph"}
    for kind in KINDS.values():
        for name, value in kind.parameters.items():
            assert value is None or PARAMETERS[name].refusal(value) is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dims", [4, "x"], "expected a list of whole numbers from 2"),
        ("dims", [], "expected a list"),
        ("groups", 1, "expected a whole number from 2 to 4096"),
        ("groups", 5000, "expected a whole number from 2 to 4096"),
        ("groups", True, "expected a whole number from 2 to 4096"),
        ("board", "rings", "did you mean 'ring'?; expected one of ring, full"),
        ("path", "", "expected a file"),
    ],
)
def test_values_are_checked(name, value, message):
    kind = next(kind for kind in KINDS if name in KINDS[kind].parameters)
    assert message in kinds.misfit(kind, {name: value})[1]
    with pytest.raises(TopologyError, match=f"topology {kind}: {name}: found"):
        build(kind, 16, **{name: value})


# ---- node count, degree, diameter


@pytest.mark.parametrize(
    ("kind", "given", "npus", "degree", "diameter"),
    [
        ("mesh", {"dims": [3, 4, 5]}, 60, (3, 6), 2 + 3 + 4),
        ("mesh", {"dims": [7]}, 7, (1, 2), 6),
        # twisted tori: Camara et al. 2010 give diameter a for 2a x a, where the torus has 3a/2
        ("twisted-torus", {"dims": [8, 4]}, 32, (4, 4), 4),
        ("twisted-torus", {"dims": [6, 12]}, 72, (4, 4), 6),
        ("twisted-torus", {"dims": [4, 4, 8]}, 128, (6, 6), 6),
        ("twisted-torus", {"dims": [4, 8, 8]}, 256, (6, 6), 6),
        # Moebius-Kantor and Paley-like circulants; C13(1, 5) is the largest of degree 4 and diameter 2
        ("circulant", {"npus": 13, "offsets": [1, 5]}, 13, (4, 4), 2),
        ("circulant", {"npus": 8, "offsets": [1, 4]}, 8, (3, 3), 2),
        ("hyperx", {"dims": [4, 4, 4]}, 64, (9, 9), 3),
        ("hyperx", {"dims": [16]}, 16, (15, 15), 1),
        # balanced dragonflies, a = 2h: a (a h + 1) routers of degree a - 1 + h, diameter 3
        ("dragonfly", {"global_links": 2}, 36, (5, 5), 3),
        ("dragonfly", {"group_size": 8}, 264, (11, 11), 3),
        ("dragonfly", {"group_size": 16, "global_links": 8, "groups": 32}, 512, (23, 23), 3),
        ("dragonfly", {"group_size": 4, "global_links": 1, "groups": 4}, 16, (4, 4), 3),
        # Slim Fly: 2 q^2 routers of degree (3 q - delta) / 2, diameter 2; q = 5 is Hoffman-Singleton
        ("slim-fly", {"prime_power": 5}, 50, (7, 7), 2),
        ("slim-fly", {"prime_power": 4}, 32, (6, 6), 2),
        ("slim-fly", {"prime_power": 7}, 98, (11, 11), 2),
        ("slim-fly", {"prime_power": 8}, 128, (12, 12), 2),
        ("slim-fly", {"prime_power": 9}, 162, (13, 13), 2),
        ("slim-fly", {"prime_power": 19}, 722, (29, 29), 2),
        ("slim-fly", {"prime_power": 27}, 1458, (41, 41), 2),
        ("de-bruijn", {"word_length": 5}, 32, (1, 2), 5),
        ("de-bruijn", {"symbols": 4, "word_length": 3}, 64, (3, 4), 3),
        ("kautz", {"word_length": 4}, 24, (2, 2), 4),
        ("kautz", {"symbols": 3, "word_length": 3}, 36, (3, 3), 3),
        ("generalized-kautz", {"npus": 100, "degree": 4}, 100, (4, 4), 4),
        ("generalized-kautz", {"npus": 36, "degree": 3}, 36, (3, 3), 3),
        ("xpander", {"npus": 54, "degree": 8}, 54, (8, 8), 3),
        ("lps", {"p": 17, "q": 13}, 1092, (18, 18), 4),
        ("lps", {"p": 13, "q": 17}, 2448, (14, 14), 4),
        ("nvlink-domains", {"npus": 9}, 9, (8, 8), 1),
        ("nvlink-domains", {"npus": 256, "nics": 4, "nic_lanes": 4}, 256, (16, 16), 3),
    ],
)
def test_node_count_degree_and_diameter(kind, given, npus, degree, diameter):
    found = describe(build(kind, **given))
    assert found["npus"] == npus
    assert (found["degree_min"], found["degree_max"]) == degree
    assert found["diameter"] == diameter


def test_a_mesh_is_networkx_grid():
    mesh = build("mesh", dims=[3, 5])
    grid = nx.convert_node_labels_to_integers(nx.grid_graph((5, 3)), ordering="sorted")
    assert {frozenset(p) for p in pairs_of(mesh)} == {frozenset(e) for e in grid.edges}


def test_a_twisted_torus_by_hand():
    # 2 x 4: rows 0..3 and 4..7; stepping over a row's end is plain, over the columns' end shifts by 2
    twisted = build("twisted-torus", dims=[2, 4])
    assert sorted(twisted.dst[twisted.src == 0].tolist()) == [1, 3, 4, 6]
    assert sorted(twisted.dst[twisted.src == 5].tolist()) == [1, 3, 4, 6]


@pytest.mark.parametrize("twist", [[0, 1], [0, 3]])
def test_any_twist_keeps_the_degree(twist):
    found = describe(build("twisted-torus", dims=[4, 5], twist=twist))
    assert (found["degree_min"], found["degree_max"]) == (4, 4)


def test_hyperx_widths_are_lanes():
    graph = build("hyperx", dims=[3, 4], dim_lanes=[2, 3])
    down = graph.src % 4 == graph.dst % 4
    assert set(graph.lanes[down]) == {2}
    assert set(graph.lanes[~down]) == {3}


@pytest.mark.parametrize(("size", "links", "groups"), [(4, 2, 9), (4, 2, 5), (4, 2, 3), (6, 3, 8), (3, 3, 7)])
def test_dragonfly_groups_share_their_cables_evenly(size, links, groups):
    graph = build("dragonfly", group_size=size, global_links=links, groups=groups)
    between = np.zeros((groups, groups), int)
    np.add.at(between, (graph.src // size, graph.dst // size), graph.lanes)
    apart = between[~np.eye(groups, dtype=bool)]
    assert apart.max() - apart.min() <= 1
    used = np.bincount(graph.src, graph.lanes * (graph.src // size != graph.dst // size))
    assert used.max() <= links
    dark = groups * size * links - used.sum()
    assert dark <= groups  # at most one port of a group, where an odd one is left


def test_slim_fly_of_5_is_the_hoffman_singleton_graph():
    ours = nx.Graph(pairs_of(build("slim-fly", prime_power=5)))
    assert nx.is_isomorphic(ours, nx.hoffman_singleton_graph())


@pytest.mark.parametrize("q", [3, 4, 5, 8, 9, 16, 25, 27])
def test_fields_are_fields(q):
    plus, times, powers = slim_fly._field(q, slim_fly._prime_of(q))
    assert sorted(powers) == list(range(1, q))
    for table, ids in ((plus, np.arange(q)), (times[1:, 1:], np.arange(1, q))):
        assert np.array_equal(table, table.T)
        assert all(sorted(row) == ids.tolist() for row in table.tolist())
    a, b, c = np.random.default_rng(q).integers(q, size=(3, 50))
    assert np.array_equal(times[a, plus[b, c]], plus[times[a, b], times[a, c]])


def test_de_bruijn_and_kautz_by_hand():
    assert pairs_of(build("de-bruijn", 4)) == [(0, 1), (1, 2), (1, 3), (2, 0), (2, 1), (3, 2)]
    # words 01 02 10 12 20 21
    kautz = [(0, 2), (0, 3), (1, 4), (1, 5), (2, 0), (2, 1), (3, 4), (3, 5), (4, 0), (4, 1), (5, 2), (5, 3)]
    assert pairs_of(build("kautz", 6)) == kautz
    assert not build("kautz", 6).is_symmetric


@settings(max_examples=30)
@given(st.integers(3, 90), st.integers(2, 5))
def test_generalized_kautz_keeps_imase_and_itohs_bound(npus, degree):
    degree = min(degree, npus - 1)
    graph = build("generalized-kautz", npus, degree=degree)
    assert describe(graph)["diameter"] <= math.ceil(math.log(npus, degree) - 1e-9)
    arcs = sum(1 for x in range(npus) for r in range(1, degree + 1) if (-degree * x - r) % npus != x)
    assert graph.lanes.sum() == arcs


def test_generalized_kautz_of_a_kautz_size_is_kautz():
    one, two = (
        nx.DiGraph(pairs_of(g)) for g in (build("generalized-kautz", 12, degree=2), build("kautz", 12))
    )
    assert nx.is_isomorphic(one, two)


@pytest.mark.parametrize(("p", "q", "bipartite"), [(17, 13, False), (5, 13, True)])
def test_lps_graphs_are_ramanujan(p, q, bipartite):
    graph = build("lps", p=p, q=q)
    adjacency = np.zeros((graph.num_npus,) * 2, np.float32)
    adjacency[graph.src, graph.dst] = 1
    assert (adjacency.sum(axis=0) == p + 1).all()
    assert nx.is_bipartite(nx.Graph(pairs_of(graph))) == bipartite
    if graph.num_npus < 2000:
        values = np.linalg.eigvalsh(adjacency)
        assert values[-1] == pytest.approx(p + 1, abs=1e-2)
        assert max(values[-2], -values[0]) <= 2 * math.sqrt(p) + 1e-2


def test_an_xpander_is_a_lift():
    graph = build("xpander", 35, degree=6, seed=3)
    for u in range(35):
        beside = graph.dst[graph.src == u] // 5
        assert sorted([*beside.tolist(), u // 5]) == list(range(7))
    other = build("xpander", 35, degree=6, seed=4)
    assert pairs_of(graph) != pairs_of(other)


@pytest.mark.parametrize(
    ("npus", "nics", "nic_lanes"), [(2, 8, 8), (7, 8, 8), (65, 8, 8), (12, 2, 1), (90, 8, 8)]
)
def test_servers_use_every_lane(npus, nics, nic_lanes):
    graph = build("nvlink-domains", npus, nics=nics, nic_lanes=nic_lanes)
    assert (np.bincount(graph.src, graph.lanes) == nics * nic_lanes).all()
    spread = graph.lanes.max() - graph.lanes.min()
    assert spread <= 1


# ---- annealing


@settings(max_examples=40)
@given(st.integers(4, 13), st.integers(2, 6), st.integers(0, 2**63), st.integers(0, 120))
def test_annealing_equals_its_twin(npus, degree, seed, proposals):
    degree = min(degree, npus - 1)
    if npus * degree % 2:
        npus += 1
    cables = expander.first_connected(npus, degree, seed)
    mine = cables.copy()
    counts = kernels.anneal(mine, npus, proposals, 2.0, np.uint64(seed))
    best, expected = reference.anneal(npus, cables.tolist(), proposals, 2.0, seed)
    assert tuple(counts) == expected
    assert [tuple(c) for c in mine.tolist()] == best


@pytest.mark.parametrize(("npus", "degree", "proposals"), [(32, 8, 20_000), (64, 8, 12_000), (30, 3, 20_000)])
def test_an_annealed_expander_says_what_it_won(npus, degree, proposals):
    graph = build("expander", npus, degree=degree, proposals=proposals)
    won = graph.parameters["annealing"]
    assert won == describe(graph)["annealing"]
    plain = build("random-regular", npus, degree=degree)
    for side, network in ((0, plain), (1, graph)):
        assert (np.diff(network.out_ptr) == degree).all()
        cables = [(u, v) for u, v in pairs_of(network) if u < v]
        score, corners = reference.annealing_score(npus, cables)
        assert won["score"][side] == score / 2
        assert won["triangles"][side] == corners == describe(network)["triangles"]
        assert won["pairs_beyond_2_hops"][side] == score - 6 * corners
    assert won["score"][1] < 0.6 * won["score"][0] or degree == 3


def test_the_annealed_expander_of_64_reaches_the_prototypes_graphs():
    # 12,000 proposals gave the prototype about 4 triangles; random graphs have 57
    won = build("expander", 64, degree=8).parameters["annealing"]
    assert won["triangles"][1] <= 1
    assert won["score"][1] < 150


def test_annealing_never_parts_the_graph():
    for seed in range(5):
        assert describe(build("expander", 24, degree=2, seed=seed, proposals=3000))["degree_max"] == 2


def test_a_dense_expander_is_chosen_by_radius():
    dense = build("expander", 16, degree=8)
    assert "annealing" not in dense.parameters
    assert pairs_of(dense) == pairs_of(build("expander", 16, degree=8, select="radius"))


def test_no_proposals_leave_the_plain_draw():
    plain = build("random-regular", 20, degree=4, seed=9)
    assert pairs_of(build("expander", 20, degree=4, seed=9, proposals=0)) == pairs_of(plain)


# ---- refused, with the nearest that work


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("mesh", {"npus": 7}, "7 NPUs make no 2-D mesh, 7 is prime; the nearest: 6 or 8"),
        ("mesh", {"dims": [2, 2, 2, 2]}, "expected 1 or 2 or 3 lengths"),
        ("twisted-torus", {"dims": [4, 4]}, "no usual twist, which takes lengths k and 2k"),
        ("twisted-torus", {"dims": [4, 8], "twist": [1, 2]}, "twist [1, 2] for dims [4, 8]; expected an"),
        ("circulant", {"npus": 9}, "offsets are missing"),
        ("circulant", {"npus": 9, "offsets": [5]}, "offsets [5]: 5; expected different steps from 1 to 4"),
        ("circulant", {"npus": 9, "offsets": [2, 2]}, "offsets [2, 2]: 2; expected different steps"),
        ("circulant", {"npus": 9, "offsets": [3]}, "share the factor 3, which leaves 3 separate parts"),
        ("hyperx", {"dims": [3, 3], "dim_lanes": [1]}, "dim_lanes [1] for dims [3, 3]"),
        ("dragonfly", {"npus": 100}, "100 NPUs and no group_size; a balanced one has 36 or 114"),
        ("dragonfly", {"group_size": 4, "groups": 20}, "the nearest: groups: 9, or global_links: 5"),
        ("dragonfly", {"group_size": 4, "npus": 35}, "of 4 have 36 NPUs, but npus is 35; give npus: 36"),
        ("slim-fly", {"npus": 100}, "100 NPUs; expected 2 q^2 for a prime power q, the nearest: 98 or 128"),
        ("slim-fly", {"prime_power": 6}, "expected a prime power from 3 to 43, the nearest: 5 or 7"),
        ("slim-fly", {"prime_power": 47}, "the nearest: 43"),
        ("xpander", {"npus": 50, "degree": 8}, "expected a multiple of 9, the nearest: 45 or 54"),
        ("xpander", {"npus": 5, "degree": 1}, "expected 2 to 4, the nearest: degree 2"),
        ("de-bruijn", {"npus": 50}, "with 2 symbols the nearest are 32 or 64; kind generalized-kautz has"),
        ("kautz", {"word_length": 30}, "expected at most 11, which gives 3072 NPUs"),
        ("generalized-kautz", {"npus": 9, "degree": 1}, "9 NPUs; expected 2 to 8, the nearest: 2"),
        ("lps", {"npus": 1000}, "1000 NPUs; expected a size such as"),
        ("lps", {"p": 7, "q": 13}, "different primes, 1 modulo 4, q above 2 sqrt(p)"),
        ("lps", {"p": 7, "q": 13}, "the nearest: p 5 and q 13"),
        ("nvlink-domains", {"npus": 5, "nics": 5, "nic_lanes": 1}, "an odd number; the nearest: 4 or 6 NPUs"),
        ("slim-fly", {"npus": 50, "degree": 8}, "degree 8: 50 NPUs of this kind have degree 7; leave"),
        ("mesh", {"npus": 9, "degree": 4}, "9 NPUs of this kind have degree 2 to 4"),
        ("hyperx", {"dims": [100, 100]}, "= 10000 NPUs; expected 2 to 4096"),
    ],
)  # fmt: skip
def test_what_gives_no_graph_is_refused_with_the_nearest(kind, given, message):
    with pytest.raises(TopologyError) as caught:
        build(kind, **given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- a graph for known traffic


def save(tmp_path, traffic, name="t.npy"):
    path = tmp_path / name
    np.save(path, traffic) if name.endswith("npy") else np.savetxt(path, traffic, delimiter=",")
    return str(path)


@pytest.mark.parametrize("seed", range(8))
def test_demand_tuned_is_the_best_of_all_graphs(tmp_path, seed):
    traffic = np.random.default_rng(seed).pareto(1.0, (5, 5))
    np.fill_diagonal(traffic, 0)
    graph = build("demand-tuned", degree=2 + seed % 2, path=save(tmp_path, traffic))
    best = reference.best_direct_traffic(traffic, 2 + seed % 2)
    direct = traffic[graph.src, graph.dst].sum()
    assert direct == pytest.approx(best, rel=1e-6)
    assert graph.parameters["direct_traffic"] == pytest.approx(direct / traffic.sum())
    assert graph.parameters["proved_best"] is True
    assert np.diff(graph.out_ptr).max() <= 2 + seed % 2


def test_demand_tuned_joins_its_parts_at_the_least_loss(tmp_path):
    # four triangles of heavy traffic, degree 2: a ring keeps two cables of each
    traffic = np.kron(np.eye(4), np.full((3, 3), 5.0))
    graph = build("demand-tuned", degree=2, path=save(tmp_path, traffic, "t.csv"))
    assert graph.parameters["direct_traffic"] == pytest.approx(8 / 12)
    assert (np.diff(graph.out_ptr) == 2).all()


def test_demand_tuned_finds_the_graph_that_the_traffic_hides(tmp_path):
    hidden = build("random-regular", 16, degree=4, seed=2)
    traffic = np.full((16, 16), 0.01)
    traffic[hidden.src, hidden.dst] = 1
    again = build("demand-tuned", 16, degree=4, path=save(tmp_path, traffic))
    assert pairs_of(again) == pairs_of(hidden)


def test_without_traffic_any_connected_graph_will_do(tmp_path):
    graph = build("demand-tuned", degree=3, path=save(tmp_path, np.zeros((8, 8))))
    assert (np.diff(graph.out_ptr) == 3).all()
    assert graph.parameters["direct_traffic"] == 0


@pytest.mark.parametrize(
    ("traffic", "given", "message"),
    [
        (np.ones((3, 4)), {}, "has shape (3, 4); expected (npus, npus)"),
        (np.array([[0, -1], [1, 0]]), {}, "-1.0 from 0 to 1; expected numbers >= 0"),
        (np.ones((6, 6)), {"degree": 1}, "degree 1 cannot connect 6 NPUs"),
        (np.ones((600, 600)), {}, "600 NPUs; expected at most 512"),
        (np.ones((6, 6)), {"npus": 7}, "is for 6 NPUs, but npus is 7; give npus: 6"),
        (np.array([["a", "b"], ["c", "d"]]), {}, "is no matrix of numbers"),
    ],
)
def test_bad_traffic(tmp_path, traffic, given, message):
    with pytest.raises(TopologyError) as caught:
        build("demand-tuned", **{"degree": 2, "path": save(tmp_path, traffic), **given})
    assert message in str(caught.value)


def test_traffic_that_is_no_file(tmp_path):
    (tmp_path / "t.csv").write_text("1,2\nx,y\n")
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    for name, message in (
        ("none.npy", "cannot be read: No such file"),
        ("t.txt", "unknown format '.txt'"),
        ("t.csv", "is no matrix of numbers"),
        ("cut.npy", "is no matrix of numbers"),
    ):
        with pytest.raises(TopologyError, match=message):
            build("demand-tuned", degree=2, path=str(tmp_path / name))
    with pytest.raises(TopologyError, match="path is missing"):
        build("demand-tuned", degree=2)
