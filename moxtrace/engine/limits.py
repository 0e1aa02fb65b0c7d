"""What fits into the engine's numbers: cycles and bytes are counted in int64, which would wrap in silence.

Times are sums of what nodes and messages take, one after another at worst, so a bound on that sum bounds
every time of a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from moxtrace.engine.network import Network
from moxtrace.errors import SimulationError
from moxtrace.transfers import Phase

__all__ = ["MOST", "check_block", "too_much"]

MOST = 2.0**61  # cycles or bytes; far enough from 2**63 for sums of two and for rounding


def too_much(largest: str, total: float) -> str:
    """Why a run is refused that could take ``total`` cycles or bytes in all, ``largest`` most of them."""
    return (
        f"{largest}: most of {total:.3g} cycles or bytes that the run could take, and they are counted up to "
        f"2**61 = {MOST:.3g}; make sizes, latencies or durations smaller, or rates larger"
    )


def check_block(
    phases: Sequence[Phase | None], compute_ns: ArrayLike, network: Network, reduce_ns_per_byte: float
) -> None:
    """Refuse a block whose times or bytes could wrap.

    Parameters
    ----------
    phases : sequence of Phase or None
        Dispatch and combine.
    compute_ns : array of float or int, shape (npus,)
    network : Network
    reduce_ns_per_byte : float

    Raises
    ------
    SimulationError
        If they could; it names what takes most.
    """
    scale = float(network.cycles_per_ns)
    compute = np.asarray(compute_ns, np.float64)
    parts = {f"compute of up to {compute.max(initial=0.0):.3g} ns": float((compute * scale + 1000.0).sum())}
    for phase in phases:
        if phase is None or phase.topology.num_links != network.num_links:
            continue
        size, messages = float(phase.size_bytes), phase.link_messages().astype(np.float64)
        cycles = float((messages * (network.latency + size / network.bytes_per_cycle)).sum())
        name = f"{phase.name}, {phase.num_transfers} messages of {size:.3g} bytes"
        parts[name] = max(cycles, size * phase.num_transfers)
        if phase.toward_source:
            inputs = 2.0 * phase.num_transfers + phase.num_trees  # a transfer brings one, its node another
            name = f"sums of {size:.3g} bytes at {reduce_ns_per_byte:.3g} ns per byte"
            parts[name] = inputs * (size * reduce_ns_per_byte * scale + 1000.0)
    total = sum(parts.values())
    if total >= MOST:
        raise SimulationError(too_much(max(parts, key=lambda name: parts[name]), total))
