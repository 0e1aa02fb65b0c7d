"""Rows: one result each, in a file of its own.

Goes in: a finished or failed run.  Comes out: ``rows/RUN.json``, written aside and renamed, so that a row is
whole or absent whenever the sweep is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moxtrace.outputs import written_aside

__all__ = ["COLUMNS", "MEASURED", "TIMINGS", "RowStore", "row_columns"]

FORMAT = 1
# what a run measures; empty where it failed or its engine does not say
MEASURED = (
    "completion_ns", "switch_completion_ns", "slowdown", "dispatch_ns", "compute_ns", "combine_ns",
    "exposed_communication_ns", "max_link_load", "mean_link_load", "busiest_link_bytes", "mean_link_bytes",
    "bandwidth_tax", "bound",
)  # fmt: skip
# what may differ when the same sweep runs again; always the last columns
TIMINGS = ("wall_s", "peak_memory_bytes")
# every column but the swept ones, which stand after the first
COLUMNS = (
    "run", "npus", "policy", "topology", "repeat", "status", "reason", *MEASURED, "bound_kind", "engine",
    "moxtrace_version", "astra_sim_version", *TIMINGS,
)  # fmt: skip


def row_columns(swept: Iterable[str]) -> list[str]:
    """Columns of the table: the run, what the sweep varies, and what came out."""
    return [COLUMNS[0], *swept, *COLUMNS[1:]]


@dataclass(frozen=True)
class RowStore:
    """The folder of rows.

    Parameters
    ----------
    folder : path
    """

    folder: Path

    def path(self, run: str) -> Path:
        """File of a run's row."""
        return self.folder / f"{run}.json"

    def write(self, row: Mapping[str, Any]) -> None:
        """Write a row.

        Raises
        ------
        OutputError
            When the system refuses; an earlier row of the run is then as it was.
        """
        text = json.dumps({"format": FORMAT, **row}, allow_nan=False, separators=(",", ":"))
        with written_aside(self.path(row["run"])) as aside:
            aside.write_text(text + "\n", encoding="utf-8")

    def read(self, run: str) -> dict[str, Any] | None:
        """A run's row; None if there is none, or if what is there is no row of it."""
        try:
            row = json.loads(self.path(run).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        return row if _is_row(row, run) else None

    def read_all(self, runs: Sequence[str]) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """The rows that are there, without their links, and the runs whose file holds something else."""
        rows, corrupt = {}, []
        there = {path.stem for path in self.folder.glob("[!.]*.json")} if self.folder.is_dir() else set()
        for run in runs:
            if run not in there:
                continue
            row = self.read(run)
            if row is None:
                corrupt.append(run)
            else:
                row.pop("links", None)
                rows[run] = row
        return rows, corrupt

    def set_aside(self, run: str) -> Path:
        """Rename a file that holds no row, so that the run is done again and nothing is lost."""
        target = self.path(run).with_suffix(".json.corrupt")
        self.path(run).replace(target)
        return target


def _is_row(row: Any, run: str) -> bool:
    """Whether a file's content is a row of a run, with everything that the table needs."""
    return (
        isinstance(row, dict)
        and row.get("format") == FORMAT
        and row.get("run") == run
        and row.get("status") in ("ok", "failed")
        and isinstance(row.get("config"), dict)
        and all(column in row for column in COLUMNS)
        and (row["status"] == "failed" or isinstance(row["completion_ns"], int | float))
    )
