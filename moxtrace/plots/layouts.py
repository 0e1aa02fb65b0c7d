"""Where the nodes of a picture stand.

Goes in: :class:`Topology`.  Comes out: :class:`Layout`.  Networks with dimensions stand on a grid, networks
of groups as clusters around a circle, all others on one circle.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.topology.graph import Topology

__all__ = ["Layout", "arcs", "layout_of"]

Places = NDArray[np.float64]
DEPTH = (0.62, 0.38)  # from the first layer of a third dimension to the last
CHIP = re.compile(r"g(\d+)b(\d+)c(\d+)")
PARTS = {"xpander": "degree", "dragonfly": "groups", "slim-fly": "prime_power"}


@dataclass(frozen=True)
class Layout:
    """Places of the nodes.

    Parameters
    ----------
    places : array of float64, shape (nodes, 2)
    group : array of int64, shape (nodes,)
        The cluster of each node; all 0 where there are none.
    spacing : float
        Distance between neighbours, which bounds the size of a node.
    on_grid : bool
        Whether links that pass over other nodes must bend.
    """

    places: Places
    group: NDArray[np.int64]
    spacing: float
    on_grid: bool = False


def circle(count: int) -> Places:
    """Places clockwise from the top."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    return np.stack((np.cos(angle), np.sin(angle)), axis=1)


def _grid(dims: list[int]) -> Places:
    """The first dimension down, the second across, a third towards the back; a line runs across."""
    down, across, *back = np.unravel_index(np.arange(math.prod(dims)), [1, *dims] if len(dims) == 1 else dims)
    places = np.stack((across, -down), axis=1).astype(np.float64)
    if back:
        # deeper layers stand half a cell up and to the right in all, so that no two nodes coincide
        places += back[0][:, None] * np.array(DEPTH) / max(1, dims[2] - 1)
    return places


def _clusters(sizes: list[int]) -> tuple[Places, float]:
    """Circles of circles: ``sizes[0]`` clusters, each of ``sizes[1]`` and so on; also their spacing."""
    if len(sizes) == 1:
        return circle(sizes[0]), 2 * math.sin(math.pi / max(2, sizes[0]))
    inner, spacing = _clusters(sizes[1:])
    shrink = 0.58 * min(0.6, math.sin(math.pi / sizes[0]))
    places = circle(sizes[0])[:, None] + shrink * inner[None]
    return places.reshape(-1, 2), spacing * shrink


def _numbers(topology: Topology) -> NDArray[np.int64]:
    """Numbers that the NPUs had when the network was built, before some failed."""
    names = topology.names
    if names and all(name.isdecimal() for name in names):
        return np.array([int(name) for name in names])
    return np.arange(topology.num_npus)


def _sizes(kind: str, parameters: dict[str, Any], npus: int) -> list[int] | None:
    """Clusters, and NPUs in each, of kinds that have any."""
    if kind == "hyperx" and len(parameters.get("dims", ())) > 1:
        *outer, last = parameters["dims"]
        return [math.prod(outer), last]
    if kind not in PARTS or PARTS[kind] not in parameters:
        return None
    value = int(parameters[PARTS[kind]])
    groups = {"xpander": value + 1, "dragonfly": value, "slim-fly": 2 * value}[kind]
    return [groups, npus // groups]


def arcs(
    start: NDArray[np.float64], end: NDArray[np.float64], bend: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Lines from start to end, shape (links, 12, 2); ``bend`` is the height of each over its length."""
    along = np.linspace(0, 1, 12)[None, :, None]
    across = (end - start)[:, ::-1] * np.array([-1.0, 1.0])
    straight = start[:, None] + along * (end - start)[:, None]
    return straight + 4 * bend[:, None, None] * along * (1 - along) * across[:, None]


def layout_of(topology: Topology) -> Layout:
    """Choose places for a network; a switch stands in the middle.

    Parameters
    ----------
    topology : Topology
        As built: what its ``parameters`` say decides.  From a file, only Boardfly's names tell a kind.
    """
    n, parameters = topology.num_npus, topology.parameters
    chips = [CHIP.fullmatch(name) for name in topology.names]
    if chips and all(chips):
        at = np.array([[int(x) for x in found.groups()] for found in chips if found])
        return _from_clusters((at.max(axis=0) + 1).tolist(), at)
    built = int(parameters.get("npus", n))
    number = _numbers(topology)
    if topology.kind in ("torus", "mesh", "twisted-torus") and "dims" in parameters:
        dims = list(parameters["dims"])
        spacing = 1.0 if len(dims) < 3 else float(np.hypot(*DEPTH)) / max(1, dims[2] - 1)
        return Layout(_grid(dims)[number], np.zeros(n, np.int64), spacing, on_grid=True)
    sizes = _sizes(topology.kind, parameters, built)
    if sizes is not None:
        return _from_clusters(sizes, np.stack(np.divmod(number, sizes[1]), axis=1))
    spacing = 2 * math.sin(math.pi / n)
    middle = np.zeros((topology.num_nodes - n, 2))
    places = np.concatenate((circle(n), middle))
    return Layout(places, np.zeros(len(places), np.int64), spacing)


def _from_clusters(sizes: list[int], at: NDArray[np.int64]) -> Layout:
    """Places of nodes whose position in each level of clusters is known; ``at`` has shape (nodes, levels)."""
    places, spacing = _clusters(sizes)
    inner = at[:, :-1]
    group = np.ravel_multi_index(tuple(inner.T), sizes[:-1])
    return Layout(places[np.ravel_multi_index(tuple(at.T), sizes)], group, spacing)
