"""The two engines agree: a block simulated transfer by transfer, and the traces that lowering makes of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moxtrace.config import TraceConfig
from moxtrace.engine.blocks import simulate_block
from moxtrace.engine.network import Network
from moxtrace.engine.traces import simulate
from moxtrace.lowering import Block, traces_of
from moxtrace.routing import route
from moxtrace.topology import build, ideal_switch_of
from moxtrace.transfers import combine_of
from moxtrace.units import cycles_per_ns
from tests.strategies import blocks, random_demand

COLLECTIVES = {"dispatch": 1, "combine": 3, "block": 1}


def both(block, network, barrier, scale, window, form="collective"):
    """The block's result, and its traces' with free nodes issued in the order of their ids."""
    direct = simulate_block(
        block.dispatch, block.combine, block.compute_ns, network, barrier=barrier,
        reduce_ns_per_byte=block.reduce_ns_per_byte,
    )  # fmt: skip
    options = TraceConfig(barrier=barrier, time_scale=scale, form=form)
    made = {
        name: trace
        for name, _, trace in traces_of(block, direct.dispatch_order, direct.combine_order, options, window)
    }
    workload = made.pop("workload")
    collectives = {COLLECTIVES[name]: trace for name, trace in made.items()}
    return direct, simulate(workload, collectives, network, order="id")


@given(blocks(), st.sampled_from(["phase", "tokens"]), st.sampled_from(["ps", "ns"]))
@settings(max_examples=60)
def test_without_windows_every_npu_finishes_in_the_same_cycle(case, barrier, scale):
    demand, dispatch, combine = case
    compute = np.random.default_rng(demand.num_rows).integers(0, 4000, demand.num_npus)
    block = Block(dispatch, combine, compute, 0.01)
    network = Network.from_topology(dispatch.topology, cycles_per_ns(scale))
    direct, traced = both(block, network, barrier, scale, 0)
    np.testing.assert_array_equal(direct.finished, traced.finished)
    np.testing.assert_array_equal(direct.links.messages, traced.links.messages)
    np.testing.assert_array_equal(direct.links.size_bytes, traced.links.size_bytes)


@given(blocks(uneven=True))
@settings(max_examples=40)
def test_unequal_links_carry_the_same_and_take_the_same_time(case):
    demand, dispatch, combine = case
    block = Block(dispatch, combine, np.full(demand.num_npus, 100), 0.0)
    network = Network.from_topology(dispatch.topology, 1000)
    direct, traced = both(block, network, "tokens", "ps", 0)
    assert abs(traced.completion - direct.completion) <= 0.02 * direct.completion
    np.testing.assert_array_equal(direct.links.size_bytes, traced.links.size_bytes)


@pytest.mark.parametrize("policy", ["min-hop", "tree"])
@pytest.mark.parametrize("barrier", ["phase", "tokens"])
def test_windows_in_start_order_cost_next_to_nothing(policy, barrier):
    network = build("expander", 16, degree=4)
    demand = random_demand(16, 64, 4, seed=3, experts_per_npu=4)
    dispatch = route(network, demand, policy, None, 14336)
    block = Block(dispatch, combine_of(dispatch, network, 14336), np.full(16, 50_000), 0.0009)
    direct, traced = both(block, Network.from_topology(network, 1000), barrier, "ps", 4)
    assert direct.completion <= traced.completion <= 1.01 * direct.completion


def test_the_switch_agrees_too():
    switch = ideal_switch_of(build("ring", 6))
    demand = random_demand(6, 32, 3, seed=5)
    dispatch = route(switch, demand, "switch", None, 1000)
    block = Block(dispatch, combine_of(dispatch, switch, 1000), np.full(6, 777), 0.0)
    direct, traced = both(block, Network.from_topology(switch, 1000), "phase", "ps", 0)
    assert abs(traced.completion - direct.completion) <= 0.02 * direct.completion
