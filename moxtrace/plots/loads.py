"""Link load per policy: the links of each run, sorted, over the ideal switch's busiest port."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import OutputError, TraceError
from moxtrace.outputs import written_aside
from moxtrace.rundir import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["link_loads", "plot_link_loads"]

# Okabe and Ito's colours, told apart by colour-blind readers, with dashes for black-and-white print
_STYLES = (
    ("#D55E00", "-"), ("#0072B2", "--"), ("#009E73", "-."), ("#CC79A7", ":"), ("#E69F00", (0, (5, 1))),
    ("#56B4E9", (0, (3, 1, 1, 1))),
)  # fmt: skip


def link_loads(run: Run, phase: str = "dispatch") -> NDArray[np.float64]:
    """Load of each link over the busiest port of the ideal switch, per unit of capacity, shape (links,).

    1.0 is a link that is busy for as long as the switch's busiest port would be.
    """
    path = run.path / "links.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        load = np.array([float(r[f"{phase}_bytes"]) / (float(r["gbps"]) * float(r["lanes"])) for r in rows])
    except (OSError, KeyError, ValueError) as error:
        raise TraceError(f"{path}: cannot read the link loads: {error}; generate the run again") from None
    summary = run.json("summary.json")
    if phase == "dispatch" and load.max(initial=0) > 0:
        return load * (summary["normalized_max_load"] / load.max())
    return load / load.mean()


def plot_link_loads(runs: Sequence[Run], output: Path) -> None:
    """Draw the sorted link loads of some runs into ``output`` (PNG, SVG or PDF, by its ending).

    Parameters
    ----------
    runs : sequence of Run
        One curve each, named after its policy.
    output : path

    Raises
    ------
    OutputError
        When the ending is unknown or the file cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise OutputError(
            f"{output}: cannot draw {output.suffix or 'without an ending'}; use .png, .svg or .pdf"
        )
    # the same bytes every time: no date, and ids that do not change
    style: Any = {"svg.hashsalt": "moxtrace", "font.size": 9}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        _draw(figure.add_subplot(), runs)
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix.lower(), {})
        with written_aside(output) as aside:
            figure.savefig(aside, dpi=200, metadata=metadata)


def _draw(axes: Axes, runs: Sequence[Run]) -> None:
    """One curve per run, and the line that the ideal switch's busiest port makes."""
    for i, run in enumerate(runs):
        summary = run.json("summary.json")
        load = np.sort(link_loads(run))[::-1]
        colour, dashes = _STYLES[i % len(_STYLES)]
        label = f"{summary['policy']}: busiest {load[0]:.2f}"
        if "slowdown" in summary:
            label += f", {summary['slowdown'] - 1:+.1%} time"
        axes.plot(
            np.arange(1, len(load) + 1), load, color=colour, linestyle=dashes, label=label, linewidth=1.8
        )
    axes.axhline(1.0, color="0.45", linewidth=1, zorder=0)
    axes.annotate(
        "ideal switch, busiest port", (1, 1.0), xycoords=("axes fraction", "data"), xytext=(0, 3),
        textcoords="offset points", ha="right", fontsize=8, color="0.35",
    )  # fmt: skip
    first = runs[0].json("summary.json")
    axes.set(
        xlabel="links, busiest first",
        ylabel="load in dispatch / busiest switch port",
        title=f"{first['npus']} NPUs, {first['topology']}: link load per policy",
    )
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
    axes.legend(frameon=False, fontsize=8)
