"""Columns of the report's table: which there are, what they are called, how their numbers read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moxtrace.plots.results import Results, shown
from moxtrace.plots.style import label_of
from moxtrace.units import format_bytes, format_ns

__all__ = ["columns_of", "constants_of", "heading_of", "reading_of"]

_HEADINGS = {
    "run": "run", "npus": "NPUs", "policy": "policy", "topology": "topology", "repeat": "repeat",
    "status": "status", "reason": "reason", "completion_ns": "completion", "slowdown": "over the switch",
    "switch_completion_ns": "ideal switch", "dispatch_ns": "dispatch", "compute_ns": "compute",
    "combine_ns": "combine", "exposed_communication_ns": "exposed communication",
    "max_link_load": "busiest link / port", "mean_link_load": "mean link / port",
    "busiest_link_bytes": "busiest link", "mean_link_bytes": "mean link", "bandwidth_tax": "bandwidth tax",
    "bound": "bound", "bound_kind": "bound by", "engine": "engine", "wall_s": "took",
    "moxtrace_version": "moxtrace", "astra_sim_version": "ASTRA-sim", "peak_memory_bytes": "peak memory",
}  # fmt: skip
# what a configuration key says again
_TWINS = {"policy": "routing.policy", "npus": "topology.npus", "topology": "topology.kind"}
_ALWAYS = ("run", "status", "slowdown", "completion_ns", "policy")
_LAST = ("moxtrace_version", "astra_sim_version", "wall_s", "peak_memory_bytes")
_FIRST_RESULTS = ("slowdown", "completion_ns")


def heading_of(column: str) -> str:
    """What a column is called."""
    return _HEADINGS.get(column) or label_of(column)


def reading_of(column: str) -> Callable[[Any], str]:
    """How a value of a column reads; empty cells are empty."""
    number: Callable[[Any], str] = shown
    if column.endswith("_ns") and "." not in column:
        number = format_ns
    elif column.endswith("_bytes") and "." not in column:
        number = format_bytes
    elif column in ("slowdown", "max_link_load", "mean_link_load", "bound"):
        number = "{:.3f}".format
    elif column == "bandwidth_tax":
        number = "{:.1%}".format
    elif column == "wall_s":
        number = "{:.3g} s".format

    def read(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, (int, float)):
            return number(value)
        return shown(value, 80 if column == "reason" else 40)

    return read


def _is_twin(results: Results, column: str) -> bool:
    twin = _TWINS.get(column)
    return twin in results.columns and all(
        shown(row.values.get(column)) == shown(row.values.get(twin or "")) for row in results.rows
    )


def _different(results: Results, column: str) -> list[Any]:
    return list(dict.fromkeys(row.values.get(column) for row in results.rows))


def columns_of(results: Results) -> list[str]:
    """Columns of the table: those that differ between runs, and the main results; the long ones last."""
    chosen = []
    for column in results.columns:
        found = _different(results, column)
        if found == [None] or _is_twin(results, column):
            continue
        measured = any(isinstance(value, float) for value in found)
        if len(found) > 1 or column in _ALWAYS or measured or column.endswith("_ns"):
            chosen.append(column)
    # what was asked, what became of it, the main result, all others
    asked = chosen[: chosen.index("status")] if "status" in chosen else []
    head = [*asked, *(c for c in ("status", "reason", *_FIRST_RESULTS) if c in chosen)]
    rest = [column for column in chosen if column not in head and column not in _LAST]
    return head + rest + [column for column in _LAST if column in chosen]


def constants_of(results: Results) -> dict[str, str]:
    """What all runs have in common, by heading."""
    left = set(results.columns) - set(columns_of(results))
    found = {}
    for column in results.columns:
        values = _different(results, column)
        if column in left and len(values) == 1 and values[0] is not None and not _is_twin(results, column):
            found[heading_of(column)] = reading_of(column)(values[0])
    return found
