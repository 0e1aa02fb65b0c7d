"""The ideal switch is as good as its ports allow, in both phases; no policy beats the ports."""

import numpy as np
import pytest

from moxtrace import routing
from moxtrace.baseline import network_of, switch_completion_ns
from moxtrace.demand import demand_of
from moxtrace.engine.blocks import simulate_block
from moxtrace.topology import build, ideal_switch_of
from moxtrace.transfers import combine_of

SIZE = 14336


def demand_on(npus, tokens, skew, seed=1, experts=4, top_k=4):
    """Tokens of every NPU; the popularity of experts falls geometrically."""
    rng = np.random.default_rng(seed)
    popularity = skew ** np.arange(npus * experts)
    keys = rng.random((npus * tokens, npus * experts)) ** (1 / popularity)
    ids = np.argsort(-keys, axis=1)[:, :top_k].astype(np.int32)
    host = rng.permutation(np.arange(npus * experts) % npus).astype(np.int32)
    return demand_of(np.repeat(np.arange(npus, dtype=np.int32), tokens), ids, host, npus)


def phase_times(topology, demand, policy):
    """Cycles of dispatch and of combine, each alone, and of the busiest link's serialization in them."""
    dispatch = routing.route(topology, demand, policy, None, SIZE)
    combine = combine_of(dispatch, topology, SIZE)
    network = network_of(topology, "ps")
    nothing = np.zeros(topology.num_npus)
    alone = [
        simulate_block(d, c, nothing, network, barrier="phase", reduce_ns_per_byte=0.0)
        for d, c in ((dispatch, None), (None, combine))
    ]
    busiest = [(p.link_bytes() / network.bytes_per_cycle).max() for p in (dispatch, combine)]
    return [r.completion for r in alone], busiest, network


@pytest.mark.parametrize("npus", [4, 16])
@pytest.mark.parametrize("skew", [1.0, 0.95])
def test_the_switch_takes_what_its_busiest_port_takes(npus, skew):
    switch = ideal_switch_of(build("fully-connected", npus))
    times, ports, network = phase_times(switch, demand_on(npus, 400, skew), "switch")
    hop = network.latency.max() + SIZE / network.bytes_per_cycle.min()
    for time, port in zip(times, ports, strict=True):
        assert port <= time <= 1.02 * port + 2 * hop * 2


@pytest.mark.parametrize("policy", ["min-hop", "tree"])
def test_no_policy_beats_the_ports_of_the_switch(policy):
    network = build("random-regular", 16, degree=4)
    demand = demand_on(16, 400, 1.0)
    times, _, _ = phase_times(network, demand, policy)
    _, ports, _ = phase_times(ideal_switch_of(network), demand, "switch")
    for time, port in zip(times, ports, strict=True):
        assert time >= port


def test_the_whole_block_on_the_switch_by_hand():
    """Two NPUs, one token each to the other: two hops there, compute, two hops back."""
    demand = demand_of(np.array([0, 1], np.int32), np.array([[1], [0]]), np.array([0, 1], np.int32), 2)
    switch = ideal_switch_of(build("ring", 2))  # a cable of two lanes: 200 Gbit/s, 25 bytes per ns
    got = switch_completion_ns(demand, switch, np.array([1000, 1000]), (2500, 5000), "ps", "phase")
    assert got == pytest.approx(2 * (500 + 100) + 1000 + 2 * (500 + 200), abs=0.01)
