"""Results by the places of figures, and our cells beside the paper's.

Goes in: cells and a store; ``configs/paper/published.yaml``.  Comes out: values over seeds, and
:class:`Comparison`, which knows whether a certified bound leaves room for the paper's number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from moxtrace.errors import ConfigError
from paper.grid import CONFIGS, Case, Cell
from paper.store import Store

__all__ = [
    "TRAFFIC",
    "Comparison",
    "Range",
    "Results",
    "comparisons",
    "number",
    "range_of",
    "read_published",
    "spread",
]

CLOSE = 0.05  # points that count as equal: the paper's last digit
TRAFFIC = {"exact": "recorded", "uniform": "uniform"}
Range = tuple[float, float]
Facts = dict[str, Any]


def read_published(path: Path = CONFIGS / "published.yaml") -> dict[str, Any]:
    """The paper's numbers.

    Raises
    ------
    ConfigError
        When the file cannot be read.
    """
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None


def range_of(value: float | list[float | None]) -> Range:
    """A published value as (least, greatest); "up to" has no least."""
    low, high = value if isinstance(value, list) else (value, value)
    return (-math.inf if low is None else float(low), math.inf if high is None else float(high))


def number(value: Range | None) -> str:
    """A published value for the table."""
    if value is None:
        return ""
    low, high = value
    if low == high:
        return f"{low:g}"
    return f"up to {high:g}" if low == -math.inf else f"{low:g} to {high:g}"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """``median [least, greatest]``; the value alone where there is one; a dash where there is none."""
    if not values:
        return "-"
    middle, low, high = (
        f"{round(f(values), digits) + 0.0:.{digits}f}"  # no minus before a zero
        for f in (statistics.median, min, max)
    )
    return middle if len(values) < 2 else f"{middle} [{low}, {high}]"


@dataclass(frozen=True)
class Results:
    """Cells, and where their numbers are."""

    cells: Sequence[Cell]
    store: Store

    def of(self, figure: str, **labels: Any) -> list[Cell]:
        """Cells of a figure that carry these labels."""
        return [cell for cell in self.cells if cell.figure == figure and cell.has(**labels)]

    def labels(self, figure: str, key: str) -> list[Any]:
        """Values of a label in a figure, in order of first appearance."""
        found = (dict(cell.labels).get(key) for cell in self.of(figure))
        return list(dict.fromkeys(value for value in found if value is not None))

    def values(self, cells: Sequence[Cell], policy: str, key: str) -> list[float]:
        """A fact of each cell under a policy; cells without it are left out."""
        facts = (self.store.facts(cell.case, policy) for cell in cells)
        return [found[key] for found in facts if found is not None and key in found]

    def percent(self, cells: Sequence[Cell], policy: str, key: str = "slowdown") -> list[float]:
        """A ratio as per cent over 1."""
        return [100 * (value - 1) for value in self.values(cells, policy, key)]

    def over_min_hop(self, cells: Sequence[Cell], policy: str) -> list[float]:
        """The busiest link over min-hop's in the same cell, per cent over 1."""
        pairs = ((self.store.facts(c.case, policy), self.store.facts(c.case, "min-hop")) for c in cells)
        key = "busiest_link_bytes"
        return [100 * (mine[key] / base[key] - 1) for mine, base in pairs if mine and base]


@dataclass(frozen=True)
class Comparison:
    """One of the paper's cells for MoX beside ours.

    Parameters
    ----------
    what : str
        The cell, in words.
    paper : (float, float)
        Per cent.
    ours, as_paper : list of float
        Under ``mox`` and under ``mox-paper``, per cent, of each seed.
    cases : tuple of Case
    needs : list of float
        Busiest link, over the switch's busiest port, that the paper's number asks for; of seeds with a bound.
    bound : list of float
        Certified bound on the same.
    allows : list of float
        The number that a routing at the bound would have, per cent.
    """

    what: str
    paper: Range
    ours: list[float]
    as_paper: list[float]
    cases: tuple[Case, ...]
    needs: list[float]
    bound: list[float]
    allows: list[float]

    @property
    def difference(self) -> float:
        """Median of ours minus the nearest that the paper gives, points; 0 within its range."""
        middle = statistics.median(self.ours)
        low, high = self.paper
        return middle - min(max(middle, low), high)

    @property
    def policy_part(self) -> float:
        """What ``mox`` changes against ``mox-paper``, points: the median over seeds of the difference."""
        return statistics.median(a - b for a, b in zip(self.ours, self.as_paper, strict=True))

    @property
    def is_worse(self) -> bool:
        """Whether the paper's number is better by more than its last digit."""
        return self.difference > CLOSE

    @property
    def verdict(self) -> str:
        """In words, whether the paper's number can be had here."""
        if not self.is_worse:
            return "as good" if self.difference > -CLOSE else "better"
        if not self.bound:
            return "worse"
        low, need = statistics.median(self.bound), statistics.median(self.needs)
        return "worse; out of reach of any routing here" if low > need else "worse; the bound leaves room"


def _compared(
    results: Results,
    what: str,
    paper: Range,
    cells: list[Cell],
    value: Callable[[Facts, Facts], float],
    proxy: Callable[[float, Facts, Facts], float],
    at: Callable[[float, Facts, Facts], float],
) -> Comparison | None:
    """Gather a cell; the callables take the facts of the policy and of min-hop."""
    rows = []
    for cell in cells:
        mine, theirs, base = (results.store.facts(cell.case, p) for p in ("mox", "mox-paper", "min-hop"))
        if mine and theirs and base:
            rows.append((cell.case, mine, theirs, base))
    if not rows:
        return None
    needs, bound, allows = [], [], []
    for case, mine, _, base in rows:
        found = results.store.facts(case, "bound")
        if found is not None:
            needs.append(proxy(paper[1], mine, base))
            bound.append(found["normalized_bound"])
            allows.append(at(found["normalized_bound"], mine, base))
    return Comparison(
        what,
        paper,
        [value(mine, base) for _, mine, _, base in rows],
        [value(theirs, base) for _, _, theirs, base in rows],
        tuple(case for case, *_ in rows),
        needs,
        bound,
        allows,
    )


def _over_switch(facts: Facts, base: Facts) -> float:
    return float(100 * (facts["slowdown"] - 1))


def _needed(percent: float, facts: Facts, base: Facts) -> float:
    """Slowdown = share of communication x (busiest link - 1), which figure 3 checks."""
    return float(1 + percent / 100 / facts["communication_share"])


def _allowed(bound: float, facts: Facts, base: Facts) -> float:
    return float(100 * facts["communication_share"] * (bound - 1))


def _of_min_hop(facts: Facts, base: Facts) -> float:
    return float(100 * (facts["busiest_link_bytes"] / base["busiest_link_bytes"] - 1))


def _needed_of_min_hop(percent: float, facts: Facts, base: Facts) -> float:
    return float((1 + percent / 100) * base["normalized_max_load"])


def _allowed_of_min_hop(bound: float, facts: Facts, base: Facts) -> float:
    return float(100 * (bound / base["normalized_max_load"] - 1))


def comparisons(results: Results, published: dict[str, Any]) -> list[Comparison]:
    """Every cell that the paper gives for MoX and that has results."""
    found: list[Comparison | None] = []
    block = (_over_switch, _needed, _allowed)
    for stage, traffic in product(("training", "inference"), results.labels("2", "traffic")):
        for top_k, row in published[stage]["mox"].items():
            for npus, value in row.items():
                cells = results.of("2", stage=stage, traffic=traffic, npus=npus, top_k=top_k)
                what = f"{stage}, {TRAFFIC[traffic]}, {npus} NPUs, top-{top_k}"
                found.append(_compared(results, what, range_of(value), cells, *block))
    for network, row in published["skew"].items():
        cells = results.of("4", network=network)
        found.append(_compared(results, f"skew, {network}", range_of(row["mox"]), cells, *block))
    relative = (_of_min_hop, _needed_of_min_hop, _allowed_of_min_hop)
    for stage, row in published["boardfly"].items():
        cells = results.of("5", stage=stage)
        what = f"Boardfly, {stage}, over min-hop"
        found.append(_compared(results, what, range_of(row["mox"]), cells, *relative))
    return [one for one in found if one is not None]
