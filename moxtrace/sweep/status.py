"""How a sweep stands, told from its folder alone.

Goes in: a folder, perhaps while somebody works in it.  Comes out: counts, failures, what is left; and, when
asked for, the table of what is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moxtrace.sweep.drive import Outcome
from moxtrace.sweep.folder import at_work, read_sweep
from moxtrace.sweep.rows import RowStore
from moxtrace.sweep.tables import write_tables

__all__ = ["Status", "collect", "status_of"]


@dataclass(frozen=True)
class Status:
    """A sweep's folder at one moment.

    Parameters
    ----------
    name : str
        The sweep's file.
    outcome : Outcome
        Counts and failures.
    corrupt : tuple of str
        Runs whose file holds something else; the next start does them again.
    earlier : int
        Rows of runs that the sweep no longer has.
    at_work : str or None
        Who works on it now.
    seconds : float
        What the rows took, all together.
    rows : dict
        Rows by run, without links.
    """

    name: str
    outcome: Outcome
    corrupt: tuple[str, ...]
    earlier: int
    at_work: str | None
    seconds: float
    rows: Mapping[str, Mapping[str, Any]] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """What ``sweep status --json`` prints."""
        facts = self.outcome.to_json()
        del facts["kept"], facts["tables"]
        return {
            "name": self.name, **facts, "corrupt": list(self.corrupt), "earlier_rows": self.earlier,
            "at_work": self.at_work, "seconds": self.seconds,
        }  # fmt: skip


def status_of(folder: Path) -> Status:
    """Look at a sweep's folder; nothing is changed.

    Raises
    ------
    ConfigError
        When it is no sweep's.
    """
    sweep = read_sweep(folder)
    store, runs = RowStore(folder / "rows"), sweep["runs"]
    rows, corrupt = store.read_all(runs)
    failures = tuple(rows[r] for r in runs if r in rows and rows[r]["status"] == "failed")
    there = {path.stem for path in store.folder.glob("[!.]*.json")}
    outcome = Outcome(folder, len(runs), len(rows) - len(failures), len(failures), len(rows), failures)
    seconds = sum(float(row["wall_s"] or 0) for row in rows.values())
    return Status(
        sweep["name"],
        outcome,
        tuple(corrupt),
        len(there - set(runs)),
        at_work(folder),
        round(seconds, 3),
        rows,
    )


def collect(folder: Path) -> Outcome:
    """Write the table of the rows that are there, also while others are being made.

    Raises
    ------
    ConfigError
        When the folder is no sweep's.
    OutputError
        When the table cannot be written.
    """
    sweep, status = read_sweep(folder), status_of(folder)
    tables = tuple(write_tables(folder, sweep["columns"], sweep["runs"], status.rows))
    found = status.outcome
    return Outcome(folder, found.total, found.ok, found.failed, found.kept, found.failures, tables)
