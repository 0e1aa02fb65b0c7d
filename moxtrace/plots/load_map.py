"""The network with its links coloured by load."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.plots.heat import with_links_between_npus
from moxtrace.plots.layouts import arcs, layout_of
from moxtrace.plots.loads import loads_of
from moxtrace.plots.results import Results, Row, shown
from moxtrace.plots.setting import setting_of
from moxtrace.plots.steps import Steps, steps_for
from moxtrace.plots.style import COLUMN, INK, PAPER, Drawing, wrapped
from moxtrace.topology.graph import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["map_drawing", "map_drawings"]

MAX_NPUS = 128  # above, lines hide each other: only the hottest links are drawn
HOTTEST = 200
MAX_LABELLED = 32


def _draw_nodes(axes: Axes, network: Topology, places: NDArray[np.float64], size: float) -> None:
    """NPUs, with their numbers or names where these can be read."""
    n = network.num_npus
    names = [network.npu_name(i) for i in range(n)]
    labelled = n <= MAX_LABELLED and max(map(len, names)) <= 3  # what fits into a circle
    points = (6.2 if n <= 16 else 4.2 if n <= 32 else 150 / n) * size
    face = PAPER if labelled else INK
    x, y = places.T
    axes.scatter(x, y, s=max(points**2, 0.6), color=face, edgecolors=INK, linewidths=0.6, zorder=2)
    if labelled:
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": INK, "zorder": 3}
        style["fontsize"] = (3.4 if n <= 16 else 2.6) * size**0.8
        for i in range(n):
            axes.annotate(names[i], places[i], **style)


def _draw_panel(axes: Axes, policy: str, row: Row, steps: Steps, drawing: Drawing, size: float) -> None:
    """One network, its busiest links on top; ``size`` in inches."""
    from matplotlib.collections import LineCollection

    network, loads = row.detail.topology, loads_of(row)
    layout = layout_of(network)
    order = np.argsort(loads, kind="stable")
    if network.num_npus > MAX_NPUS:
        order = order[-HOTTEST:]
    start, end = layout.places[network.src[order]], layout.places[network.dst[order]]
    over = layout.on_grid & (np.abs(end - start).max(axis=1) > 1.5)
    # both directions of a cable bend to their own right, so that each is seen
    lines = arcs(start, end, np.where(over, 0.14, 0.05))
    thin = float(np.clip(3 * size / np.sqrt(len(order)), 0.35, 1.3))
    share = loads[order] / (float(loads.max()) or 1.0)
    drawn = LineCollection(
        list(lines),
        colors=steps.of(loads[order]),
        linewidths=thin * (0.6 + share),
        zorder=1,
        capstyle="round",
    )
    axes.add_collection(drawn)
    names = network.npu_name
    drawing.mark(
        drawn,
        [f"{policy}, {names(network.src[e])} to {names(network.dst[e])}: load {loads[e]:.3f}" for e in order],
    )
    _draw_nodes(axes, network, layout.places[: network.num_npus], size)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.margins(0.08)
    if not np.ptp(layout.places[:, 1]):  # all in a line
        axes.set_ylim(-1, 1)
    axes.set_title(f"{shown(policy, 14)}: busiest {loads.max():.2f}", fontsize=7, pad=3)


def _draw(results: Results, policies: list[str] | None, figure: Figure, drawing: Drawing) -> None:
    setting = setting_of(results)
    rows = with_links_between_npus(results, setting)
    steps = steps_for(max(float(loads_of(row).max()) for row in rows.values()))
    mine = rows if policies is None else {policy: rows[policy] for policy in policies}
    npus = max(row.detail.topology.num_npus for row in rows.values())
    across = min(2, len(mine))
    size = COLUMN if across == 1 or npus > 16 else COLUMN / 2
    down = -(-len(mine) // across)
    figure.set_size_inches(size * across, 0.8 + size * down)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes in grid[len(mine) :]:
        axes.set_visible(False)
    for axes, (policy, row) in zip(grid, mine.items(), strict=False):
        _draw_panel(axes, policy, row, steps, drawing, size)
    steps.scale(figure, list(grid))
    title = setting.title
    if npus > MAX_NPUS:
        links = max(row.detail.topology.num_links for row in mine.values())
        title += f": the {HOTTEST} hottest of {links:,} links"
        drawing.caption += f" Of more than {MAX_NPUS} NPUs only the {HOTTEST} hottest links are drawn."
    figure.suptitle(wrapped(title, round(17 * size * across)), fontsize=7.5)


def map_drawing(results: Results, policies: list[str] | None = None) -> Drawing:
    """The network of one setting, a panel per policy on one scale.

    Parameters
    ----------
    results : Results
    policies : list of str, optional
        Panels to draw; default: all policies.
    """
    caption = (
        "The network, each direction of a cable an arc coloured by its load in dispatch over the ideal "
        "switch's busiest port; the busiest links lie on top."
    )
    with_links_between_npus(results, setting_of(results))  # refused before anything is drawn
    whose = f", {' and '.join(policies)}" if policies else ""
    return Drawing(
        "-".join(["topology", *(policies or ())]), f"The network by link load{whose}", caption,
        partial(_draw, results, policies),
    )  # fmt: skip


def map_drawings(results: Results) -> list[Drawing]:
    """One drawing per policy, each a column wide, on one scale.

    Parameters
    ----------
    results : Results
    """
    rows = with_links_between_npus(results, setting_of(results))
    return [map_drawing(results, [policy]) for policy in rows]
