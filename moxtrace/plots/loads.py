"""Link load per policy: the links of each run, busiest first, over the ideal switch's busiest port."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moxtrace.plots.results import Results, Row, shown
from moxtrace.plots.run_rows import results_of_runs
from moxtrace.plots.setting import LOAD, setting_of
from moxtrace.plots.style import COLUMN, FAINT, MUTED, Drawing, label_of, look_of, save, wrapped
from moxtrace.rundir import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["link_loads", "load_drawing", "loads_of", "plot_link_loads"]

MAX_CURVES = 6


def loads_of(row: Row) -> NDArray[np.float64]:
    """Load of each link in dispatch over the ideal switch's busiest port, shape (links,)."""
    return row.detail.loads(float(row.values[LOAD]))


def link_loads(run: Run) -> NDArray[np.float64]:
    """Load of each link over the busiest port of the ideal switch, per unit of capacity, shape (links,).

    1.0 is a link that is busy for as long as the switch's busiest port would be.
    """
    return loads_of(results_of_runs([run.path]).rows[0])


def _curves(results: Results) -> tuple[dict[str, list[Row]], str]:
    """Runs by curve, and what is the same in all of them; every setting where they are few."""
    chosen = setting_of(results)
    rows, _ = results.numbers(LOAD)
    if any(row.policy != "switch" for row in rows):
        rows = [row for row in rows if row.policy != "switch"]
    every: dict[str, list[Row]] = {}
    for row in rows:
        more = [f"{label_of(key)} {shown(row.values.get(key), 14)}" for key in results.settings]
        every.setdefault(", ".join([row.policy, *more]), []).append(row)
    if len(every) <= MAX_CURVES and results.settings:
        return every, ""
    return chosen.rows, chosen.name


def _sorted_loads(rows: Sequence[Row]) -> NDArray[np.float64]:
    """Loads, busiest first, of runs with as many links as the first, shape (runs, links)."""
    loads = [np.sort(loads_of(row))[::-1] for row in rows]
    return np.array([load for load in loads if len(load) == len(loads[0])])


def _label(name: str, loads: NDArray[np.float64], rows: Sequence[Row]) -> str:
    text = f"{shown(name, 44)}: busiest {np.median(loads[:, 0]):.2f}"
    times = [row.values["slowdown"] for row in rows if isinstance(row.values.get("slowdown"), (int, float))]
    return f"{text}, {np.median(times) - 1:+.1%} time" if times else text


def _draw(results: Results, figure: Figure, drawing: Drawing) -> None:
    curves, common = _curves(results)
    looks = look_of(list(curves))
    axes = figure.add_subplot()
    links = 0
    for name, rows in curves.items():
        loads = _sorted_loads(rows)
        colour, dashes, _ = looks[name]
        share = (np.arange(loads.shape[1]) + 0.5) / loads.shape[1] * 100
        if len(loads) > 1:
            axes.fill_between(share, loads.min(axis=0), loads.max(axis=0), color=colour, alpha=0.18, lw=0)
        axes.plot(
            share, np.median(loads, axis=0), color=colour, linestyle=dashes, label=_label(name, loads, rows)
        )
        links = max(links, loads.shape[1])
    axes.axhline(1.0, color=MUTED, linewidth=0.8, zorder=0, label="ideal switch's busiest port")
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.set(xlabel="share of links, busiest first (%)", ylabel="load / switch's busiest port")
    if common:
        axes.set_title(wrapped(common))
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, 100)
    figure.set_size_inches(COLUMN, 2.4 + 0.16 * len(curves))
    figure.legend(loc="outside lower center", handlelength=2.6)


def load_drawing(results: Results) -> Drawing:
    """Links of one setting, a curve per policy, seeds as a band; every setting where they are few.

    Parameters
    ----------
    results : Results
    """
    caption = (
        "Load of each link in dispatch, per unit of its capacity, over the busiest port of the ideal switch; "
        "links sorted, busiest first. The busiest link decides how long dispatch takes. Bands span seeds and "
        "repeats."
    )
    for rows in _curves(results)[0].values():
        loads_of(rows[0])  # refused before anything is drawn
    return Drawing(
        "load", "Link load per policy", caption, lambda figure, drawing: _draw(results, figure, drawing)
    )


def plot_link_loads(runs: Sequence[Run], output: Path) -> None:
    """Draw the sorted link loads of some runs into ``output`` (PNG, SVG or PDF, by its ending).

    Parameters
    ----------
    runs : sequence of Run
        A curve per policy; runs of different settings a curve each.
    output : path

    Raises
    ------
    OutputError
        When the ending is unknown or the file cannot be written.
    """
    save(load_drawing(results_of_runs([run.path for run in runs])), output)
