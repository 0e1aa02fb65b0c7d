"""One case, carried out: traffic and network once, then every policy on them.

Goes in: :class:`~paper.grid.Case`.  Comes out: facts of each policy, and of the certified bound, as plain
numbers.  Weights are kept in files, because training, inference and most assumptions share them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from moxtrace.baseline import network_of, switch_completion_ns
from moxtrace.bound import bounds_of
from moxtrace.config import RunConfig, load
from moxtrace.demand import Demand
from moxtrace.engine.blocks import simulate_block
from moxtrace.errors import ConfigError
from moxtrace.outputs import written_aside
from moxtrace.routing import TABLE_POLICIES, WEIGHTED_POLICIES, loads
from moxtrace.scenario import (
    Scenario,
    block_of,
    compute_weights_of,
    dispatch_on,
    expert_compute_ns,
    prepare,
    weights_on,
)
from moxtrace.transfers import combine_of
from paper.assumed import assumptions_of, single_paths, tokens_per_npu
from paper.grid import CONFIGS, Case
from paper.store import Store, digest

__all__ = ["Bench", "case_config", "make_weights"]

PART = 262_144  # rows routed at once where only loads are wanted
Facts = dict[str, Any]


def case_config(case: Case, **more: Any) -> RunConfig:
    """The configuration of a case; the policy is that of nobody yet."""
    keys = {k: v for k, v in case.keys.items() if not k.startswith("paper.")} | more
    keys.setdefault("routing.policy", "min-hop")
    return load(CONFIGS / f"{case.config}.yaml", [f"{k}={json.dumps(v)}" for k, v in keys.items()])


def _under(config: RunConfig, policy: str, weights: Path | None = None) -> RunConfig:
    path = None if weights is None else str(weights)
    routing = config.routing.model_copy(update={"policy": policy, "weights": path})
    return config.model_copy(update={"routing": routing})


def _weights_file(config: RunConfig, policy: str, store: Store) -> Path:
    """Where the weights of a policy lie: named by all that decides them, its own code included."""
    under = _under(config, policy)
    blocks = under.model_dump(mode="json", include={"topology", "placement", "model", "routing"})
    text = json.dumps([blocks, store.code(policy)], sort_keys=True)
    return store.folder / "weights" / f"{policy}-{digest(text)}.npz"


def make_weights(config: RunConfig, policy: str, store: Store) -> Path:
    """The file with the weights of a policy on a configuration's network, computed unless it is there."""
    path = _weights_file(config, policy, store)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        compute_weights_of(_under(config, policy)).save(path)
    return path


class Bench:
    """A case with its tokens drawn and its network built.

    Parameters
    ----------
    case : Case
    store : Store
        For weights and traffic matrices.

    Raises
    ------
    MoxtraceError
        When the case cannot be carried out.
    """

    def __init__(self, case: Case, store: Store) -> None:
        self._case, self._store = case, store
        self._assumed = assumptions_of(case)
        self._scenario = prepare(case_config(case))
        if self._assumed["topology"] == "demand-tuned":
            self._scenario = self._tuned(self._scenario)
        if self._assumed["compute"] == "tokens":
            self._scenario = self._counting_tokens(self._scenario)

    def _tuned(self, base: Scenario) -> Scenario:
        """The same traffic on the network that is best for it."""
        matrix = base.demand.traffic()
        path = self._store.folder / "matrices" / f"{digest(matrix.tobytes())}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside, aside.open("wb") as file:
            np.save(file, matrix)
        return prepare(
            case_config(self._case, **{"topology.kind": "demand-tuned", "topology.path": str(path)})
        )

    def _counting_tokens(self, base: Scenario) -> Scenario:
        if not isinstance(base.host, np.ndarray):
            raise ConfigError("paper.compute: tokens: experts have replicas; expected a placement without")
        tokens = tokens_per_npu(base.config, base.topology.num_npus, base.host)
        compute = base.config.compute
        return replace(
            base, compute_ns=expert_compute_ns(tokens, base.model, compute.peak_tflops, compute.efficiency)
        )

    def _policy(self, policy: str) -> Scenario:
        config, weights = self._scenario.config, None
        if policy in WEIGHTED_POLICIES + TABLE_POLICIES:
            weights = make_weights(config, policy, self._store)
        return replace(self._scenario, config=_under(config, policy, weights))

    @cached_property
    def _switch_ns(self) -> float:
        scenario = self._scenario
        trace = scenario.config.trace
        sizes = (scenario.dispatch_bytes, scenario.combine_bytes)
        return switch_completion_ns(
            scenario.demand, scenario.topology, scenario.compute_ns, sizes, trace.time_scale, trace.barrier
        )

    def facts(self, policy: str) -> Facts:
        """What a policy gives, or ``bound``."""
        start = time.process_time()
        if policy == "bound":
            facts = self._bound()
        elif self._case.simulated:
            facts = self._simulated(policy)
        else:
            facts = self._loads(policy)
        return facts | {"cpu_seconds": time.process_time() - start}

    def _bound(self) -> Facts:
        scenario = self._scenario
        bounds = bounds_of(scenario.topology, scenario.demand, seed=scenario.config.traffic.seed)
        return {"normalized_bound": bounds.normalized(bounds.load), "kind": bounds.kind}

    def _simulated(self, policy: str) -> Facts:
        scenario, trace = self._policy(policy), self._scenario.config.trace
        network = scenario.topology
        if policy == "min-hop" and self._assumed["min_hop"] == "single":
            dispatch = single_paths(network, scenario.demand, scenario.dispatch_bytes)
            combine = combine_of(dispatch, network, scenario.combine_bytes)
        else:
            block = block_of(scenario)
            dispatch, combine = block.dispatch, block.combine
        wires = network_of(network, trace.time_scale)
        result = simulate_block(
            dispatch, combine, scenario.compute_ns, wires, barrier=trace.barrier,
            reduce_ns_per_byte=scenario.config.compute.reduce_ns_per_byte,
        )  # fmt: skip
        block_ns = result.completion / wires.cycles_per_ns
        compute_ns = float(scenario.compute_ns.max())
        pairs = scenario.demand.pairs
        return loads.summary(dispatch, scenario.demand) | {
            "block_ns": block_ns,
            "switch_ns": self._switch_ns,
            "slowdown": block_ns / self._switch_ns,
            "communication_share": 1 - compute_ns / self._switch_ns,
            "communication_slowdown": (block_ns - compute_ns) / (self._switch_ns - compute_ns),
            "hottest_npu": float(pairs.max() / pairs.mean()),
        }

    def _loads(self, policy: str) -> Facts:
        """Link loads alone, some sources at a time: they do not see each other, and memory stays small."""
        scenario = self._policy(policy)
        weights = weights_on(scenario, scenario.topology)
        messages = np.zeros(scenario.topology.num_links, np.int64)
        deliveries = 0
        for part in _parts(scenario.demand):
            phase = dispatch_on(replace(scenario, demand=part), scenario.topology, weights)
            messages += phase.link_messages()
            deliveries += int(np.count_nonzero(phase.delivers))
        load = float((messages / scenario.topology.capacity_gbps).max())
        return {
            "busiest_link_bytes": int(messages.max()) * scenario.dispatch_bytes,
            "mean_link_bytes": float(messages.mean()) * scenario.dispatch_bytes,
            "bandwidth_tax": (int(messages.sum()) - deliveries) / deliveries,
            "normalized_max_load": load / loads.switch_load(phase, scenario.demand),
            "busiest_over_mean": load / float((messages / scenario.topology.capacity_gbps).mean()),
        }


def _parts(demand: Demand) -> Iterator[Demand]:
    """The demand in runs of whole sources."""
    starts = np.flatnonzero(np.diff(demand.source, prepend=-1))
    ends = np.append(starts[1:], demand.num_rows)
    first = 0
    for end in ends.tolist():
        if end - first < PART and end < demand.num_rows:
            continue
        at, to = demand.dest_ptr[first], demand.dest_ptr[end]
        yield Demand(
            demand.num_npus, demand.source[first:end], demand.dest_ptr[first : end + 1] - at,
            demand.dest[at:to], np.arange(end - first, dtype=np.int32), demand.pairs,
        )  # fmt: skip
        first = end
