"""Xpander, and servers with many lanes: regular graphs of random matchings.

Goes in: :class:`Request`.  Comes out: :class:`Wiring`.

References
----------
Valadarsky et al., Xpander: towards optimal-performance datacenters, CoNEXT 2016.
"""

from __future__ import annotations

import numpy as np

from moxtrace.topology import expander
from moxtrace.topology.draws import order
from moxtrace.topology.graph import MAX_NPUS
from moxtrace.topology.request import Request, Wiring, choices, nearest

__all__ = ["nvlink_domains", "xpander"]


def xpander(request: Request) -> Wiring:
    """The first connected random lift of the complete graph of ``degree + 1`` nodes.

    Each of these becomes ``npus / (degree + 1)`` NPUs, numbered one after the other, and each of its cables
    a random matching between those of its ends.
    """
    npus, degree = request.need_npus(), request.need_degree()
    if not 2 <= degree < npus:
        raise request.refuse(
            f"degree {degree} and {npus} NPUs; expected 2 to {npus - 1}, the nearest: degree "
            f"{min(max(2, degree), npus - 1)}"
        )
    lift, rest = divmod(npus, degree + 1)
    if rest:
        near = nearest(npus, range(degree + 1, MAX_NPUS + 1, degree + 1))
        raise request.refuse(
            f"{npus} NPUs of degree {degree}; expected a multiple of {degree + 1}, the nearest: "
            f"{choices(near)}"
        )
    pairs = np.stack(np.triu_indices(degree + 1, 1), axis=1)
    number = 0
    while True:
        ends = [
            np.stack((a * lift + np.arange(lift), b * lift + order(lift, request.seed, number, k)), axis=1)
            for k, (a, b) in enumerate(pairs)
        ]
        cables = np.concatenate(ends).astype(np.int32)
        if expander.is_connected(npus, cables):
            return Wiring(npus, cables)
        number += 1


def nvlink_domains(request: Request) -> Wiring:
    """Servers as single endpoints, with ``nics * nic_lanes`` cables each.

    An NPU of this network is a whole NVLink domain: inside it, any GPU reaches any card and any lane, so
    that all lanes are shared and a token costs nothing to move between its GPUs.  Experts are placed on
    servers, and ``tokens_per_npu`` counts the tokens of a whole server.  ``link_gbps`` is the rate of one
    lane: that of a card over ``nic_lanes``.

    Where there are more lanes than other servers, every pair gets as many cables as go round; those that are
    left make a random regular graph.
    """
    npus = request.need_npus()
    nics, nic_lanes = request.only(("nics", "nic_lanes"))
    ports = nics * nic_lanes
    rounds, left = divmod(ports, npus - 1)
    if npus * left % 2:
        raise request.refuse(
            f"{npus} servers with {nics} x {nic_lanes} = {ports} lanes leave {npus * left} ends, an odd "
            f"number; the nearest: {choices([npus - 1, npus + 1])} NPUs"
        )
    if ports < 2 < npus:
        raise request.refuse(f"{ports} lane cannot connect {npus} servers; the nearest: nic_lanes: 2")
    every = np.repeat(np.stack(np.triu_indices(npus, 1), axis=1), rounds, axis=0)
    if left and rounds:
        return Wiring(npus, np.concatenate((every, expander.draw(npus, left, request.seed, 0))))
    return Wiring(npus, every if rounds else expander.first_connected(npus, left, request.seed))
