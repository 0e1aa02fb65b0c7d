"""The proxy against the simulation: the busiest link, against the time that communication takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ConfigError
from moxtrace.plots.results import Results, Row, shown
from moxtrace.plots.setting import LOAD, words
from moxtrace.plots.style import COLUMN, FAINT, MUTED, Drawing, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["proxy_drawing"]

TIMES = ("completion_ns", "switch_completion_ns", "compute_ns")


def _points(results: Results) -> tuple[list[Row], NDArray[np.float64], NDArray[np.float64]]:
    """Rows, their busiest link, and their communication time over the switch's."""
    rows, table = results.numbers(LOAD, *TIMES)
    load, whole, switch, compute = table.T
    sound = np.array([row.policy != "switch" for row in rows]) & (switch > compute)
    if not sound.any():
        raise ConfigError(
            f"{results.where}: no run but the ideal switch's has a busiest link, a time and a compute time; "
            "nothing to draw the proxy from"
        )
    rows = [row for row, keep in zip(rows, sound, strict=True) if keep]
    return rows, load[sound], (whole - compute)[sound] / (switch - compute)[sound]


def _in_words(load: NDArray[np.float64], time: NDArray[np.float64]) -> str:
    """How well one predicts the other."""
    off = float(np.sqrt(np.mean((time - load) ** 2)))
    text = f"{len(load)} run{'' if len(load) == 1 else 's'}, {off:.3f} from the line (rms)"
    if len(load) > 2 and np.ptp(load) > 0 and np.ptp(time) > 0:
        return f"r = {np.corrcoef(load, time)[0, 1]:.3f}; {text}"
    return text


def _draw(results: Results, figure: Figure, drawing: Drawing) -> None:
    rows, load, time = _points(results)
    axes = figure.add_subplot()
    policies = list(dict.fromkeys(row.policy for row in rows))
    for policy, (colour, _, marker) in look_of(policies).items():
        mine = np.array([row.policy == policy for row in rows])
        dots = axes.scatter(
            load[mine], time[mine], color=colour, marker=marker, s=16, alpha=0.85, linewidths=0.6,
            label=shown(policy, 18), zorder=2,
        )  # fmt: skip
        tips = []
        for row, x, y in zip([r for r in rows if r.policy == policy], load[mine], time[mine], strict=True):
            where = words(results.varying, row)
            tips.append(f"{policy}; {where}: busiest link {x:.3f}, time {y:.3f}")
        drawing.mark(dots, tips)
    _same_scale(axes, load, time)
    axes.set(
        xlabel="busiest link / switch port (the proxy)",
        ylabel="communication time /\nideal switch's (simulated)",
    )
    axes.set_title(_in_words(load, time), fontsize=7.5)
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    figure.set_size_inches(COLUMN, 3.5)
    figure.legend(loc="outside lower center", ncols=3, columnspacing=1.0, handletextpad=0.3)


def _same_scale(axes: Axes, load: NDArray[np.float64], time: NDArray[np.float64]) -> None:
    """One scale on both axes, and the line where both are equal."""
    low, high = min(load.min(), time.min(), 1.0), max(load.max(), time.max(), 1.0)
    room = 0.06 * (high - low or 0.2)
    limits = (low - room, high + room)
    axes.plot(limits, limits, color=MUTED, linewidth=0.8, zorder=1, label="equal (expected)")
    axes.set(xlim=limits, ylim=limits, aspect="equal")


def proxy_drawing(results: Results) -> Drawing:
    """The busiest link of each run against its simulated communication time, both over the ideal switch's.

    Parameters
    ----------
    results : Results
    """
    caption = (
        "Each run's busiest link in dispatch over the switch's busiest port, against its simulated time "
        "without expert compute over the same of the ideal switch. On the line the busiest link alone "
        "decides; latency and waiting along trees move points up, ports of the switch that store and forward "
        "move them down. r is Pearson's correlation."
    )
    _points(results)  # refused before anything is drawn
    return Drawing(
        "proxy", "Busiest link against simulated time", caption,
        lambda figure, drawing: _draw(results, figure, drawing),
    )  # fmt: skip
