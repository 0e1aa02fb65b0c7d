"""Link load as a matrix, source by destination, a panel per policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ConfigError
from moxtrace.plots.loads import loads_of
from moxtrace.plots.results import Results, Row, shown
from moxtrace.plots.setting import Setting, setting_of
from moxtrace.plots.steps import Steps, steps_for
from moxtrace.plots.style import COLUMN, FAINT, Drawing, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["heat_drawing", "with_links_between_npus"]

MAX_CELLS = 128  # along each side; larger networks show the busiest link of a block of NPUs


def with_links_between_npus(results: Results, setting: Setting) -> dict[str, Row]:
    """The first run of each policy, those on a switch left out.

    Raises
    ------
    ConfigError
        When all run on a switch, whose links join no two NPUs.
    """
    rows = {policy: row for policy, row in setting.first.items() if not row.detail.topology.has_switch}
    if not rows:
        raise ConfigError(
            f"{results.where}: an ideal switch has no links between NPUs; expected a run of another policy"
        )
    return rows


def _cells(row: Row, block: int) -> tuple[NDArray[np.int64], NDArray[np.float64], list[str]]:
    """Cells with links, shape (cells, 2) as (src, dst); their busiest load; and words for each."""
    network, loads = row.detail.topology, loads_of(row)
    cell = np.stack((network.src, network.dst), axis=1).astype(np.int64) // block
    order = np.argsort(loads, kind="stable")[::-1]
    cells, first = np.unique(cell[order], axis=0, return_index=True)
    busiest = order[first]
    tips = [
        f"{network.npu_name(network.src[e])} to {network.npu_name(network.dst[e])}: load {loads[e]:.3f}, "
        f"{row.detail.dispatch_bytes[e] / 1e6:,.3f} MB"
        for e in busiest
    ]
    return cells, loads[busiest], tips


def _draw_panel(axes: Axes, policy: str, row: Row, steps: Steps, drawing: Drawing) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import FixedLocator, FuncFormatter

    npus = row.detail.topology.num_npus
    block = -(-npus // MAX_CELLS)
    side = -(-npus // block)
    cells, loads, tips = _cells(row, block)
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], np.float64)
    squares = cells[:, None, ::-1] + corners[None]
    drawn = PolyCollection(list(squares), facecolors=steps.of(loads), linewidths=0)
    axes.add_collection(drawn)
    drawing.mark(drawn, [f"{policy}, {tip}" for tip in tips])
    axes.set(xlim=(0, side), ylim=(side, 0), aspect="equal")
    axes.set_title(f"{shown(policy, 14)}: busiest {loads.max():.2f}", fontsize=7, pad=3)
    every = max(1, side // 4)
    ticks = FixedLocator([i + 0.5 for i in range(0, side, every)])
    names = [row.detail.topology.npu_name(i) for i in range(npus)]
    if max(map(len, names)) > 4:
        names = [str(i) for i in range(npus)]
    words = FuncFormatter(lambda x, _: names[int(x) * block])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticks)
        axis.set_major_formatter(words)
    axes.tick_params(length=2, labelsize=6.5)
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT)


def _draw(results: Results, figure: Figure, drawing: Drawing) -> None:
    setting = setting_of(results)
    rows = with_links_between_npus(results, setting)
    steps = steps_for(max(float(loads_of(row).max()) for row in rows.values()))
    across = min(2, len(rows))
    down = -(-len(rows) // across)
    figure.set_size_inches(COLUMN, 0.95 + (1.62 if across == 2 else 2.9) * down)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes, (policy, row) in zip(grid, rows.items(), strict=False):
        _draw_panel(axes, policy, row, steps, drawing)
    for axes in grid[len(rows) :]:
        axes.set_visible(False)
    for i, axes in enumerate(grid[: len(rows)]):
        if i % across == 0:
            axes.set_ylabel("source NPU", fontsize=7)
        if i + across >= len(rows):
            axes.set_xlabel("destination NPU", fontsize=7)
    steps.scale(figure, list(grid))
    figure.suptitle(wrapped(setting.title), fontsize=7.5)
    npus = max(row.detail.topology.num_npus for row in rows.values())
    if npus > MAX_CELLS:
        block = -(-npus // MAX_CELLS)
        drawing.caption += f" Each cell shows the busiest link of {block} x {block} pairs of NPUs."


def heat_drawing(results: Results) -> Drawing:
    """Loads by source and destination of one setting, a panel per policy on one scale.

    Parameters
    ----------
    results : Results
    """
    caption = (
        "Load of each link in dispatch over the ideal switch's busiest port, by source (down) and "
        "destination (across); empty cells have no link. A column that stands out is an NPU that all send to."
    )
    with_links_between_npus(results, setting_of(results))  # refused before anything is drawn
    return Drawing(
        "heatmap", "Link load by source and destination", caption,
        lambda figure, drawing: _draw(results, figure, drawing),
    )  # fmt: skip
