"""What a run will cost, before it is started: seconds and bytes, roughly.

Goes in: a configuration and an engine.  Comes out: :class:`Cost`.  Factors were measured on one core of a
2026 server; another machine scales the times, hardly the memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moxtrace import models
from moxtrace.config import RunConfig, TopologyConfig
from moxtrace.errors import MoxtraceError

__all__ = ["Cost", "cost_of"]

_BASE_BYTES = 220e6  # interpreter, libraries and compiled kernels
_BASE_S = 0.4  # topology, placement and what does not grow with tokens
_ASTRA_NODES = 5  # per transfer: sends, receives and sums of both phases
# per transfer of dispatch: seconds in all, and bytes at the peak
_PER_TRANSFER = {
    "builtin": (4e-6, 200),
    "builtin-traces": (12e-6, 400),
    "astra-sim": (10e-6 + _ASTRA_NODES / 40e3, 400 + _ASTRA_NODES * 1000),
}
_UNKNOWN_TOP_K = 8
_UNKNOWN_NPUS = 64  # of a graph in a file, which is not read for an estimate


@dataclass(frozen=True)
class Cost:
    """An estimate.

    Parameters
    ----------
    seconds : float
        Of one core.
    size_bytes : float
        Peak memory.
    """

    seconds: float
    size_bytes: float


def cost_of(config: RunConfig, engine: str) -> Cost:
    """Estimate a run, with everything computed anew.

    Parameters
    ----------
    config : RunConfig
    engine : {"builtin", "builtin-traces", "astra-sim"}
    """
    npus, top_k = _npus_of(config.topology), _top_k_of(config)
    copies = (npus - 1) * (1 - (1 - 1 / npus) ** top_k)  # distinct NPUs that a token must reach
    transfers = npus * config.traffic.tokens_per_npu * copies
    if config.routing.policy == "switch":
        transfers *= 2
    elif config.routing.policy == "min-hop":
        transfers *= max(1.0, math.log(npus) / math.log(max(3, config.topology.degree or 4)))
    seconds, size_bytes = _PER_TRANSFER[engine]
    return Cost(
        _BASE_S + _weights_s(config, npus, top_k) + seconds * transfers, _BASE_BYTES + size_bytes * transfers
    )


def _weights_s(config: RunConfig, npus: int, top_k: int) -> float:
    """Seconds for the offline part of the policy."""
    if config.routing.weights is not None or config.routing.policy not in ("mox", "mox-paper"):
        return 0.0
    if config.routing.policy == "mox":
        tokens = 24 * npus * min(max(160_000 // npus, 100), 2500)
        return tokens * top_k * (30e-9 + 3e-9 * min(npus, 256))
    return config.routing.replays * npus * config.routing.tokens_per_source * top_k * 200e-9


def _top_k_of(config: RunConfig) -> int:
    if config.model.top_k is not None:
        return config.model.top_k
    try:
        return models.load(config.model.preset or "").top_k
    except MoxtraceError:  # the run will say so
        return _UNKNOWN_TOP_K


def _npus_of(block: TopologyConfig) -> int:
    """NPUs of a network that is not built yet."""
    if block.npus is not None:
        return block.npus
    if block.dims is not None:
        return max(2, math.prod(block.dims))
    if block.groups is not None:
        return max(2, block.groups * (block.group_size or (block.boards or 8) * (block.chips or 4)))
    if block.symbols is not None and block.word_length is not None:
        return int(min(4096, max(2, float(block.symbols) ** min(block.word_length, 12))))
    if block.prime_power is not None:
        return 2 * block.prime_power**2
    return _UNKNOWN_NPUS
