"""Networks without what failed, and what each single failure costs."""

import json

import networkx as nx
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace import config, failures, routing, scenario
from moxtrace.cli import _group
from moxtrace.errors import RoutingError, TopologyError
from moxtrace.routing.loads import link_load
from moxtrace.topology import Failed, PartedError, Topology, build, read, without, write

CONFIG = """\
model: {num_experts: 16, top_k: 3, hidden_dim: 64, intermediate_dim: 64}
traffic: {tokens_per_npu: 32, sampling: uniform}
topology: {kind: expander, npus: 8, degree: 3}
routing: {policy: mox-paper}
"""


@pytest.fixture
def made(tmp_path):
    """Prepare a scenario with some settings."""
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return lambda *settings: scenario.prepare(config.load(path, settings))


def pairs_of(topology):
    return list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))


# ---- what is left


def test_nothing_failed_is_the_same_network():
    ring = build("ring", 4)
    assert without(ring, Failed()) is ring


def test_cables_links_and_lanes_by_hand():
    ring = build("torus", dims=[2, 3], lanes=2)  # 0 - 3 has four lanes, 0 - 1 two
    left = without(ring, Failed(links=[[1, 0]], one_way=[[2, 5]], lanes=[[0, 3, 3], [1, 2, 1]]))
    gone = {(0, 1), (1, 0), (2, 5)}
    assert set(pairs_of(ring)) - set(pairs_of(left)) == gone
    lanes = dict(zip(pairs_of(left), left.lanes.tolist(), strict=True))
    assert (lanes[0, 3], lanes[3, 0], lanes[1, 2], lanes[2, 1], lanes[5, 2]) == (1, 1, 1, 1, 4)
    assert left.names == ()
    assert left.parameters["failed"] == {
        "links": [[1, 0]], "one_way": [[2, 5]], "lanes": [[0, 3, 3], [1, 2, 1]],
    }  # fmt: skip


def test_all_lanes_lost_is_a_link_lost():
    ring = build("ring", 4, lanes=2)
    whole, lost = (without(ring, f) for f in (Failed(links=[[0, 1]]), Failed(lanes=[[0, 1, 1], [1, 0, 1]])))
    assert pairs_of(whole) == pairs_of(lost)


def test_failed_npus_are_gone_and_the_others_keep_their_numbers_as_names(tmp_path):
    left = without(build("fully-connected", 6), Failed(npus=[1, 4]))
    assert (left.num_npus, left.names) == (4, ("0", "2", "3", "5"))
    assert left.num_links == 12
    again = without(left, Failed(npus=[5], links=[["2", 3]]))  # by the old numbers, which are names now
    assert again.names == ("0", "2", "3")
    assert pairs_of(again) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    write(left, tmp_path / "left.csv")
    assert read(tmp_path / "left.csv").names == left.names
    with pytest.raises(TopologyError, match=r"failed.npus: no NPU 1; expected a name such as 0"):
        without(left, Failed(npus=[1]))


def test_names_and_one_way_networks():
    pod = build("boardfly", groups=2)
    left = without(pod, Failed(npus=["g0b0c1"], links=[["g1b0c0", "g1b0c1"]]))
    assert left.num_npus == 63
    assert "g0b0c1" not in left.names
    kautz = build("kautz", symbols=3, word_length=2)
    a, b = pairs_of(kautz)[0]
    assert set(pairs_of(kautz)) - set(pairs_of(without(kautz, Failed(links=[[b, a]])))) == {
        (u, v) for u, v in pairs_of(kautz) if {u, v} == {a, b}
    }


def test_a_switch_loses_a_port():
    left = without(build("switch", 5), Failed(npus=[2]))
    assert (left.num_npus, left.num_nodes, left.num_links) == (4, 5, 8)
    assert left.names == ("0", "1", "3", "4")


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ({"links": [[0, 3]]}, "failed.links: no link 0 -> 3; the links of 0 lead to 1, 5"),
        ({"one_way": [[0, 3]]}, "failed.one_way: no link 0 -> 3"),
        ({"lanes": [[0, 3, 1]]}, "failed.lanes: no link 0 -> 3"),
        ({"lanes": [[0, 1, 3]]}, "failed.lanes: 3 lanes of 0 -> 1, which has 2 of 2 left"),
        ({"lanes": [[0, 1, 1], [1, 0, 2]]}, "failed.lanes: 2 lanes of 1 -> 0, which has 1 of 2 left"),
        ({"lanes": [[0, 1, 0]]}, "[0, 1, 0]; expected [a, b, how many lanes, at least 1]"),
        ({"npus": [6]}, "failed.npus: no NPU 6; expected 0 to 5"),
        ({"npus": ["gpu"]}, "failed.npus: no NPU 'gpu'; expected 0 to 5"),
        ({"npus": [0, 1, 2, 3, 4]}, "failed.npus: 1 of 6 NPUs are left; expected at least 2"),
        ({"links": [[0, 1], [3, 4]]}, "parts the network in 2: {0, 4-5}, {1-3}; every NPU must reach every"),
        ({"npus": [0, 3]}, "parts the network in 2: {1-2}, {4-5}"),
        ({"one_way": [[0, 1], [3, 2]]}, "parts the network in 2: {0, 3-5}, {1-2}"),
    ],
)
def test_failures_that_cannot_be(failed, message):
    with pytest.raises(TopologyError) as caught:
        without(build("ring", 6, lanes=2), Failed(**failed))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_nearly_right():
    with pytest.raises(
        TopologyError, match=r"no NPU 'g0b0c9'; did you mean g0b0c\d\?; expected 0 to 63 or a"
    ):
        without(build("boardfly", groups=2), Failed(npus=["g0b0c9"]))


@settings(max_examples=60)
@given(st.integers(3, 12), st.integers(0, 2**30), st.data())
def test_what_is_left_equals_networkx(npus, seed, data):
    graph = build("random-regular", npus + npus % 2, degree=3, seed=seed)
    dead = data.draw(st.sets(st.integers(0, graph.num_npus - 1), max_size=2))
    pairs = pairs_of(graph)
    cut = data.draw(st.lists(st.sampled_from(pairs), max_size=3))
    plain = nx.DiGraph(pairs)
    plain.remove_edges_from([*cut, *(pair[::-1] for pair in cut)])
    plain.remove_nodes_from(dead)
    failed = Failed(links=[list(pair) for pair in cut], npus=sorted(dead))
    parts = sorted((sorted(map(str, c), key=int) for c in nx.strongly_connected_components(plain)), key=len)
    if len(plain) < 2:
        return
    if len(parts) > 1:
        with pytest.raises(PartedError) as caught:
            without(graph, failed)
        assert sorted(caught.value.parts) == sorted(parts)
        return
    left = without(graph, failed)
    named = {(int(left.npu_name(u)), int(left.npu_name(v))) for u, v in pairs_of(left)}
    assert named == set(plain.edges)


def test_a_configuration_with_failures(made):
    whole, left = made(), made("topology.failed={npus: [2]}")
    assert left.topology.num_npus == 7
    assert left.topology.names == ("0", "1", "3", "4", "5", "6", "7")
    assert set(left.host) == set(range(7))  # experts stand on those that are left
    assert left.demand.num_npus == 7
    a, b = pairs_of(whole.topology)[0]
    cut = made(f"topology.failed.links=[[{a}, {b}]]")
    assert cut.topology.num_links == whole.topology.num_links - 2


# ---- what each failure costs


def test_each_failed_cable_costs_what_routing_without_it_says(made):
    there = made()
    network = there.topology
    weights = np.linspace(1, 5, network.num_links)[np.random.default_rng(1).permutation(network.num_links)]
    dispatch = scenario.dispatch_on(there, network, weights)
    found = failures.fail_each_link(there, dispatch, weights)
    assert [f.ends for f in found] == [(str(u), str(v)) for u, v in pairs_of(network) if u < v]
    before = link_load(dispatch).max()
    for f in found[3:7]:
        cut = made(f"topology.failed.links=[[{f.ends[0]}, {f.ends[1]}]]")
        new = scenario.dispatch_on(cut, cut.topology, scenario.weights_on(cut, cut.topology))
        assert f.recomputed.busiest == link_load(new).max() / before
        keep = [pair not in ((int(f.ends[0]), int(f.ends[1])), (int(f.ends[1]), int(f.ends[0])))
                for pair in pairs_of(network)]  # fmt: skip
        old = routing.route(cut.topology, there.demand, "mox-paper", weights[keep], 1)
        assert f.kept.busiest == link_load(old).max() / before
        assert (f.lanes_left, f.parts) == (0, [])
    assert sum(f.kept.busiest for f in found) / len(found) > 1


def test_the_tables_of_mox_are_kept_link_by_link(made):
    there = made("routing.policy=mox")
    tables = scenario.weights_on(there, there.topology)
    found = failures.fail_each_link(there, scenario.dispatch_on(there, there.topology, tables), tables)
    assert len(found) == 12
    assert all(0.5 < f.kept.busiest < 4 and 0.5 < f.recomputed.busiest < 4 for f in found)
    left = np.arange(1, there.topology.num_links)
    kept = failures._kept(tables, left)
    assert np.array_equal(kept.share, tables.share[:, 1:])
    assert np.array_equal(kept.level, tables.level[1:])
    assert np.array_equal(kept.price, tables.price[1:])


def test_a_ring_that_loses_a_link_by_hand(made):
    there = made("topology={kind: ring, npus: 3}", "routing.policy=min-hop")
    dispatch = scenario.dispatch_on(there, there.topology, None)
    found = failures.fail_each_link(there, dispatch, None)
    assert [f.ends for f in found] == [("0", "1"), ("0", "2"), ("1", "2")]
    copies = np.zeros((3, 3), int)
    ptr = there.demand.dest_ptr
    for row, source in enumerate(there.demand.source):
        for d in there.demand.dest[ptr[row] : ptr[row + 1]]:
            copies[source, d] += 1
    np.fill_diagonal(copies, 0)
    # without 0 - 1, what went between them goes by 2
    loads = [copies[0, 2] + copies[0, 1], copies[2, 1] + copies[0, 1], copies[1, 2] + copies[1, 0],
             copies[2, 0] + copies[1, 0]]  # fmt: skip
    assert found[0].kept.busiest == pytest.approx(max(loads) / copies.max())
    assert found[0].kept == found[0].recomputed


def test_a_doubled_cable_loses_one_lane_and_a_bridge_parts_the_network(tmp_path, made):
    net = Topology("graph", 4, *np.array([(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]).T, 100.0, 500.0,
                   [2, 2, 1, 1, 2, 2])  # fmt: skip
    write(net, tmp_path / "net.csv")
    there = made(f"topology={{kind: graph, path: {tmp_path / 'net.csv'}}}", "routing.policy=tree")
    found = failures.fail_each_link(there, scenario.dispatch_on(there, there.topology, None), None)
    assert [f.lanes_left for f in found] == [1, 0, 1]
    assert found[1].parts == [["0", "1"], ["2", "3"]]
    thinner = without(there.topology, Failed(lanes=[[0, 1, 1]]))
    after = link_load(routing.route(thinner, there.demand, "tree", None, 1)).max()
    before = link_load(routing.route(there.topology, there.demand, "tree", None, 1)).max()
    assert found[0].kept.busiest == after / before
    assert found[1].kept is found[1].recomputed is None


def test_no_link_of_a_switch_can_be_spared(made):
    there = made("routing.policy=switch")
    with pytest.raises(RoutingError, match="has one link to the ideal switch and is alone without it"):
        failures.fail_each_link(there, scenario.dispatch_on(there, there.topology, None), None)


# ---- the command


def run(*arguments):
    result = CliRunner().invoke(_group, ["route", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_the_command_prints_what_the_library_finds(tmp_path, made):
    path = tmp_path / "run.yaml"
    there = made()
    weights = scenario.weights_on(there, there.topology)
    dispatch = scenario.dispatch_on(there, there.topology, weights)
    answer = json.loads(run(path, "--json", "--fail-each-link"))
    assert (
        answer["normalized_max_load"] == routing.loads.summary(dispatch, there.demand)["normalized_max_load"]
    )
    assert (answer["policy"], answer["npus"], answer["links"], answer["tokens"]) == ("mox-paper", 8, 24, 256)
    costs = failures.fail_each_link(there, dispatch, weights)
    assert [f["kept"]["busiest"] for f in answer["failures"]["cables"]] == [f.kept.busiest for f in costs]
    assert answer["failures"]["recomputed"]["worst"] == max(f.recomputed.busiest for f in costs)
    text = run(path, "--fail-each-link")
    assert "weights kept  weights recomputed" in text
    assert "worst of 12" in text
    assert "failures" not in json.loads(run(path, "--json"))


def test_the_command_names_the_parts(tmp_path, made):
    ring = "topology={kind: ring, npus: 4, failed: {links: [[0, 1]]}}"
    text = run(tmp_path / "run.yaml", "--set", ring, "--set", "routing.policy=tree", "--fail-each-link")
    assert "1 - 2: parts the network in 0, 2, 3 and 1" in text
    assert "weights" not in text
    with pytest.raises(TopologyError, match=r"parts the network in 2: \{0, 3\}, \{1-2\}"):
        run(tmp_path / "run.yaml", "--set", ring.replace("[[0, 1]]", "[[0, 1], [2, 3]]"))
