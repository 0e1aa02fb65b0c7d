"""Loads in steps of lightness, and the scale that explains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moxtrace.plots.style import INK, RAMP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Steps", "steps_for"]


@dataclass(frozen=True)
class Steps:
    """Bounds of the steps, and their colours.

    Parameters
    ----------
    bounds : array of float64, shape (steps + 1,)
    colours : tuple of str
    """

    bounds: NDArray[np.float64]
    colours: tuple[str, ...]

    def of(self, loads: NDArray[np.float64]) -> list[str]:
        """The colour of each load."""
        at = np.searchsorted(self.bounds, loads, side="right") - 1
        return [self.colours[i] for i in np.clip(at, 0, len(self.colours) - 1)]

    def scale(self, figure: Figure, panels: list[Axes]) -> None:
        """Explain the steps in a bar below the panels."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import BoundaryNorm, ListedColormap

        norm = BoundaryNorm(self.bounds, len(self.colours))
        bar = figure.colorbar(
            ScalarMappable(norm, ListedColormap(self.colours)), ax=panels, location="bottom", shrink=0.85,
            aspect=28, pad=0.03, spacing="proportional", drawedges=False,
        )  # fmt: skip
        bar.set_ticks(self.bounds[:: 1 if len(self.bounds) <= 7 else 2].tolist())
        bar.ax.xaxis.set_major_formatter("{x:g}")
        bar.ax.tick_params(labelsize=6.5, length=2)
        bar.set_label("load in dispatch / ideal switch's busiest port", fontsize=7, color=INK)
        bar.outline.set_visible(False)


def steps_for(highest: float) -> Steps:
    """Round steps from 0 to the highest load, at most ten.

    Parameters
    ----------
    highest : float
        0 counts as 1.
    """
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(len(RAMP), steps=[1, 2, 2.5, 5, 10]).tick_values(0, highest or 1.0)
    bounds = np.asarray(ticks, np.float64)
    bounds = bounds[bounds >= 0]
    if bounds[-1] < highest:
        bounds = np.append(bounds, 2 * bounds[-1] - bounds[-2])
    count = len(bounds) - 1
    at = np.linspace(0, len(RAMP) - 1, count).round().astype(int)
    return Steps(bounds, tuple(RAMP[i] for i in at))
