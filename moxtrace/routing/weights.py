"""Link weights: the offline part of MoX, which knows the placement but not the traffic.

Goes in: a topology, the NPU of every expert and top-K.  Comes out: :class:`Weights`, one number per directed
link, that can be kept in a file and refuses to serve another topology, placement or K.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import RoutingError
from moxtrace.outputs import written_aside
from moxtrace.replicas import Hosts
from moxtrace.routing.loads import link_load
from moxtrace.routing.policies import WEIGHTED_POLICIES, route
from moxtrace.routing.prior import (
    check_arguments,
    placement_hash,
    refuse_elsewhere,
    topology_hash,
    uniform_demand,
)
from moxtrace.topology.graph import Topology

__all__ = ["Weights", "compute_weights"]

_FORMAT = "moxtrace-weights-1"


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

    @property
    def num_links(self) -> int:
        """Directed links."""
        return len(self.weight)

    @property
    def kept_replays(self) -> tuple[int, ...]:
        """The replays whose weights these are: all with the least maximum."""
        return tuple(i for i, found in enumerate(self.history) if found == min(self.history))

    def state_bytes(self) -> dict[str, int]:
        """What one source holds, in 4-byte numbers: ``own`` counters, and weights ``common`` to all."""
        return {"own": 4 * self.num_links, "common": 4 * self.num_links}

    def check(self, topology: Topology, host: Hosts, top_k: int) -> None:
        """Refuse to serve what the weights were not made for.

        Raises
        ------
        RoutingError
            If topology, placement or ``top_k`` is another.
        """
        refuse_elsewhere(self, topology, host, top_k)

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
    host: Hosts,
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
    if policy not in WEIGHTED_POLICIES:
        raise RoutingError(
            f"weights: policy {policy!r} takes none; expected {' or '.join(WEIGHTED_POLICIES)}"
        )
    check_arguments(topology, host, num_experts, top_k, tokens_per_source, replays)
    demand = uniform_demand(topology.num_npus, host, top_k, tokens_per_source, seed)
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
