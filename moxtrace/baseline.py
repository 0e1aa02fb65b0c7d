"""The normaliser of every result: the same demand on an ideal packet switch.

Each NPU's port is as fast as all its links together; each destination NPU gets one copy of a token and
returns one locally reduced vector.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from moxtrace import routing, topology
from moxtrace.chakra.astra_inputs import cannot_express, network_bytes_per_cycle
from moxtrace.demand import Demand
from moxtrace.engine.blocks import ready_block
from moxtrace.engine.network import Network
from moxtrace.topology import Topology
from moxtrace.transfers import combine_of
from moxtrace.units import cycles_per_ns

__all__ = ["network_of", "switch_completion_ns"]


def network_of(network: Topology, time_scale: str) -> Network:
    """The topology in simulator cycles, with the rates that ASTRA-sim would read from ``network.yml``."""
    exact = network_bytes_per_cycle(network, time_scale) if cannot_express(network) is None else None
    return Network.from_topology(network, cycles_per_ns(time_scale), exact)


def switch_completion_ns(
    demand: Demand,
    network: Topology,
    compute_ns: NDArray[np.int64],
    message_bytes: tuple[int, int],
    time_scale: str,
    barrier: str,
    progress: Callable[[int, int], None] | None = None,
) -> float:
    """Completion of a whole MoE block on the ideal switch of ``network``, ns.

    Parameters
    ----------
    demand : Demand
        One row per token.
    network : Topology
        The graph that the switch stands for, or a switch.
    compute_ns : array of int64, shape (npus,)
    message_bytes : (int, int)
        Of dispatch and of combine.
    time_scale : {"ps", "ns"}
    barrier : {"phase", "tokens"}
    progress : callable, optional
        Called as ``progress(transfers_started, transfers)``.
    """
    switch = network if network.has_switch else topology.ideal_switch_of(network)
    dispatch = routing.route(switch, demand, "switch", None, message_bytes[0])
    back = dispatch
    if not switch.is_symmetric:
        back = routing.route(switch.reversed(), demand, "switch", None, message_bytes[1])
    combine = combine_of(back, switch, message_bytes[1])
    block = ready_block(
        dispatch, combine, compute_ns, network_of(switch, time_scale), barrier=barrier,
        reduce_ns_per_byte=0.0, order=False,
    )  # fmt: skip
    del dispatch, back, combine  # large, and no longer needed
    return block.run(progress).completion / cycles_per_ns(time_scale)
