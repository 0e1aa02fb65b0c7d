"""What a network is like: path lengths, bisection, capacities, triangles.

Goes in: :class:`Topology`.  Comes out: numbers, as a dict ready for JSON.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology import kernels
from moxtrace.topology.graph import Topology

__all__ = ["bisection_gbps", "describe", "hops", "triangles"]

TOLD = ("annealing", "cables", "direct_traffic")
RANDOM_STARTS = 4
BALL_STARTS = 4


def hops(topology: Topology) -> NDArray[np.int16]:
    """Links on a shortest path between all ordered pairs of nodes.

    Parameters
    ----------
    topology : Topology

    Returns
    -------
    array of int16, shape (nodes, nodes)
        Indexed [src, dst]; 0 on the diagonal.  Rates and latencies play no part.
    """
    return kernels.all_hops(topology.out_ptr, topology.dst)


def _undirected(topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The links between NPUs without their direction: CSR of neighbours, and mean capacity of both ways."""
    n = topology.num_npus
    src, dst = topology.src.astype(np.int64), topology.dst.astype(np.int64)
    inner = (src < n) & (dst < n)
    key = np.concatenate((src * n + dst, dst * n + src))[np.tile(inner, 2)]
    pair, where = np.unique(key, return_inverse=True)
    weight = np.bincount(where, np.tile(topology.capacity_gbps[inner], 2) / 2, len(pair)).astype(np.float64)
    return np.searchsorted(pair, np.arange(n + 1) * n), pair % n, weight


def triangles(topology: Topology) -> int:
    """Triples of NPUs that are pairwise adjacent, whichever way the links point."""
    ptr, nbr, _ = _undirected(topology)
    return int(kernels.count_triangles(ptr, nbr))


def _starts(n: int, distance: NDArray[np.int16]) -> list[NDArray[np.int64]]:
    """Halves to start from: the numbering, balls around some nodes, and seeded shuffles."""
    orders = [np.arange(n)]
    for centre in range(0, n, max(1, n // BALL_STARTS)):
        orders.append(np.argsort(distance[centre], kind="stable"))
    shuffle = np.random.SeedSequence(1).generate_state(RANDOM_STARTS * n, np.uint64).reshape(-1, n)
    orders += list(np.argsort(shuffle, axis=1, kind="stable"))
    sides = np.ones((len(orders), n), np.int64)
    for side, order in zip(sides, orders, strict=True):
        side[order[: n // 2]] = 0
    return list(sides)


def bisection_gbps(topology: Topology, distance: NDArray[np.int16] | None = None) -> float:
    """Capacity from one half of the NPUs to the other, at the thinnest halving found, in Gbit/s.

    An estimate from above: the smallest halving is sought by Kernighan-Lin refinement of several starts,
    which may miss it.  Exact for a switch.  Of the two directions the thinner counts.  With an odd number
    of NPUs the halves differ by one.

    Parameters
    ----------
    topology : Topology
    distance : array of int16, shape (nodes, nodes), optional
        What :func:`hops` returns, if it is at hand.
    """
    n = topology.num_npus
    if topology.has_switch:  # the half with the least to send, or to receive, is the bottleneck
        ports = (topology.out_capacity_gbps()[:n], topology.in_capacity_gbps()[:n])
        return min(float(np.sort(port)[: n // 2].sum()) for port in ports)
    ptr, nbr, weight = _undirected(topology)
    found = []
    for side in _starts(n, hops(topology) if distance is None else distance):
        kernels.refine_bisection(ptr, nbr, weight, side)
        way = side[topology.dst] - side[topology.src]
        found += [float(topology.capacity_gbps[way == sign].sum()) for sign in (1, -1)]
    return min(found)


def _span(name: str, values: NDArray[Any]) -> dict[str, float | int]:
    return {f"{name}_min": values.min().item(), f"{name}_max": values.max().item()}


def describe(topology: Topology) -> dict[str, Any]:
    """Everything that ``moxtrace topology show`` prints.

    Returns
    -------
    dict
        ``kind``, ``npus``, ``links`` (directed), ``degree_min`` and ``degree_max`` (links out of an NPU),
        ``lanes_*`` (of a link), ``diameter``, ``radius`` and ``average_path_length`` (hops, over ordered
        pairs of different NPUs; radius is the least eccentricity of an NPU as a source), ``bisection_gbps``
        (an upper bound, see :func:`bisection_gbps`), ``link_gbps_*`` (all lanes), ``npu_out_gbps_*``,
        ``npu_in_gbps_*``, ``latency_ns_*``, ``triangles``, ``has_switch``, ``is_symmetric``, ``is_uniform``;
        of networks whose builder tells it: ``annealing`` (before and after), ``cables`` (by sort),
        ``direct_traffic`` (share that needs one link).
    """
    n = topology.num_npus
    distance = hops(topology)
    eccentricity = distance[:n, :n].max(axis=1)
    return {
        "kind": topology.kind,
        "npus": n,
        "links": topology.num_links,
        **_span("degree", np.diff(topology.out_ptr)[:n]),
        **_span("lanes", topology.lanes),
        "diameter": int(eccentricity.max()),
        "radius": int(eccentricity.min()),
        "average_path_length": int(distance[:n, :n].sum(dtype=np.int64)) / (n * (n - 1)),
        "bisection_gbps": bisection_gbps(topology, distance),
        **_span("link_gbps", topology.capacity_gbps),
        **_span("npu_out_gbps", topology.out_capacity_gbps()[:n]),
        **_span("npu_in_gbps", topology.in_capacity_gbps()[:n]),
        **_span("latency_ns", topology.latency_ns),
        "triangles": triangles(topology),
        "has_switch": topology.has_switch,
        "is_symmetric": topology.is_symmetric,
        "is_uniform": topology.is_uniform,
        **{name: topology.parameters[name] for name in TOLD if name in topology.parameters},
    }
