"""Link loads of a routed phase, and how they compare with an ideal switch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moxtrace.demand import Demand
from moxtrace.transfers import Phase

__all__ = ["link_load", "summary", "switch_load"]


def link_load(phase: Phase) -> NDArray[np.float64]:
    """Messages per Gbit/s of each link's capacity, shape (links,)."""
    return phase.link_messages() / phase.topology.capacity_gbps


def switch_load(phase: Phase, demand: Demand) -> float:
    """Messages per Gbit/s at the busiest port of an ideal switch that joins the same NPUs.

    Every NPU has one port out and one in, as fast as all its links in that direction together; a token costs
    one copy per destination NPU at both ends.
    """
    npus = demand.num_npus
    copies_in = np.bincount(demand.dest, minlength=npus)
    copies_out = np.bincount(demand.source, weights=np.diff(demand.dest_ptr), minlength=npus)
    if phase.toward_source:
        copies_in, copies_out = copies_out, copies_in
    busiest_in = (copies_in / phase.topology.in_capacity_gbps()[:npus]).max()
    busiest_out = (copies_out / phase.topology.out_capacity_gbps()[:npus]).max()
    return float(max(busiest_in, busiest_out))


def summary(phase: Phase, demand: Demand) -> dict[str, float | int]:
    """Describe how evenly and at what cost a phase uses the links.

    Parameters
    ----------
    phase : Phase
    demand : Demand
        What the phase was routed for, with one row per token.

    Returns
    -------
    dict
        ``busiest_link_bytes`` and ``mean_link_bytes``, over all links; ``bandwidth_tax``, transfers to NPUs
        that only relay per delivery (a hub is no NPU); ``normalized_max_load``, the busiest link per unit of
        capacity over the busiest port of the ideal switch.  With nothing to send, the tax is 0 and the
        normalised load 1.
    """
    link_bytes = phase.link_bytes()
    topology = phase.topology
    far_end = topology.src if phase.toward_source else topology.dst
    arrivals = int(phase.link_messages()[far_end < topology.num_npus].sum())
    deliveries = int(np.count_nonzero(phase.delivers))
    port = switch_load(phase, demand)
    return {
        "busiest_link_bytes": int(link_bytes.max()),
        "mean_link_bytes": float(link_bytes.mean()),
        "bandwidth_tax": (arrivals - deliveries) / deliveries if deliveries else 0.0,
        "normalized_max_load": float(link_load(phase).max()) / port if port else 1.0,
    }
