"""Every kind of figure by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moxtrace.errors import ConfigError
from moxtrace.plots.heat import heat_drawing
from moxtrace.plots.load_map import map_drawing, map_drawings
from moxtrace.plots.loads import load_drawing
from moxtrace.plots.proxy import proxy_drawing
from moxtrace.plots.results import Results
from moxtrace.plots.style import Drawing
from moxtrace.plots.times import time_drawings

__all__ = ["KINDS", "drawings"]

KINDS = {
    "time": "completion time over each swept key, normalised to the ideal switch",
    "load": "link loads per policy, busiest first",
    "heatmap": "link loads by source and destination",
    "topology": "the network with its links coloured by load",
    "proxy": "busiest link against simulated communication time",
}


def drawings(results: Results, kind: str, over: Sequence[str] = (), *, apart: bool = False) -> list[Drawing]:
    """Drawings of one kind.

    Parameters
    ----------
    results : Results
    kind : str
        One of ``KINDS``.
    over : sequence of str
        Keys for ``time``; default: all that were swept.
    apart : bool
        Whether each policy's network is a drawing of its own.

    Raises
    ------
    ConfigError
        When the results hold nothing to draw.
    """
    one: dict[str, Callable[[Results], Drawing]] = {
        "load": load_drawing, "heatmap": heat_drawing, "topology": map_drawing, "proxy": proxy_drawing,
    }  # fmt: skip
    if kind == "time":
        return time_drawings(results, over)
    if kind == "topology" and apart:
        return map_drawings(results)
    if kind not in one:
        raise ConfigError(f"figure {kind!r}: no such kind; expected one of {', '.join(KINDS)}")
    return [one[kind](results)]
