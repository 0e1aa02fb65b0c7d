"""Link weights: the offline part of MoX, which knows the placement but not the traffic.

Goes in: a topology, the NPU of every expert and top-K.  Comes out: :class:`Weights`, one number per directed
link, that can be kept in a file and refuses to serve another topology, placement or K.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.demand import Demand, demand_of
from moxtrace.errors import RoutingError
from moxtrace.outputs import written_aside
from moxtrace.routing.kernels import draw_distinct
from moxtrace.routing.loads import link_load
from moxtrace.routing.policies import WEIGHTED_POLICIES, route
from moxtrace.topology.graph import Topology

__all__ = ["Weights", "compute_weights", "placement_hash", "topology_hash"]

_FORMAT = "moxtrace-weights-1"


def topology_hash(topology: Topology) -> str:
    """SHA-256 of what routing sees of a topology: its nodes, and ends and capacity of every link."""
    digest = hashlib.sha256(f"{topology.num_npus} {topology.num_nodes}\n".encode())
    for array, dtype in ((topology.src, "<i4"), (topology.dst, "<i4"), (topology.capacity_gbps, "<f8")):
        digest.update(np.ascontiguousarray(array, dtype=dtype).tobytes())
    return digest.hexdigest()


def placement_hash(host: NDArray[np.integer[Any]]) -> str:
    """SHA-256 of an expert-to-NPU map."""
    return hashlib.sha256(np.ascontiguousarray(host, dtype="<i4").tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class Weights:
    """Link weights, with what they were made for.

    Parameters
    ----------
    weight : array of float64, shape (links,)
        Weight of each link, in the link order of the topology (by source, then destination).
    history : tuple of float
        Maximum over mean of the load per unit of capacity, in each replay.
    topology, placement : str
        Hashes of the topology and of the expert-to-NPU map.
    top_k, num_experts : int
    parameters : dict
        How they were computed: ``policy``, ``tokens_per_source``, ``replays``, ``eta``, ``seed``.

    Raises
    ------
    RoutingError
        If a weight is not a finite number above 0.
    """

    weight: NDArray[np.float64]
    history: tuple[float, ...]
    topology: str
    placement: str
    top_k: int
    num_experts: int
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        weight = np.array(self.weight, dtype=np.float64)
        if weight.ndim != 1 or not (np.isfinite(weight) & (weight > 0)).all():
            raise RoutingError("weights: expected one finite number > 0 per link")
        weight.setflags(write=False)
        object.__setattr__(self, "weight", weight)

    def check(self, topology: Topology, host: NDArray[np.integer[Any]], top_k: int) -> None:
        """Refuse to serve what the weights were not made for.

        Raises
        ------
        RoutingError
            If topology, placement or ``top_k`` is another.
        """
        wrong = []
        if self.topology != topology_hash(topology):
            wrong.append(f"another topology than this {topology.kind} of {topology.num_npus} NPUs")
        if self.num_experts != len(host):
            wrong.append(f"{self.num_experts} experts, not {len(host)}")
        elif self.placement != placement_hash(host):
            wrong.append("another placement of the experts")
        if self.top_k != top_k:
            wrong.append(f"top-{self.top_k}, not top-{top_k}")
        if wrong:
            raise RoutingError(f"weights were made for {' and '.join(wrong)}; compute them again")

    def save(self, path: str | Path) -> None:
        """Write a JSON file, aside and then renamed; equal weights give equal bytes.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        values = asdict(self) | {"weight": self.weight.tolist()}
        text = json.dumps({"format": _FORMAT} | values, sort_keys=True, indent=1, allow_nan=False) + "\n"
        with written_aside(path) as aside:
            aside.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Weights:
        """Read what :meth:`save` wrote.

        Raises
        ------
        RoutingError
            If the file cannot be read or holds something else.
        """
        expected = f"expected a file that moxtrace weights wrote (format {_FORMAT})"
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise RoutingError(f"weights {path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # not JSON, or not UTF-8
            raise RoutingError(f"weights {path}: not JSON ({error}); {expected}") from error
        if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
            raise RoutingError(f"weights {path}: no weights; {expected}")
        try:
            return cls(**values | {"history": tuple(values["history"])})
        except (KeyError, TypeError, ValueError, RoutingError) as error:
            raise RoutingError(f"weights {path}: damaged ({error}); {expected}") from error


def compute_weights(
    topology: Topology,
    host: NDArray[np.integer[Any]],
    num_experts: int,
    top_k: int,
    *,
    tokens_per_source: int = 1000,
    replays: int = 6,
    eta: float = 0.05,
    seed: int = 0,
    policy: str = "mox-paper",
    progress: Callable[[int, int], None] | None = None,
) -> Weights:
    """Fit link weights to uniform traffic.

    Every NPU sends ``tokens_per_source`` tokens, whose experts are ``top_k`` distinct ones drawn uniformly.
    The weights are the capacities, over their mean, at first.  Each replay routes the same tokens; after it,
    ``log w_e -= eta * (L_e / mean(L) - 1)``, where ``L`` is the load per unit of capacity.

    Parameters
    ----------
    topology : Topology
    host : array of int, shape (num_experts,)
        NPU of each expert.
    num_experts, top_k : int
    tokens_per_source, replays : int
    eta : float
        Step of the update.
    seed : int
        Of the draw.
    policy : str
        A policy that takes weights.
    progress : callable, optional
        Called as ``progress(replays_done, replays)``.

    Returns
    -------
    Weights
        Those of the replay with the least maximum of ``L``, the first of equals.

    Raises
    ------
    RoutingError
        If the arguments contradict each other or the policy takes no weights.
    """
    _check_arguments(topology, host, num_experts, top_k, tokens_per_source, replays, policy)
    demand = _uniform_demand(topology.num_npus, host, top_k, tokens_per_source, seed)
    weight = topology.capacity_gbps / topology.capacity_gbps.mean()
    best, least, history = weight, np.inf, []
    for replay in range(replays):
        load = link_load(route(topology, demand, policy, weight, size_bytes=1))
        mean = load.mean() or 1.0  # nothing is sent where all experts are at home
        history.append(float(load.max() / mean))
        if load.max() < least:
            best, least = weight, load.max()
        weight = weight * np.exp(-eta * (load / mean - 1.0))
        if progress is not None:
            progress(replay + 1, replays)
    parameters = {
        "policy": policy,
        "tokens_per_source": tokens_per_source,
        "replays": replays,
        "eta": eta,
        "seed": seed,
    }
    return Weights(
        best, tuple(history), topology_hash(topology), placement_hash(host), top_k, num_experts, parameters
    )


def _check_arguments(
    topology: Topology,
    host: NDArray[np.integer[Any]],
    num_experts: int,
    top_k: int,
    tokens_per_source: int,
    replays: int,
    policy: str,
) -> None:
    if policy not in WEIGHTED_POLICIES:
        raise RoutingError(
            f"weights: policy {policy!r} takes none; expected {' or '.join(WEIGHTED_POLICIES)}"
        )
    if host.shape != (num_experts,):
        raise RoutingError(f"weights: placement of shape {host.shape} for {num_experts} experts")
    if not 1 <= top_k <= num_experts:
        raise RoutingError(f"weights: top-{top_k} of {num_experts} experts; expected 1 to {num_experts}")
    if host.min() < 0 or host.max() >= topology.num_npus:
        raise RoutingError(
            f"weights: placement names NPU {host.min() if host.min() < 0 else host.max()}; "
            f"topology {topology.kind} has NPUs 0 to {topology.num_npus - 1}"
        )
    if tokens_per_source < 1 or replays < 1:
        raise RoutingError(
            f"weights: {replays} replays of {tokens_per_source} tokens per source; expected 1 or more of each"
        )


def _uniform_demand(
    num_npus: int, host: NDArray[np.integer[Any]], top_k: int, tokens_per_source: int, seed: int
) -> Demand:
    """Tokens whose experts are distinct and uniformly drawn; ``tokens_per_source`` at each NPU."""
    source = np.repeat(np.arange(num_npus, dtype=np.int32), tokens_per_source)
    uniform = np.random.default_rng(seed).random((len(source), top_k))
    return demand_of(source, draw_distinct(uniform, len(host)), host.astype(np.int32), num_npus)
