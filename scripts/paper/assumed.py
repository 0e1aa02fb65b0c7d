"""What the paper leaves open and no key of a configuration says: this script's own keys, ``paper.*``.

Goes in: a case, and what it is made of.  Comes out: its choices; min-hop's routes with a single path for each
pair; the tokens that experts work on, each counted once per NPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace import recordings, sampling
from moxtrace.config import RunConfig
from moxtrace.demand import Demand
from moxtrace.errors import ConfigError
from moxtrace.routing.kernels import hop_distances
from moxtrace.scenario import model_of
from moxtrace.topology import Topology
from moxtrace.transfers import Phase
from paper.grid import Case

__all__ = ["CHOICES", "assumptions_of", "single_paths", "tokens_per_npu"]

CHOICES = {
    "min_hop": ("in-turn", "single"),
    "compute": ("pairs", "tokens"),
    "topology": ("as configured", "demand-tuned"),
}


def assumptions_of(case: Case) -> dict[str, str]:
    """The script's own keys of a case, checked."""
    found = {name: choices[0] for name, choices in CHOICES.items()}
    for key, value in case.keys.items():
        name = key.removeprefix("paper.")
        if name == key:
            continue
        if value not in CHOICES.get(name, ()):
            expected = "; ".join(f"{n}: {' | '.join(c)}" for n, c in CHOICES.items())
            raise ConfigError(f"configs/paper/evaluation.yaml: {key}: found {value!r}; expected {expected}")
        found[name] = value
    return found


def tokens_per_npu(config: RunConfig, npus: int, host: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Tokens that each NPU's experts work on, each counted once however many of them it chose."""
    if config.recording.path is None:
        raise ConfigError(
            "paper.compute: tokens: needs a recording; expected recording.path in the configuration"
        )
    model, traffic = model_of(config), config.traffic
    recording = recordings.read(config.recording.path).fit(model.num_experts, model.top_k)
    _, topk = sampling.sample_tokens(
        recording.layer(config.recording.layer, config.recording.seed), mode=traffic.sampling,
        top_k=model.top_k, tokens_per_npu=traffic.tokens_per_npu, num_npus=npus, seed=traffic.seed,
        clip=traffic.clip,
    )  # fmt: skip
    at = np.sort(host[topk], axis=1)
    first = np.ones(at.shape, bool)
    first[:, 1:] = at[:, 1:] != at[:, :-1]
    return np.bincount(at[first], minlength=npus)


def single_paths(topology: Topology, demand: Demand, size_bytes: int) -> Phase:
    """Min-hop with one path for each pair: always the link of the lowest id that leads nearer."""
    hops = hop_distances(topology.in_ptr, topology.in_link, topology.src, topology.num_npus)
    n, longest = topology.num_npus, int(hops.max())
    path = np.full((n, n, longest), -1, np.int32)
    for d in range(n):
        nearer = np.flatnonzero(hops[d][topology.dst] < hops[d][topology.src])
        first = np.full(n, -1, np.int64)
        first[topology.src[nearer[::-1]]] = nearer[::-1]  # the lowest id is written last
        at = np.arange(n)
        for step in range(longest):
            going = at != d
            path[going, d, step] = first[at[going]]
            at[going] = topology.dst[path[going, d, step]]
    copies = demand.unicast()
    links = path[copies.source, copies.dest]
    count = (links >= 0).sum(axis=1)
    position = np.broadcast_to(np.arange(longest), links.shape)[links >= 0]
    link = links[links >= 0]
    ends = np.zeros(len(copies.source) + 1, np.int64)
    np.cumsum(count, out=ends[1:])
    parent = np.where(position > 0, np.arange(len(link)) - 1, -1).astype(np.int32)
    delivers = np.equal(position, np.repeat(count, count) - 1)
    return Phase("dispatch", topology, link, parent, ends, delivers, size_bytes)
