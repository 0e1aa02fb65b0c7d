"""Simulation of a configuration: what is told on the way, and what is refused before it is tried."""

import re

import numpy as np
import pytest

from moxtrace.config import load
from moxtrace.demand import demand_of
from moxtrace.errors import ConfigError
from moxtrace.scenario import block_of, prepare
from moxtrace.simulate import simulate_block_of, simulate_config

CONFIG = """
model: {num_experts: 128, top_k: 6, hidden_dim: 512, intermediate_dim: 256}
traffic: {tokens_per_npu: 40, sampling: uniform}
topology: {kind: random-regular, npus: 32, degree: 4}
routing: {policy: tree}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(CONFIG)
    return lambda *overrides: load(path, overrides)


@pytest.mark.parametrize("policy", ["min-hop", "tree", "mox-paper"])
def test_every_long_part_tells_how_far_it_is(config, policy):
    told = []
    simulate_config(config(f"routing.policy={policy}"), lambda *x: told.append(x))
    steps = ["tokens", "weights", "routes", "transfers", "simulate"]
    if policy != "mox-paper":
        steps.remove("weights")
    assert list(dict.fromkeys(step for step, _, _ in told)) == steps
    for name in steps:
        done = [done for step, done, _ in told if step == name]
        assert done == sorted(done)
        assert {total for step, _, total in told if step == name} == {done[-1]}


@pytest.mark.parametrize("policy", ["min-hop", "tree", "mox-paper", "switch"])
def test_what_does_not_fit_is_refused_before_it_is_routed(config, policy, monkeypatch):
    block = block_of(prepare(config(f"routing.policy={policy}")))
    transfers = block.dispatch.num_transfers + block.combine.num_transfers
    monkeypatch.setattr("moxtrace.simulate.available_memory", lambda: 100_000)
    told = []
    with pytest.raises(ConfigError, match="use fewer tokens or NPUs") as caught:
        simulate_config(config(f"routing.policy={policy}"), lambda *x: told.append(x[0]))
    assert set(told) == {"tokens"}
    assert "\n" not in str(caught.value)
    estimate = int(re.search(r"about ([\d,]+) transfers", str(caught.value)).group(1).replace(",", ""))
    assert abs(estimate / transfers - 1) < 0.1


def test_nobody_is_refused_where_memory_is_unknown(config, monkeypatch):
    monkeypatch.setattr("moxtrace.simulate.available_memory", lambda: None)
    assert simulate_config(config()).slowdown > 1


def test_a_block_of_ones_own_is_simulated_alike(config):
    scenario = prepare(config())
    one, other = simulate_block_of(scenario, block_of(scenario)), simulate_config(config())
    np.testing.assert_array_equal(one.finished_ns, other.finished_ns)
    assert one.to_json() == other.to_json()


def test_first_rows_of_every_source():
    source = np.array([0, 0, 0, 2, 2], np.int32)
    ids = np.array([[1, 2], [3, 3], [1, 3], [0, 2], [3, 1]])
    demand = demand_of(source, ids, np.arange(4, dtype=np.int32), 4)
    few = demand.first_rows(2)
    assert few.source.tolist() == [0, 0, 2, 2]
    assert np.split(few.dest, few.dest_ptr[1:-1])[1].tolist() == [3]
    assert few.dest.tolist() == [1, 2, 3, 0, 1, 3]
    assert few.pairs.tolist() == demand.pairs.tolist()
    assert demand.first_rows(9).dest.tolist() == demand.dest.tolist()
