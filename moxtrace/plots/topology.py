"""A picture of a network: NPUs where their layout puts them, links between them.

Goes in: :class:`Topology`.  Comes out: a PNG, SVG or PDF file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moxtrace.errors import OutputError
from moxtrace.outputs import written_aside
from moxtrace.plots.layouts import Layout, arcs, layout_of
from moxtrace.plots.style import ENDINGS
from moxtrace.topology.graph import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_topology"]

MAX_DRAWN = 20_000
MAX_LABELLED = 96
INK, PAPER, LINK = "#22303c", "#ffffff", "#3b78a8"


def _draw_links(axes: Axes, topology: Topology, layout: Layout) -> int:
    """Draw cables as lines, one-way links as arrows; returns how many stand for all."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap

    back = topology.reverse_link
    rate = topology.capacity_gbps
    twin = (back >= 0) & (rate[back] == rate)
    shown = np.flatnonzero(~twin | (topology.src < topology.dst))
    step = -(-len(shown) // MAX_DRAWN)
    shown = shown[::step]
    start, end = layout.places[topology.src[shown]], layout.places[topology.dst[shown]]
    apart = layout.group[topology.src[shown]] != layout.group[topology.dst[shown]]
    over = layout.on_grid & (np.abs(end - start).max(axis=1) > 1.5)
    lines = arcs(start, end, np.where(over, 0.12, np.where(twin[shown], 0.0, 0.06)))
    width = float(np.clip(20 / np.sqrt(len(shown)), 0.12, 1.8))
    widths = width * np.sqrt(topology.lanes[shown])
    if rate.min() == rate.max() or apart.any():
        faint = float(np.clip(width, 0.3, 0.75))  # where lines overlap, density shows as shade
        for some, shade in ((apart, LINK), (~apart, INK if apart.any() else LINK)):
            style: dict[str, Any] = {"colors": shade, "alpha": faint, "linewidths": widths[some], "zorder": 1}
            axes.add_collection(LineCollection(list(lines[some]), **style))
    else:
        shades = LinearSegmentedColormap.from_list("rates", ["#bcd3e4", LINK, "#12324a"])
        coloured = axes.add_collection(
            LineCollection(list(lines), array=rate[shown], cmap=shades, linewidths=widths, zorder=1)
        )
        axes.figure.colorbar(coloured, ax=axes, label="link capacity (Gbit/s)", shrink=0.6, pad=0.02)
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 0.0, "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
    for line in lines[~twin[shown]][:500]:
        axes.annotate("", line[8], line[7], arrowprops=arrow)
    return step


def _draw_nodes(axes: Axes, topology: Topology, layout: Layout) -> None:
    n, places = topology.num_npus, layout.places
    points = layout.spacing / float(np.ptp(places, axis=0).max() or 1) * 400  # between neighbours
    labelled = n <= MAX_LABELLED and points > 14
    longest = max((len(topology.npu_name(i)) for i in range(n)), default=1)
    size = min(230 if n <= 32 else 110, ((0.75 if labelled else 0.5) * points) ** 2)
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
        Tori and meshes stand on a grid, wraps as arcs; networks of groups as clusters; anything else on a
        circle, NPU 0 at the top.  Lines are cables, dark within a cluster; their width grows with the lanes,
        their shade with the capacity where it differs.  Links without an equal reverse are arcs with an
        arrow.
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
    layout = layout_of(topology)
    step = _draw_links(axes, topology, layout)
    _draw_nodes(axes, topology, layout)
    axes.margins(0.12 if topology.names else 0.06)
    if not np.ptp(layout.places[:, 1]):  # all in a line
        axes.set_ylim(-1, 1)
    part = "" if step == 1 else f" (1 of {step} drawn)"
    title = f"{topology.kind}: {topology.num_npus} NPUs, {topology.num_links} links{part}"
    axes.set_title(title, fontsize=11, color=INK)
    # dates and random ids would make two runs differ
    stamp = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with written_aside(path) as aside, rc_context({"svg.hashsalt": "moxtrace"}):
        figure.savefig(aside, dpi=150, metadata=stamp[path.suffix.lower()])
