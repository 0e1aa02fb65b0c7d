"""A configuration carried out up to the routes: recording, tokens, placement, topology, policy.

Goes in: a :class:`~moxtrace.config.RunConfig`.  Comes out: a :class:`Scenario`, which is the demand on its
network, and the block of transfers that the policy makes of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moxtrace import models, placement, recordings, routing, sampling, topology
from moxtrace.coactivation import CoactivationGain, place_by_coactivation
from moxtrace.config import PATH_KEYS, RunConfig, message_bytes
from moxtrace.demand import Demand
from moxtrace.errors import ConfigError, RoutingError
from moxtrace.lowering import Block
from moxtrace.models import ModelShape
from moxtrace.recordings import LayerCounts
from moxtrace.replicas import Hosts, Replicas, demand_on
from moxtrace.routing.mox.tables import MoxTables
from moxtrace.routing.mox.train import compute_tables
from moxtrace.routing.prior import placement_hash, topology_hash
from moxtrace.routing.weights import Weights, compute_weights
from moxtrace.rundir import sha256_of
from moxtrace.shelf import EMPTY, Shelf
from moxtrace.topology import Topology
from moxtrace.topology.metrics import hops
from moxtrace.transfers import Phase, combine_of

__all__ = [
    "Scenario",
    "block_of",
    "compute_weights_of",
    "dispatch_on",
    "model_of",
    "prepare",
    "topology_of",
    "weights_on",
]

log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Scenario:
    """What a configuration says, as objects.

    Parameters
    ----------
    config : RunConfig
    model : ModelShape
    topology : Topology
        The network; under the policy ``switch`` the ideal switch of the configured one.
    host : array of int32, shape (experts,), or Replicas
        NPU of each expert, or its replicas and the rule that chooses among them.
    demand : Demand
    compute_ns : array of int64, shape (npus,)
        Expert compute time of each NPU.
    stands_on : str
        What the tokens are drawn from, in words.
    warnings : tuple of str
        What the recording should be known for.
    inputs : dict
        Block of the configuration and SHA-256 of every file that it names.
    placement_gain : CoactivationGain, optional
        What placing experts by co-activation won; None under other placements.
    shelf : Shelf
        Where weights and routes are kept that other runs may need too.
    """

    config: RunConfig
    model: ModelShape
    topology: Topology
    host: Hosts
    demand: Demand
    compute_ns: NDArray[np.int64]
    stands_on: str
    warnings: tuple[str, ...]
    inputs: dict[str, str]
    placement_gain: CoactivationGain | None = None
    shelf: Shelf = EMPTY

    @property
    def sends_copies(self) -> bool:
        """Whether the policy routes one row per copy instead of one per token."""
        return self.config.routing.policy in routing.UNICAST_POLICIES

    @property
    def dispatch_bytes(self) -> int:
        """Bytes of a token in dispatch."""
        return message_bytes(self.model.dispatch_dim, self.config.traffic.dispatch_dtype)

    @property
    def combine_bytes(self) -> int:
        """Bytes of a partial sum in combine."""
        return message_bytes(self.model.dispatch_dim, self.config.traffic.combine_dtype)


def model_of(config: RunConfig) -> ModelShape:
    """The preset, with the shapes that the configuration names put in its place."""
    shapes = config.model.model_dump(exclude={"preset"}, exclude_none=True)
    if config.model.preset is None:
        return models.ModelShape(name="custom", **shapes)
    return models.load(config.model.preset).with_shapes(**shapes)


def topology_of(config: RunConfig, shelf: Shelf = EMPTY) -> Topology:
    """The configured network without what failed, before a policy replaces it by a switch."""
    block = config.topology

    def build() -> Topology:
        built = topology.build(
            block.kind, block.npus, degree=block.degree, link_gbps=block.link_gbps,
            latency_ns=block.latency_ns, lanes=block.lanes, seed=block.seed, **block.own,
        )  # fmt: skip
        return topology.without(built, topology.Failed(**block.failed.model_dump()))

    file = sha256_of(Path(block.path)) if block.path is not None else None
    return shelf.take("topology", (block.model_dump(exclude={"path"}), file), build)


class _Layer(NamedTuple):
    """The layer to sample from, in words what it is, and what its recording should be known for."""

    counts: LayerCounts
    stands_on: str
    warnings: tuple[str, ...]


def _layer_of(config: RunConfig, model: ModelShape) -> _Layer:
    block, traffic = config.recording, config.traffic
    if block.path is None:
        return _Layer(
            LayerCounts("uniform", (), np.ones(model.num_experts)),
            "no recording: experts drawn uniformly",
            (),
        )
    recording = recordings.read(block.path).fit(model.num_experts, model.top_k)
    for warning in recording.warnings:
        log.info("%s: %s", block.path, warning)
    layer = recording.layer(block.layer, block.seed)
    clipped = ", clipped where an expert would be chosen more than once per token" if traffic.clip else ""
    drawn = {
        "exact": f"tokens drawn independently with the recorded inclusion probabilities{clipped}",
        "uniform": "tokens drawn uniformly; of the recording only the number of experts is used",
        "replay": "recorded token routes, replayed",
    }[traffic.sampling]
    # by its hash, not its name: a copy under another name gives the same run
    which = f"recording {sha256_of(Path(block.path))[:12]} ({recording.format}, {recording.kind})"
    return _Layer(layer, f"{which}, {layer.name}: {drawn}", recording.warnings)


def _refuse_too_large(npus: int, tokens_per_npu: int, top_k: int) -> None:
    """Refuse what cannot fit before it is tried: some 30 bytes per copy of a token."""
    needed = 30 * npus * tokens_per_npu * min(top_k, npus)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    if there is not None and needed > there:
        raise ConfigError(
            f"traffic.tokens_per_npu: {tokens_per_npu:,} tokens on each of {npus} NPUs with top-{top_k} need "
            f"about {needed / 1e9:,.0f} GB; this machine has {there / 1e9:.0f} GB: use fewer tokens or NPUs"
        )


def expert_compute_ns(
    pairs: NDArray[np.int64], model: ModelShape, peak_tflops: float, efficiency: float
) -> NDArray[np.int64]:
    """Time of the experts' three matrix products, whole ns.

    ``pairs x 3 x 2 x hidden_dim x intermediate_dim / (peak x efficiency)``: two projections up and one down,
    a multiplication and an addition for each weight.
    """
    flops = pairs.astype(np.float64) * 6.0 * model.hidden_dim * model.intermediate_dim
    return np.rint(flops / (peak_tflops * 1e3 * efficiency)).astype(np.int64)


def _carrier_of(config: RunConfig, network: Topology) -> Topology:
    """The configured network, or its ideal switch under that policy."""
    if config.routing.policy == "switch" and not network.has_switch:
        return topology.ideal_switch_of(network)
    return network


def _host_of(
    config: RunConfig, layer: LayerCounts, network: Topology
) -> tuple[Hosts, CoactivationGain | None]:
    """NPUs of each expert, and what placing by co-activation won.

    Replicas are chosen by distances on the configured network, also for its ideal switch: all policies then
    serve the same demand.
    """
    n, block, traffic = network.num_npus, config.placement, config.traffic
    host, gain = _placed(config, layer, n)
    if block.redundant:
        uniform = traffic.sampling == "uniform"
        weight = np.ones(layer.num_experts) if uniform else layer.counts.astype(np.float64)
        host = placement.add_replicas(host, block.redundant, weight, n)
    if host.ndim == 1:
        return host, gain
    return Replicas(host, hops(network)[:n, :n], config.routing.replicas), gain


def _placed(
    config: RunConfig, layer: LayerCounts, num_npus: int
) -> tuple[NDArray[np.int32], CoactivationGain | None]:
    """Placement before replicas are added."""
    block, experts = config.placement, layer.num_experts
    if block.kind != "coactivation":
        return placement.place(block.kind, experts, num_npus, block.seed, block.path), None
    even = placement.place("random", experts, num_npus, block.seed)
    host, gain = place_by_coactivation(layer, num_npus, even, block.seed)
    log.info(
        "placement by co-activation: a token touches %.2f NPUs instead of %.2f, the busiest NPU computes "
        "%.2f x the mean instead of %.2f (%d tokens that it was not fitted to)",
        gain.fan_out_after, gain.fan_out_before, gain.load_after, gain.load_before, gain.tokens,
    )  # fmt: skip
    return host, gain


def prepare(config: RunConfig, shelf: Shelf = EMPTY, progress: Progress | None = None) -> Scenario:
    """Carry out a configuration up to its demand.

    Parameters
    ----------
    config : RunConfig
    shelf : Shelf
        Where the network, and later weights and routes, are kept for other runs.
    progress : callable, optional
        Called while tokens are drawn, as ``progress(npus_done, npus)``.

    Raises
    ------
    MoxtraceError
        When the recording, the model, the placement or the topology cannot be had or do not fit.
    """
    model = model_of(config)
    layer, stands_on, warnings = _layer_of(config, model)
    network = topology_of(config, shelf)
    n, traffic, compute = network.num_npus, config.traffic, config.compute
    _refuse_too_large(n, traffic.tokens_per_npu, model.top_k)
    host, gain = _host_of(config, layer, network)
    source, topk_ids = sampling.sample_tokens(
        layer, mode=traffic.sampling, top_k=model.top_k, tokens_per_npu=traffic.tokens_per_npu, num_npus=n,
        seed=traffic.seed, clip=traffic.clip, progress=progress,
    )  # fmt: skip
    demand = demand_on(source, topk_ids, host, n)
    compute_ns = expert_compute_ns(demand.pairs, model, compute.peak_tflops, compute.efficiency)
    named = {block: getattr(getattr(config, block), key) for block, key in PATH_KEYS}
    inputs = {block: sha256_of(Path(path)) for block, path in named.items() if path is not None}
    return Scenario(
        config, model, _carrier_of(config, network), host, demand, compute_ns, stands_on, warnings, inputs,
        gain, shelf,
    )  # fmt: skip


def compute_weights_of(config: RunConfig, progress: Progress | None = None) -> Weights | MoxTables:
    """Weights for a configuration's topology, placement and top-K; its traffic is not looked at."""
    model = model_of(config)
    network = topology_of(config)
    host, _ = _host_of(config, _layer_of(config, model).counts, network)
    return _computed(config, model, _carrier_of(config, network), host, progress)


def _computed(
    config: RunConfig,
    model: ModelShape,
    network: Topology,
    host: Hosts,
    progress: Progress | None = None,
) -> Weights | MoxTables:
    block = config.routing
    if block.policy in routing.TABLE_POLICIES:
        return compute_tables(
            network, host, model.num_experts, model.top_k, seed=block.seed, progress=progress
        )
    return compute_weights(
        network, host, model.num_experts, model.top_k, tokens_per_source=block.tokens_per_source,
        replays=block.replays, eta=block.eta, seed=block.seed, policy=block.policy, progress=progress,
    )  # fmt: skip


def weights_on(
    scenario: Scenario, network: Topology, progress: Progress | None = None
) -> NDArray[np.float64] | MoxTables | None:
    """What the configured policy needs on ``network``, from the file or computed; None if it needs nothing.

    The file serves the scenario's own network only.
    """
    block = scenario.config.routing
    if block.policy not in routing.WEIGHTED_POLICIES + routing.TABLE_POLICIES:
        return None
    made: Weights | MoxTables
    if block.weights is not None and network is scenario.topology:
        made = (MoxTables if block.policy in routing.TABLE_POLICIES else Weights).load(block.weights)
        made.check(network, scenario.host, scenario.model.top_k)
    else:
        made = scenario.shelf.take(
            "weights",
            (
                topology_hash(network), placement_hash(scenario.host), scenario.model.num_experts,
                scenario.model.top_k, block.model_dump(exclude={"weights"}),
            ),
            lambda: _computed(scenario.config, scenario.model, network, scenario.host, progress),
        )  # fmt: skip
    return made if isinstance(made, MoxTables) else made.weight


def _routed(
    scenario: Scenario,
    on: Topology,
    size_bytes: int,
    progress: Progress | None,
    weights_progress: Progress | None,
) -> Phase:
    """Route the scenario's demand on a network by its policy, or take the routes that are kept."""
    policy, seed, demand = scenario.config.routing.policy, scenario.config.routing.seed, scenario.demand
    weights = weights_on(scenario, on, weights_progress)
    known = weights.arrays if isinstance(weights, MoxTables) else weights
    links, parents, ends, delivers = scenario.shelf.take(
        "routes",
        (policy, seed, topology_hash(on), demand.source, demand.dest_ptr, demand.dest, known),
        lambda: routing.route(on, demand, policy, weights, size_bytes, seed, progress).forest,
    )
    return Phase("dispatch", on, links, parents, ends, delivers, size_bytes)


def dispatch_on(
    scenario: Scenario,
    network: Topology,
    weights: NDArray[np.float64] | MoxTables | None,
    progress: Progress | None = None,
) -> Phase:
    """Route the scenario's dispatch by its policy on ``network``, which may be another than its own.

    Raises
    ------
    RoutingError
        For an unknown policy, or one that cannot run on this topology.
    """
    policy, seed = scenario.config.routing.policy, scenario.config.routing.seed
    return routing.route(network, scenario.demand, policy, weights, scenario.dispatch_bytes, seed, progress)


def block_of(
    scenario: Scenario, progress: Progress | None = None, weights_progress: Progress | None = None
) -> Block:
    """Route dispatch and combine.

    Combine turns the trees of dispatch round.  Where links are not alike in both directions it has trees of
    its own, routed on the reversed graph.

    Raises
    ------
    RoutingError
        For an unknown policy, or one that cannot run on this topology.
    """
    config, network = scenario.config, scenario.topology
    policy = config.routing.policy
    if config.routing.weights is not None and policy not in (
        *routing.WEIGHTED_POLICIES,
        *routing.TABLE_POLICIES,
    ):
        raise RoutingError(f"routing.weights: policy {policy!r} takes no weights; leave the file out")
    if network.has_switch and policy not in ("switch", "min-hop"):
        raise RoutingError(
            f"routing.policy: {policy!r} needs NPUs that forward; topology {network.kind!r} has a switch: "
            "use the policy 'switch'"
        )

    dispatch = _routed(scenario, network, scenario.dispatch_bytes, progress, weights_progress)
    back = dispatch
    if not network.is_symmetric:
        back = _routed(scenario, network.reversed(), scenario.combine_bytes, progress, weights_progress)
    combine = combine_of(back, network, scenario.combine_bytes)
    return Block(dispatch, combine, scenario.compute_ns, config.compute.reduce_ns_per_byte)
