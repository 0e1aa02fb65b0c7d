"""Figures 2 to 6, for a column of 3.4 inches, the paper's numbers drawn in black beside ours.

Goes in: :class:`~paper.results.Results`.  Comes out: PNG and PDF files.  Marks show the median over seeds,
whiskers the least and the greatest.  Colours are Okabe and Ito's, and every policy has its own mark.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from moxtrace.outputs import written_aside
from paper.grid import POLICIES
from paper.results import TRAFFIC, Range, Results, range_of

__all__ = ["draw_all"]

WIDTH = 3.4  # inches: a column
COLOURS = {"min-hop": "#D55E00", "tree": "#0072B2", "mox-paper": "#009E73", "mox": "#CC79A7"}
MARKS = {"min-hop": "o", "tree": "s", "mox-paper": "^", "mox": "D"}
PAPER = {"min-hop": "o", "tree": "s", "mox": "D"}  # as ours, hollow and black
STYLE: Any = {
    "font.size": 7, "axes.titlesize": 7, "legend.fontsize": 6.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.linewidth": 0.6, "svg.hashsalt": "moxtrace", "pdf.fonttype": 42,
}  # fmt: skip
OVER = "over the ideal switch (%)"


def draw_all(results: Results, published: dict[str, Any], folder: Path) -> list[str]:
    """Draw every figure that has points; returns their names."""
    drawn = []
    with rc_context(STYLE):
        for stage in ("training", "inference"):
            drawn += _times(results, published, stage, folder)
        drawn += _proxy(results, folder)
        drawn += _skew(results, published, folder)
        drawn += _boardfly(results, published, folder)
        drawn += _sizes(results, published, folder)
        drawn += _degrees(results, folder)
    return drawn


def _save(figure: Figure, folder: Path, name: str) -> list[str]:
    for ending, metadata in ((".png", {"Software": None}), (".pdf", {"CreationDate": None})):
        with written_aside(folder / f"{name}{ending}") as aside:
            figure.savefig(aside, dpi=300, metadata=metadata)
    return [name]


def _whiskers(
    axes: Axes, places: Sequence[float], groups: Sequence[list[float]], policy: str, **style: Any
) -> None:
    """Medians with their ranges; places without values are left out."""
    kept = [(place, values) for place, values in zip(places, groups, strict=True) if values]
    if not kept:
        return
    middle = [statistics.median(values) for _, values in kept]
    below = [m - min(values) for m, (_, values) in zip(middle, kept, strict=True)]
    above = [max(values) - m for m, (_, values) in zip(middle, kept, strict=True)]
    usual: dict[str, Any] = {
        "color": COLOURS[policy], "marker": MARKS[policy], "label": policy, "markersize": 3.2,
        "linewidth": 0.9, "elinewidth": 0.8, "capsize": 1.5,
    }  # fmt: skip
    axes.errorbar([place for place, _ in kept], middle, (below, above), **(usual | style))


def _published(axes: Axes, place: float, value: Range, policy: str, label: str | None) -> None:
    """The paper's number: a hollow black mark, a bar between two, or an arrow down from "up to"."""
    low, high = value
    style: dict[str, Any] = {"color": "black", "linestyle": "none", "markerfacecolor": "none", "zorder": 4}
    if low == -math.inf:
        axes.annotate(
            "", (place, 0.4 * high), (place, high), arrowprops={"arrowstyle": "->", "lw": 0.8, "shrinkB": 0}
        )
        low = high
    if low == high:
        axes.plot(
            [place], [low], marker=PAPER[policy], markersize=5, markeredgewidth=0.9, label=label, **style
        )
        return
    axes.plot([place, place], [low, high], color="black", linewidth=0.9, zorder=4)
    axes.plot(
        [place] * 2,
        [low, high],
        marker=PAPER[policy],
        markersize=4,
        markeredgewidth=0.8,
        label=label,
        **style,
    )


def _percent_axis(axes: Axes, highest: float = 130, which: Literal["x", "y"] = "y") -> None:
    """Linear up to 1 %, logarithmic beyond."""
    axis = getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}scale")("symlog", linthresh=1, linscale=0.5)
    getattr(axes, f"set_{which}lim")(-0.6, highest)
    axis.set_ticks([t for t in (0, 1, 3, 10, 30, 100) if t < highest])
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis=which, linewidth=0.4, color="0.88")
    axes.set_axisbelow(True)


def _legend(figure: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend above all panels, each name once."""
    found: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    found = {label: found[label] for label in sorted(found, key=lambda text: text.startswith("paper"))}
    figure.legend(
        found.values(), found.keys(), loc="outside upper center", ncols=columns, frameon=False,
        handletextpad=0.4, columnspacing=1.0, borderaxespad=0.2,
    )  # fmt: skip


def _times(results: Results, published: dict[str, Any], stage: str, folder: Path) -> list[str]:
    """Figure 2: a panel for each traffic and top-K, sizes across."""
    if not results.of("2", stage=stage):
        return []
    kinds, ks, sizes = (results.labels("2", key) for key in ("traffic", "top_k", "npus"))
    figure = Figure(figsize=(WIDTH, 1.1 + 1.45 * len(kinds)), layout="constrained")
    panels = figure.subplots(len(kinds), len(ks), sharex=True, sharey=True, squeeze=False)
    for (i, kind), (j, top_k) in product(enumerate(kinds), enumerate(ks)):
        axes = panels[i][j]
        for k, policy in enumerate(POLICIES):
            groups = [
                results.percent(results.of("2", stage=stage, traffic=kind, top_k=top_k, npus=n), policy)
                for n in sizes
            ]
            _whiskers(axes, [x + 0.1 * (k - 1.5) for x in range(len(sizes))], groups, policy)
        for policy, shift in (("min-hop", -0.29), ("mox", 0.29)):
            row = published[stage][policy].get(top_k, {})
            for x, npus in enumerate(sizes):
                if npus in row:
                    label = {"min-hop": "paper: min-hop", "mox": "paper: MoX"}[policy]
                    _published(axes, x + shift, range_of(row[npus]), policy, label)
        _percent_axis(axes)
        axes.set_title(f"{TRAFFIC[kind]}, top-{top_k}", pad=3)
        axes.set_xticks(range(len(sizes)), [str(n) for n in sizes])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
    figure.supxlabel("NPUs", fontsize=7)
    figure.supylabel(f"{stage}: MoE block {OVER}", fontsize=7)
    _legend(figure, list(panels.ravel()), 3)
    return _save(figure, folder, f"figure_2_{stage}")


def _proxy(results: Results, folder: Path) -> list[str]:
    """Figure 3: the busiest link against the simulated time of communication."""
    cells = results.of("2") + results.of("4")
    if not cells:
        return []
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes = figure.add_subplot()
    for policy in POLICIES:
        axes.scatter(
            results.percent(cells, policy, "normalized_max_load"),
            results.percent(cells, policy, "communication_slowdown"),
            s=8, marker=MARKS[policy], label=policy, facecolors="none", edgecolors=COLOURS[policy],
            linewidths=0.7,
        )  # fmt: skip
    _percent_axis(axes, 250)
    _percent_axis(axes, 250, "x")
    axes.plot([-0.6, 250], [-0.6, 250], color="black", linewidth=0.7, label="equal", zorder=1)
    axes.set(xlabel=f"busiest link {OVER}", ylabel=f"communication time {OVER}")
    axes.legend(frameon=False, loc="upper left", handletextpad=0.4)
    return _save(figure, folder, "figure_3_proxy")


def _skew(results: Results, published: dict[str, Any], folder: Path) -> list[str]:
    """Figure 4: two networks under two policies over the skew; the paper's ranges at the right."""
    layers = results.labels("4", "layer")
    if not layers:
        return []
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    axes, aside = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    at = {
        layer: statistics.median(
            results.values(results.of("4", layer=layer), "min-hop", "hottest_npu") or [1.0]
        )
        for layer in layers
    }
    layers.sort(key=at.__getitem__)
    for i, (network, policy) in enumerate(product(published["skew"], ("min-hop", "mox"))):
        groups = [results.percent(results.of("4", layer=x, network=network), policy) for x in layers]
        tuned = network != "expander"
        look = {"markerfacecolor": "white", "linestyle": "--"} if tuned else {}
        nudge = 0.004 * (i - 1.5) * (max(at.values()) - min(at.values()) or 1) * 3
        _whiskers(axes, [at[x] + nudge for x in layers], groups, policy, label=f"{policy}, {network}", **look)
        low, high = range_of(published["skew"][network][policy])
        low = max(low, -0.6)
        face = "white" if tuned else COLOURS[policy]
        aside.bar(i, high - low, 0.6, low, facecolor=face, edgecolor=COLOURS[policy], linewidth=0.9, zorder=3)
    for panel in (axes, aside):
        _percent_axis(panel, 80)
    axes.set(xlabel="hottest NPU's load / mean", ylabel=f"MoE block {OVER}")
    aside.set_title("paper", pad=3)
    aside.set_xticks([])
    aside.set_xlim(-0.8, 3.8)
    _legend(figure, [axes], 2)
    return _save(figure, folder, "figure_4_skew")


def _boardfly(results: Results, published: dict[str, Any], folder: Path) -> list[str]:
    """Figure 5: bars relative to min-hop."""
    if not results.of("5"):
        return []
    figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
    axes = figure.add_subplot()
    policies = ("tree", "mox-paper", "mox")
    for i, stage in enumerate(("training", "inference")):
        cells = results.of("5", stage=stage)
        for j, policy in enumerate(policies):
            values, place = results.over_min_hop(cells, policy), i + 0.26 * (j - 1)
            if not values:
                continue
            middle = statistics.median(values)
            label = policy if i == 0 else None
            axes.bar(place, middle, 0.24, color=COLOURS[policy], label=label)
            if len(values) > 1:
                reach = ([middle - min(values)], [max(values) - middle])
                axes.errorbar(place, middle, reach, color="0.25", capsize=2, linewidth=0.8)
            text = f"{middle:.0f}".replace("-", "\N{MINUS SIGN}")
            axes.annotate(text, (place, -1.5), ha="center", va="top", fontsize=6.5)
            known = published["boardfly"][stage].get(policy)
            if known is not None:
                name = f"paper: {'MoX' if policy == 'mox' else policy}" if i == 0 else None
                _published(axes, place, (known, known), policy, name)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks((0, 1), ("training", "inference"))
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_ylabel("busiest link over min-hop's (%)")
    _legend(figure, [axes], 5)
    return _save(figure, folder, "figure_5_boardfly")


def _sizes(results: Results, published: dict[str, Any], folder: Path) -> list[str]:
    """Figure 6, sizes: a panel for each top-K."""
    sizes, ks = results.labels("6", "npus"), results.labels("6", "top_k")
    if not sizes:
        return []
    figure = Figure(figsize=(WIDTH, 2.4), layout="constrained")
    panels = list(figure.subplots(1, len(ks), sharey=True, squeeze=False)[0])
    for axes, top_k in zip(panels, ks, strict=True):
        for policy in POLICIES:
            cells = [results.of("6", npus=n, top_k=top_k) for n in sizes]
            groups = [results.percent(c, policy, "normalized_max_load") for c in cells]
            _whiskers(axes, sizes, groups, policy)
        if top_k == 8:
            for npus, value in published["tree_overhead"].items():
                _published(axes, npus, range_of(value), "tree", "paper: tree")
        _percent_axis(axes, 250)
        axes.set_title(f"top-{top_k}", pad=3)
        axes.set_xticks([n for n in sizes if n % 16 == 0])
    figure.supxlabel("NPUs", fontsize=7)
    panels[0].set_ylabel(f"busiest link {OVER}")
    _legend(figure, panels, 5)
    return _save(figure, folder, "figure_6_sizes")


def _degrees(results: Results, folder: Path) -> list[str]:
    """Figure 6, degrees."""
    degrees = results.labels("6", "degree")
    if not degrees:
        return []
    figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
    axes = figure.add_subplot()
    for policy in POLICIES:
        groups = [results.percent(results.of("6", degree=d), policy, "normalized_max_load") for d in degrees]
        _whiskers(axes, degrees, groups, policy)
    _percent_axis(axes, 250)
    axes.set_xticks(degrees)
    axes.set(xlabel="degree", ylabel=f"busiest link {OVER}")
    _legend(figure, [axes], 4)
    return _save(figure, folder, "figure_6_degrees")
