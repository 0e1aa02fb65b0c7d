"""Link weights: the update by hand, what they are for, and their file."""

import json

import networkx as nx
import numpy as np
import pytest

from moxtrace.errors import OutputError, RoutingError
from moxtrace.routing import loads, prior, route
from moxtrace.routing.kernels import draw_distinct
from moxtrace.routing.prior import placement_hash, topology_hash
from moxtrace.routing.weights import Weights, compute_weights
from moxtrace.topology.graph import Topology
from tests.reference import routing as twin
from tests.test_routing import expander, hub, topology_of

HOST = np.arange(16, dtype=np.int32) % 8


@pytest.fixture(scope="module")
def made():
    topology = expander(8, 3, seed=4)
    return topology, compute_weights(topology, HOST, 16, 3, tokens_per_source=50, seed=5)


def test_the_update_equals_a_plain_one():
    topology = Topology("ring", 8, *_ring(8), [100.0, 200.0] * 8, 0.0, 1)
    weights = compute_weights(topology, HOST, 16, 3, tokens_per_source=20, replays=4, eta=0.3, seed=5)
    demand = prior.uniform_demand(8, HOST, 3, 20, 5)
    weight = topology.capacity_gbps / topology.capacity_gbps.mean()
    tried, history = [], []
    for _ in range(4):
        used = np.bincount(sum(twin.route_trees(topology, demand, 1 / weight), []), minlength=16)
        load = used / topology.capacity_gbps
        tried.append((load.max(), weight))
        history.append(load.max() / load.mean())
        weight = weight * np.exp(-0.3 * (load / load.mean() - 1))
    assert weights.history == pytest.approx(history)
    assert weights.weight == pytest.approx(min(tried, key=lambda t: t[0])[1])
    assert weights.parameters == {
        "policy": "mox-paper", "tokens_per_source": 20, "replays": 4, "eta": 0.3, "seed": 5,
    }  # fmt: skip


def _ring(n):
    src = np.repeat(np.arange(n), 2)
    return src, (src + np.tile([1, n - 1], n)) % n


def test_the_best_replay_is_kept():
    topology = topology_of(nx.circulant_graph(32, [1, 4, 7, 13]))
    host = np.random.default_rng(7).permutation(np.arange(256) % 32).astype(np.int32)
    weights = compute_weights(topology, host, 256, 8, tokens_per_source=300, seed=1)
    demand = prior.uniform_demand(32, host, 8, 300, 1)
    phase = route(topology, demand, "mox-paper", weights.weight, 1)
    load = loads.link_load(phase)
    assert load.max() / load.mean() == pytest.approx(min(weights.history), rel=0.01)
    plain = loads.link_load(route(topology, demand, "tree", None, 1))
    assert load.max() <= plain.max()


def test_one_replay_leaves_the_capacities():
    topology = Topology("ring", 8, *_ring(8), [100.0, 300.0] * 8, 0.0, 1)
    weights = compute_weights(topology, HOST, 16, 3, tokens_per_source=5, replays=1)
    assert weights.weight.tolist() == (topology.capacity_gbps / 200.0).tolist()
    assert len(weights.history) == 1


def test_experts_at_home_send_nothing():
    topology = expander(8, 3)
    weights = compute_weights(topology, np.zeros(1, np.int32), 1, 1, tokens_per_source=5)
    assert np.isfinite(weights.weight).all()


def test_draws_are_distinct_and_uniform():
    drawn = draw_distinct(np.random.default_rng(3).random((40_000, 3)), 7)
    assert drawn.min() == 0
    assert drawn.max() == 6
    assert all(len(set(row)) == 3 for row in drawn[:500].tolist())
    sets = np.bincount((1 << drawn.astype(np.int64)).sum(axis=1))
    sets = sets[sets > 0]
    assert len(sets) == 35  # 7 choose 3
    expected = 40_000 / 35
    assert ((sets - expected) ** 2 / expected).sum() < 70  # chi-square, 34 degrees of freedom: p < 0.0003
    assert sorted(draw_distinct(np.full((1, 5), 1 - 2**-53), 5)[0].tolist()) == [0, 1, 2, 3, 4]


def test_a_file_keeps_everything(made, tmp_path):
    topology, weights = made
    weights.save(tmp_path / "a.json")
    weights.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json"]
    again = Weights.load(tmp_path / "a.json")
    assert again.weight.tobytes() == weights.weight.tobytes()
    assert vars(again) | {"weight": 0} == vars(weights) | {"weight": 0}
    again.check(topology, HOST, 3)


def test_the_same_seed_gives_the_same_weights(made):
    topology, weights = made
    again = compute_weights(topology, HOST, 16, 3, tokens_per_source=50, seed=5)
    assert again.weight.tobytes() == weights.weight.tobytes()
    other = compute_weights(topology, HOST, 16, 3, tokens_per_source=50, seed=6)
    assert other.history != weights.history


def test_weights_refuse_what_they_were_not_made_for(made):
    topology, weights = made
    with pytest.raises(
        RoutingError, match="made for another topology than this test of 8 NPUs; compute them again"
    ):
        weights.check(expander(8, 3, seed=5), HOST, 3)
    with pytest.raises(RoutingError, match="made for another placement of the experts and top-3, not top-4"):
        weights.check(topology, HOST[::-1], 4)
    with pytest.raises(RoutingError, match="made for 16 experts, not 8"):
        weights.check(topology, HOST[:8], 3)


def test_hashes_see_what_routing_sees():
    ring = Topology("ring", 8, *_ring(8), 100.0, 500.0, 2)
    same = Topology("mine", 8, *_ring(8), 200.0, 7.0, 1, names=tuple("abcdefgh"))
    assert topology_hash(ring) == topology_hash(same)
    assert topology_hash(ring) != topology_hash(Topology("ring", 8, *_ring(8), 100.0, 500.0, 1))
    assert topology_hash(hub(8)) != topology_hash(ring)
    assert placement_hash(HOST) == placement_hash(HOST.astype(np.int64)) != placement_hash(HOST[::-1])


def test_arguments_must_fit():
    topology = expander(8, 3)
    for change, message in (
        ({"policy": "tree"}, "policy 'tree' takes none; expected mox-paper"),
        ({"num_experts": 15}, r"a placement of 16 experts for 15 experts"),
        ({"top_k": 17}, "top-17 of 16 experts; expected 1 to 16"),
        ({"top_k": 0}, "top-0 of 16 experts"),
        ({"host": HOST + 1}, "placement names NPU 8; topology test has NPUs 0 to 7"),
        ({"host": HOST - 1}, "placement names NPU -1"),
        ({"replays": 0}, "0 replays of 1000 tokens per source; expected 1 or more of each"),
    ):
        values = {"host": HOST, "num_experts": 16, "top_k": 3} | change
        with pytest.raises(RoutingError, match=message):
            compute_weights(topology, **values)


def test_bad_files_are_refused_in_one_line(made, tmp_path):
    _, weights = made
    file = tmp_path / "weights.json"
    with pytest.raises(RoutingError, match="cannot be read: No such file"):
        Weights.load(file)
    weights.save(file)
    text = file.read_text()
    for content, message in (
        ("", "not JSON"),
        (text[:100], "not JSON"),
        ("[1]", "no weights; expected a file that moxtrace weights wrote"),
        (json.dumps({"format": "other"}), "no weights"),
        (json.dumps({"format": "moxtrace-weights-1"}), "damaged"),
        (text.replace('"history"', '"story"'), "damaged"),
        (text.replace('"top_k"', '"top"'), "damaged"),
        (json.dumps(json.loads(text) | {"weight": [1, 0]}), "damaged .*one finite number > 0 per link"),
        (json.dumps(json.loads(text) | {"weight": ["x"]}), "damaged"),
    ):
        file.write_text(content)
        with pytest.raises(RoutingError, match=message) as error:
            Weights.load(file)
        assert "\n" not in str(error.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(RoutingError, match="not JSON"):
        Weights.load(file)


def test_an_output_that_cannot_be_written_says_so(made, tmp_path):
    with pytest.raises(OutputError, match="cannot be written: no such directory"):
        made[1].save(tmp_path / "missing" / "weights.json")
    (tmp_path / "directory").mkdir()
    with pytest.raises(OutputError, match="is no regular file"):
        made[1].save(tmp_path / "directory")
    assert [p.name for p in tmp_path.iterdir()] == ["directory"]
