"""Completion time over one swept key, normalised to the ideal switch: a line per policy.

Numbers make an axis with lines and bands, words make groups of dots.  Seeds and repeats are the spread; each
combination of the other keys gets a panel, as long as there are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moxtrace.errors import ConfigError
from moxtrace.plots.results import POLICY_KEYS, Results, Row, is_seed, shown
from moxtrace.plots.setting import words
from moxtrace.plots.style import COLUMN, FAINT, MUTED, Drawing, label_of, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["time_drawings"]

MAX_PANELS = 6
TIME = "slowdown"


@dataclass(frozen=True)
class _Point:
    """Times of one policy at one value: at ``x``, over the switch's, lowest to highest."""

    x: float
    value: Any
    times: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.times))

    def tip(self, policy: str, key: str) -> str:
        text = f"{policy}, {label_of(key)} {shown(self.value)}: {self.median:.3f} x the switch"
        if len(self.times) > 1:
            text += f" (median of {len(self.times)}, {min(self.times):.3f} to {max(self.times):.3f})"
        return text


def _decided_by(results: Results, key: str, other: str) -> bool:
    """Whether ``other`` moves together with ``key``: one value of it for each value of ``key``."""
    pairs = {(row.values.get(key), row.values.get(other)) for row in results.ok}
    return len(pairs) == len(results.values(key))


def _panels(results: Results, rows: Sequence[Row], key: str) -> tuple[dict[str, list[Row]], str]:
    """Rows by panel; also what the spread is besides seeds and repeats."""
    others = [k for k in results.settings if k != key and not _decided_by(results, key, k)]
    panels: dict[str, list[Row]] = {}
    order = {k: results.values(k) for k in others}
    for row in sorted(rows, key=lambda r: [order[k].index(r.values.get(k)) for k in others]):
        panels.setdefault(words(others, row), []).append(row)
    if len(panels) > MAX_PANELS:
        return {"": list(rows)}, " and ".join(label_of(k) for k in others)
    return panels, ""


def _points(rows: Sequence[Row], key: str, values: Sequence[Any], numeric: bool) -> dict[str, list[_Point]]:
    """Points of each policy, along the key."""
    found: dict[str, dict[Any, list[float]]] = {}
    for row in rows:
        times = found.setdefault(row.policy, {})
        times.setdefault(row.values.get(key), []).append(float(row.values[TIME]))
    return {
        policy: [
            _Point(float(value) if numeric else float(i), value, tuple(times[value]))
            for i, value in enumerate(values)
            if value in times
        ]
        for policy, times in found.items()
    }


def _draw_lines(axes: Axes, points: dict[str, list[_Point]], key: str, drawing: Drawing, looks: Any) -> None:
    for policy, line in points.items():
        colour, dashes, marker = looks[policy]
        x, middle = [p.x for p in line], [p.median for p in line]
        low, high = [min(p.times) for p in line], [max(p.times) for p in line]
        if any(len(p.times) > 1 for p in line):
            axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(x, middle, color=colour, linestyle=dashes, zorder=2)
        dots = axes.scatter(x, middle, color=colour, marker=marker, s=15, linewidths=1, zorder=3)
        drawing.mark(dots, [p.tip(policy, key) for p in line])


def _draw_groups(axes: Axes, points: dict[str, list[_Point]], key: str, drawing: Drawing, looks: Any) -> None:
    step = 0.0 if key in POLICY_KEYS else min(0.16, 0.7 / max(1, len(points)))
    for i, (policy, line) in enumerate(points.items()):
        colour, _, marker = looks[policy]
        x = [p.x + (i - (len(points) - 1) / 2) * step for p in line]
        axes.vlines(
            x, [min(p.times) for p in line], [max(p.times) for p in line], color=colour, linewidth=1.2
        )
        dots = axes.scatter(
            x, [p.median for p in line], color=colour, marker=marker, s=20, linewidths=1, zorder=3
        )
        drawing.mark(dots, [p.tip(policy, key) for p in line])


def _scale(axes: Axes, values: Sequence[Any]) -> None:
    """An axis of numbers: by powers of two where they grow so, a tick at each value where they are few."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = min(values), max(values)
    if low > 0 and high / low >= 8:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
    if len(values) <= 8:
        axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}" if abs(x) < 1e4 else f"{x:,.0f}"))
    if len("".join(f"{v:g}" for v in values)) > 34:
        axes.tick_params(axis="x", rotation=35)


def _categories(axes: Axes, values: Sequence[Any]) -> None:
    names = [shown(value, 18) for value in values]
    crowded = sum(map(len, names)) > 34
    axes.set_xticks(
        range(len(names)), names, rotation=35 if crowded else 0, ha="right" if crowded else "center"
    )
    if crowded:
        axes.tick_params(axis="x", pad=1)
    axes.set_xlim(-0.5, len(names) - 0.5)


def _draw(results: Results, rows: list[Row], key: str, figure: Figure, drawing: Drawing) -> None:
    values = [v for v in results.values(key) if any(row.values.get(key) == v for row in rows)]
    numeric = all(isinstance(v, (int, float)) for v in values) and key not in POLICY_KEYS
    panels, mixed = _panels(results, rows, key)
    policies = list(dict.fromkeys(row.policy for row in rows))
    looks = look_of(policies)
    figure.set_size_inches(COLUMN, 0.75 + 1.75 * len(panels) if len(panels) > 1 else 2.7)
    grid = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, (name, mine) in zip(grid, panels.items(), strict=True):
        points = _points(mine, key, values, numeric)
        (_draw_lines if numeric else _draw_groups)(axes, points, key, drawing, looks)
        axes.axhline(1.0, color=MUTED, linewidth=0.8, zorder=1)
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.set_title(shown(name, 60), fontsize=7.5)
    (_scale if numeric else _categories)(grid[-1], values)
    grid[-1].set_xlabel(label_of(key))
    figure.supylabel("completion time / ideal switch", fontsize=8)
    _legend(figure, [] if key in POLICY_KEYS else policies, looks, numeric)
    spread = max(
        len(p.times)
        for mine in panels.values()
        for line in _points(mine, key, values, numeric).values()
        for p in line
    )
    if spread > 1:
        over = f", over {mixed}" if mixed else ""
        what = "band" if numeric else "bar"
        drawing.caption += f" The {what} spans up to {spread} runs{over}."


def _legend(figure: Figure, policies: list[str], looks: Any, lines: bool) -> None:
    """Policies and the switch's line, below all panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=c, linestyle=d if lines else "", marker=m, markersize=4, label=shown(p, 18))
        for p, (c, d, m) in looks.items() if p in policies
    ]  # fmt: skip
    handles.append(Line2D([], [], color=MUTED, linewidth=0.8, label="ideal switch"))
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = 3 if longest <= 12 else 2
    style: dict[str, Any] = {"columnspacing": 1.2, "handlelength": 2.4}
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, **style)


def time_drawings(results: Results, over: Sequence[str] = ()) -> list[Drawing]:
    """One drawing per swept key.

    Parameters
    ----------
    results : Results
    over : sequence of str
        The keys; by default every swept key that has several values, but seeds, and the policy only where
        nothing else was swept.

    Raises
    ------
    ConfigError
        When a key is unknown or has one value only, or no run has a time.
    """
    rows, _ = results.numbers(TIME)
    rows = [row for row in rows if row.policy != "switch"]
    if not rows:
        raise ConfigError(f"{results.where}: every run is the ideal switch; expected a run of another policy")
    for key in over:
        if key not in results.columns:
            known = ", ".join(results.keys) or "none"
            raise ConfigError(f"--over {key}: no such column; swept keys are: {known}")
    keys = list(over) or list(results.settings) or [key for key in results.varying if key in POLICY_KEYS][:1]
    keys = keys or ["policy"]
    drawings = []
    for key in keys:
        values = {row.values.get(key) for row in rows}
        if len(values) < 2:
            only = shown(next(iter(values)))
            raise ConfigError(
                f"{results.where}: {key} has one value only, {only}; nothing to draw times over: sweep more "
                "values, or choose other figures with --kind"
            )
        drawings.append(_drawing(results, rows, key))
    return drawings


def _drawing(results: Results, rows: list[Row], key: str) -> Drawing:
    word = label_of(key)
    caption = (
        f"Completion of dispatch, expert compute and combine over the ideal switch's, by {word}. Marks are "
        "medians over seeds and repeats." if any(map(is_seed, results.varying)) else
        f"Completion of dispatch, expert compute and combine over the ideal switch's, by {word}."
    )  # fmt: skip
    return Drawing(
        f"time-{key}", f"Completion time over {word}", caption,
        lambda figure, drawing: _draw(results, rows, key, figure, drawing),
    )  # fmt: skip
