"""What every policy's offline part shares: the uniform prior, and what its result was made for.

Goes in: a topology, the NPU of every expert, top-K.  Comes out: tokens drawn without knowing any traffic, and
hashes that tie weights and tables to their topology and placement.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from moxtrace.demand import Demand
from moxtrace.errors import RoutingError
from moxtrace.replicas import Hosts, Replicas, demand_on, hosts_as_rows
from moxtrace.routing.kernels import draw_distinct
from moxtrace.topology.graph import Topology

__all__ = ["check_arguments", "placement_hash", "refuse_elsewhere", "topology_hash", "uniform_demand"]


def topology_hash(topology: Topology) -> str:
    """SHA-256 of what routing sees of a topology: its nodes, and ends and capacity of every link."""
    digest = hashlib.sha256(f"{topology.num_npus} {topology.num_nodes}\n".encode())
    for array, dtype in ((topology.src, "<i4"), (topology.dst, "<i4"), (topology.capacity_gbps, "<f8")):
        digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
    return digest.hexdigest()


def placement_hash(host: Hosts) -> str:
    """SHA-256 of an expert-to-NPU map; with replicas, of all their NPUs and of what chooses among them."""
    if isinstance(host, Replicas):
        digest = hashlib.sha256(f"{host.rule} {host.hosts.shape}\n".encode())
        digest.update(np.ascontiguousarray(host.hosts, dtype="<i4").tobytes())
        digest.update(np.ascontiguousarray(host.hops, dtype="<i2").tobytes())
        return digest.hexdigest()
    return hashlib.sha256(np.ascontiguousarray(host, dtype="<i4").tobytes()).hexdigest()


def refuse_elsewhere(made: Any, topology: Topology, host: Hosts, top_k: int) -> None:
    """Raise a :class:`RoutingError` where weights or tables were made for something else."""
    wrong = []
    if made.topology != topology_hash(topology):
        wrong.append(f"another topology than this {topology.kind} of {topology.num_npus} NPUs")
    if made.num_experts != len(host):
        wrong.append(f"{made.num_experts} experts, not {len(host)}")
    elif made.placement != placement_hash(host):
        wrong.append("another placement of the experts")
    if made.top_k != top_k:
        wrong.append(f"top-{made.top_k}, not top-{top_k}")
    if wrong:
        raise RoutingError(f"weights were made for {' and '.join(wrong)}; compute them again")


def check_arguments(
    topology: Topology,
    host: Hosts,
    num_experts: int,
    top_k: int,
    tokens_per_source: int,
    replays: int,
) -> None:
    """Refuse arguments that contradict each other."""
    if len(host) != num_experts:
        raise RoutingError(f"weights: a placement of {len(host)} experts for {num_experts} experts")
    if not 1 <= top_k <= num_experts:
        raise RoutingError(f"weights: top-{top_k} of {num_experts} experts; expected 1 to {num_experts}")
    hosts = hosts_as_rows(host)
    first, last = hosts[:, 0].min(), hosts.max()
    if first < 0 or last >= topology.num_npus:
        raise RoutingError(
            f"weights: placement names NPU {first if first < 0 else last}; "
            f"topology {topology.kind} has NPUs 0 to {topology.num_npus - 1}"
        )
    if tokens_per_source < 1 or replays < 1:
        raise RoutingError(
            f"weights: {replays} replays of {tokens_per_source} tokens per source; expected 1 or more of each"
        )


def uniform_demand(num_npus: int, host: Hosts, top_k: int, tokens_per_source: int, seed: int) -> Demand:
    """Tokens whose experts are distinct and uniformly drawn; ``tokens_per_source`` at each NPU."""
    source = np.repeat(np.arange(num_npus, dtype=np.int32), tokens_per_source)
    uniform = np.random.default_rng(seed).random((len(source), top_k))
    return demand_on(source, draw_distinct(uniform, len(host)), host, num_npus)
