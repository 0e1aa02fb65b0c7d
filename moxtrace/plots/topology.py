"""A picture of a network: NPUs on a circle or a grid, links between them.

Goes in: :class:`Topology`.  Comes out: a PNG, SVG or PDF file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import OutputError
from moxtrace.outputs import written_aside
from moxtrace.topology.graph import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_topology"]

ENDINGS = (".png", ".svg", ".pdf")
MAX_DRAWN = 20_000
MAX_LABELLED = 96
INK, PAPER, LINK = "#22303c", "#ffffff", "#3b78a8"


def _circle(count: int) -> NDArray[np.float64]:
    """Places clockwise from the top."""
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    return np.stack((np.cos(angle), np.sin(angle)), axis=1)


def _grid(dims: list[int]) -> NDArray[np.float64]:
    """Places of a torus: the first dimension down, the second across, a third towards the back."""
    down, across, *back = np.unravel_index(np.arange(np.prod(dims)), dims)
    places = np.stack((across, -down), axis=1).astype(np.float64)
    if back:
        # deeper layers stand half a cell up and to the right in all, so that no two nodes coincide
        places += back[0][:, None] * np.array([0.62, 0.38]) / max(1, dims[2] - 1)
    return places


def _places(topology: Topology) -> NDArray[np.float64]:
    """Place of each node, shape (nodes, 2); a switch stands in the middle."""
    if topology.kind == "torus" and "dims" in topology.parameters:
        return _grid(topology.parameters["dims"])
    middle = np.zeros((topology.num_nodes - topology.num_npus, 2))
    return np.concatenate((_circle(topology.num_npus), middle))


def _arcs(
    start: NDArray[np.float64], end: NDArray[np.float64], bend: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Lines from start to end, shape (links, 12, 2); ``bend`` is the height of each over its length."""
    along = np.linspace(0, 1, 12)[None, :, None]
    across = (end - start)[:, ::-1] * np.array([-1.0, 1.0])
    straight = start[:, None] + along * (end - start)[:, None]
    return straight + 4 * bend[:, None, None] * along * (1 - along) * across[:, None]


def _draw_links(axes: Axes, topology: Topology, places: NDArray[np.float64]) -> int:
    """Draw cables as lines, one-way links as arrows; returns how many stand for all."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap

    back = topology.reverse_link
    rate = topology.capacity_gbps
    twin = (back >= 0) & (rate[back] == rate)
    shown = np.flatnonzero(~twin | (topology.src < topology.dst))
    step = -(-len(shown) // MAX_DRAWN)
    shown = shown[::step]
    start, end = places[topology.src[shown]], places[topology.dst[shown]]
    on_grid = topology.kind == "torus"
    wraps = on_grid & (np.abs(end - start).max(axis=1) > 1.5)
    lines = _arcs(start, end, np.where(wraps, 0.12, np.where(twin[shown], 0.0, 0.06)))
    width = float(np.clip(20 / np.sqrt(len(shown)), 0.12, 1.8))
    style: dict[str, Any] = {"linewidths": width * np.sqrt(topology.lanes[shown]), "zorder": 1}
    if rate.min() == rate.max():
        faint = float(np.clip(width, 0.3, 0.75))  # where lines overlap, density shows as shade
        axes.add_collection(LineCollection(list(lines), colors=LINK, alpha=faint, **style))
    else:
        shades = LinearSegmentedColormap.from_list("rates", ["#bcd3e4", LINK, "#12324a"])
        coloured = axes.add_collection(LineCollection(list(lines), array=rate[shown], cmap=shades, **style))
        axes.figure.colorbar(coloured, ax=axes, label="link capacity (Gbit/s)", shrink=0.6, pad=0.02)
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 0.0, "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
    for line in lines[~twin[shown]][:500]:
        axes.annotate("", line[8], line[7], arrowprops=arrow)
    return step


def _draw_nodes(axes: Axes, topology: Topology, places: NDArray[np.float64]) -> None:
    n = topology.num_npus
    labelled = n <= MAX_LABELLED
    longest = max((len(topology.npu_name(i)) for i in range(n)), default=1)
    size = (230 if n <= 32 else 110) if labelled else max(2.0, 6000 / n)
    axes.scatter(
        places[:n, 0],
        places[:n, 1],
        s=size,
        color=PAPER if labelled else INK,
        edgecolors=INK,
        lw=0.9,
        zorder=2,
    )
    if topology.has_switch:
        axes.scatter(places[n:, 0], places[n:, 1], s=900, marker="s", color=PAPER, edgecolors=INK, zorder=2)
        axes.annotate("switch", places[n], ha="center", va="center", fontsize=7, color=INK)
    if not labelled:
        return
    inside = longest <= 3
    for i in range(n):
        x, y = places[i]
        at = (x, y) if inside else (x * 1.09, y * 1.09)
        align = "center" if inside or abs(x) < 0.3 else ("left" if x > 0 else "right")
        size = 7 if n <= 32 else 5
        axes.annotate(topology.npu_name(i), at, ha=align, va="center", fontsize=size, color=INK, zorder=3)


def draw_topology(topology: Topology, path: str | Path) -> None:
    """Draw a network into a file.

    Parameters
    ----------
    topology : Topology
        A torus that was built stands on a grid, wraps as arcs; anything else on a circle, NPU 0 at the top.
        Lines are cables; their width grows with the lanes, their shade with the capacity where it differs.
        Links without an equal reverse are arcs with an arrow.
    path : path
        ``.png``, ``.svg`` or ``.pdf``; replaced if it exists.

    Raises
    ------
    OutputError
        If the ending is another one, or the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise OutputError(f"{path}: unknown picture format {path.suffix!r}; expected {', '.join(ENDINGS)}")
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_aspect("equal")
    axes.set_axis_off()
    places = _places(topology)
    step = _draw_links(axes, topology, places)
    _draw_nodes(axes, topology, places)
    axes.margins(0.12 if topology.names else 0.06)
    part = "" if step == 1 else f" (1 of {step} drawn)"
    title = f"{topology.kind}: {topology.num_npus} NPUs, {topology.num_links} links{part}"
    axes.set_title(title, fontsize=11, color=INK)
    # dates and random ids would make two runs differ
    stamp = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with written_aside(path) as aside, rc_context({"svg.hashsalt": "moxtrace"}):
        figure.savefig(aside, dpi=150, metadata=stamp[path.suffix.lower()])
