"""Which replica a token takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moxtrace.config import RunConfig
from moxtrace.errors import ConfigError, RoutingError
from moxtrace.replicas import RULES, Replicas, demand_on
from moxtrace.routing import loads
from moxtrace.routing.weights import compute_weights
from moxtrace.scenario import block_of, prepare
from moxtrace.topology import build
from moxtrace.topology.metrics import hops
from tests.reference import replicas as slow
from tests.strategies import random_topology


@st.composite
def cases(draw):
    """Tokens, and experts with up to three replicas, on a small random network."""
    npus, seed = draw(st.integers(2, 9)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    experts, top_k = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    hosts = np.full((experts, 3), -1, np.int32)
    for row in hosts:
        home = rng.permutation(npus)[: rng.integers(1, 4)]
        row[: len(home)] = home
    source = np.sort(rng.integers(npus, size=draw(st.integers(1, 30)))).astype(np.int32)
    ids = np.argsort(rng.random((len(source), experts)), axis=1)[:, :top_k].astype(np.int32)
    ids[rng.random(ids.shape) < 0.1] = -1
    return source, ids, hosts, hops(random_topology(npus, seed))[:npus, :npus]


@given(cases())
def test_each_rule_is_its_slow_twin(case):
    source, ids, hosts, far = case
    tree = Replicas(hosts, far, "tree").chosen(source, ids)
    assert tree.tolist() == slow.chosen_by_tree(source.tolist(), ids.tolist(), hosts.tolist(), far)
    for rule in ("static", "nearest"):
        chosen = Replicas(hosts, far, rule).chosen(source, ids)
        assert chosen.dtype == np.int32
        assert chosen.tolist() == slow.chosen_by_table(
            rule, source.tolist(), ids.tolist(), hosts.tolist(), far
        )


@given(cases(), st.sampled_from(RULES))
def test_every_expert_is_served_by_one_of_its_hosts(case, rule):
    source, ids, hosts, far = case
    chosen = Replicas(hosts, far, rule).chosen(source, ids)
    assert ((chosen < 0) == (ids < 0)).all()
    assert (hosts[ids] == chosen[:, :, None]).any(axis=2)[ids >= 0].all()
    # under the rule tree another NPU may be in the tree already, and have less to do
    local = (rule != "tree") & (hosts[ids] == source[:, None, None]).any(axis=2) & (ids >= 0)
    assert (chosen[local] == np.broadcast_to(source[:, None], ids.shape)[local]).all()


@given(cases(), st.sampled_from(RULES))
def test_without_a_choice_all_rules_are_one(case, rule):
    source, ids, hosts, far = case
    alone = Replicas(np.where(np.arange(3) == 0, hosts, -1), far, rule)
    one, other = (demand_on(source, ids, host, len(far)) for host in (alone, hosts[:, 0].copy()))
    np.testing.assert_array_equal(one.dest, other.dest)
    np.testing.assert_array_equal(one.pairs, other.pairs)


def test_tree_takes_what_is_in_the_tree_by_hand():
    ring = hops(build("ring", 6))
    # expert 0 lives on NPU 2 only; expert 1 on NPU 1, which is nearer to the source, and on 2, needed anyway
    hosts = np.array([[2, -1], [1, 2], [3, 5]], np.int32)
    source, ids = np.array([0], np.int32), np.array([[0, 1, 2]])
    assert Replicas(hosts, ring, "nearest").chosen(source, ids).tolist() == [[2, 1, 5]]
    # expert 2: NPU 3 is one hop from 2, and NPU 5 is one hop from the source; 3 comes first in the circle
    assert Replicas(hosts, ring, "tree").chosen(source, ids).tolist() == [[2, 2, 3]]
    # the second token finds NPU 3 with a pair, so it takes 5
    two = Replicas(hosts, ring, "tree").chosen(np.zeros(2, np.int32), np.repeat(ids, 2, axis=0))
    assert two.tolist() == [[2, 2, 3], [2, 2, 5]]
    # two experts at once for two hops are as good as one for one, and better than that for 3
    hosts = np.array([[3, 5], [3, 4]], np.int32)
    assert Replicas(hosts, ring, "tree").chosen(source, np.array([[0, 1]])).tolist() == [[5, 4]]


def test_static_is_fair():
    full = hops(build("fully-connected", 8))
    chosen = Replicas(np.array([[0, 1]], np.int32), full, "static").chosen(
        np.arange(8, dtype=np.int32), np.zeros((8, 1), int)
    )
    assert chosen[2:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert chosen[:2, 0].tolist() == [0, 1]


def config(rule, policy="tree", **placement):
    return RunConfig.model_validate({
        "traffic": {"tokens_per_npu": 200, "sampling": "uniform"},
        "topology": {"kind": "expander", "npus": 16, "degree": 4},
        "placement": placement,
        "routing": {"policy": policy, "replicas": rule},
    })  # fmt: skip


def test_the_tree_needs_least():
    sent = {}
    for rule in RULES:
        scenario = prepare(config(rule, redundant=64))
        assert scenario.demand.pairs.sum() == 16 * 200 * 8
        sent[rule] = block_of(scenario).dispatch.num_transfers
    assert sent["tree"] < 0.97 * sent["nearest"] < 0.97 * sent["static"]


def test_all_policies_serve_the_same_demand():
    ours, switch = (prepare(config("nearest", policy, redundant=64)) for policy in ("tree", "switch"))
    np.testing.assert_array_equal(ours.demand.dest, switch.demand.dest)


def test_weights_are_for_one_rule():
    scenario = prepare(config("nearest", redundant=64))
    made = compute_weights(scenario.topology, scenario.host, 256, 8, tokens_per_source=50)
    made.check(scenario.topology, scenario.host, 8)
    other = prepare(config("static", redundant=64)).host
    with pytest.raises(RoutingError, match="another placement"):
        made.check(scenario.topology, other, 8)


def test_mox_runs_on_replicas():
    block = block_of(prepare(config("tree", "mox", redundant=32)))
    assert loads.link_load(block.dispatch).min() > 0


def test_refused():
    with pytest.raises(
        ConfigError, match=r"routing\.replicas: 'best'; expected one of nearest, static, tree"
    ):
        Replicas(np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int16), "best")
    with pytest.raises(ConfigError, match=r"placement\.redundant: 9999 more replicas .* at most 3840"):
        prepare(config("tree", redundant=9999))
