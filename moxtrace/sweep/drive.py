"""The sweep itself: what is missing is done, each result is kept as it ends, and the table is written.

Goes in: a plan, a folder, and where to run.  Comes out: :class:`Outcome`.  Killed at any time, it loses at
most the runs in flight; started again, it does what is missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moxtrace import __version__
from moxtrace.config import PATH_KEYS
from moxtrace.errors import OutputError
from moxtrace.sweep.estimate import cost_of
from moxtrace.sweep.folder import Shard, SweepFolder, open_folder
from moxtrace.sweep.order import sharing_routes, start_order
from moxtrace.sweep.places import Local, Place
from moxtrace.sweep.plan import Plan, PlannedRun
from moxtrace.sweep.rows import row_columns
from moxtrace.sweep.tables import write_tables

__all__ = ["Outcome", "run_sweep"]

log = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0  # whether the place is still there
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Outcome:
    """How a sweep stands when it ends.

    Parameters
    ----------
    folder : path
    total, ok, failed : int
        Runs of the plan, and rows that are there.
    kept : int
        Rows that were there before.
    failures : tuple of dict
        Rows that failed, in the order of the plan.
    tables : tuple of path
        Empty for a shard.
    """

    folder: Path
    total: int
    ok: int
    failed: int
    kept: int
    failures: tuple[Mapping[str, Any], ...] = field(repr=False)
    tables: tuple[Path, ...] = ()

    @property
    def missing(self) -> int:
        """Runs without a row."""
        return self.total - self.ok - self.failed

    def to_json(self) -> dict[str, Any]:
        """What ``sweep --json`` prints."""
        return {
            "folder": str(self.folder),
            "runs": self.total,
            "ok": self.ok,
            "failed": self.failed,
            "missing": self.missing,
            "kept": self.kept,
            "failures": [{"run": row["run"], "reason": row["reason"]} for row in self.failures],
            "tables": [str(path) for path in self.tables],
        }


def run_sweep(
    plan: Plan,
    folder: str | Path,
    place: Place | None = None,
    *,
    retry_failed: bool = False,
    shard: Shard | None = None,
    astra_sim: str | None = None,
    timeout_s: float | None = None,
    anyway: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Do what is missing of a plan, and write the table.

    Parameters
    ----------
    plan : Plan
    folder : path
        Made where it does not exist; rows that are there are kept.
    place : Place, optional
        Where runs are done; default: one at a time, in this process.
    retry_failed : bool
        Do failed runs again too.
    shard : Shard, optional
        Only this part of the plan, and no table: others do the rest at the same time.
    astra_sim : str, optional
        Its binary.
    timeout_s : float, optional
        For a run of ASTRA-sim.
    anyway : bool
        Start ASTRA-sim although it may not fit into memory.
    progress : callable, optional
        Called with (runs done, runs to do, what to say).

    Returns
    -------
    Outcome
        Also when runs failed: their rows say why.

    Raises
    ------
    OutputError
        When the folder is another sweep's or in use, or the disk is full; rows that are there stay.
    ExternalToolError
        When the place where runs are done is gone.
    """
    folder = Path(folder)
    runs = plan.runs if shard is None else plan.runs[shard.number - 1 :: shard.count]
    with open_folder(folder, plan, shard) as opened:
        rows, kept = _rows_there(opened, runs, retry_failed)
        pending = start_order([run for run in runs if run.run not in rows])
        if pending:
            writer = _Writer(opened, plan, rows)
            shared = sharing_routes(plan.runs)
            options = {"astra_sim": astra_sim, "timeout_s": timeout_s, "anyway": anyway}
            jobs = ((run, {**options, "keep_routes": run.run in shared}) for run in pending)
            try:
                _do_all(list(jobs), opened, place or Local(1), writer, progress)
            except OutputError as error:
                raise OutputError(
                    f"{error}; the sweep has stopped, its {len(rows)} finished rows are kept: start it again "
                    "to go on"
                ) from None
        tables = () if shard else tuple(write_tables(folder, plan.columns, [r.run for r in plan.runs], rows))
    failures = tuple(rows[r.run] for r in runs if r.run in rows and rows[r.run]["status"] == "failed")
    return Outcome(folder, len(runs), len(rows) - len(failures), len(failures), kept, failures, tables)


def _rows_there(
    opened: SweepFolder, runs: Sequence[PlannedRun], retry_failed: bool
) -> tuple[dict[str, dict[str, Any]], int]:
    """The rows that need not be done again; what is no row is set aside."""
    rows, corrupt = opened.rows.read_all([run.run for run in runs])
    for run in corrupt:
        aside = opened.rows.set_aside(run)
        log.warning("%s: is no row; kept as %s, the run is done again", opened.rows.path(run), aside.name)
    if retry_failed:
        rows = {run: row for run, row in rows.items() if row["status"] == "ok"}
    return rows, len(rows)


class _Writer:
    """Makes rows of what runs give back, and keeps them."""

    def __init__(self, opened: SweepFolder, plan: Plan, rows: dict[str, dict[str, Any]]) -> None:
        self._store, self._plan, self._rows = opened.rows, plan, rows
        self.failed = 0

    def keep(self, run: PlannedRun, facts: Mapping[str, Any]) -> None:
        """Write a run's row at once."""
        known = {
            **run.swept,
            "run": run.run,
            "npus": run.config.topology.npus,
            "policy": run.config.routing.policy,
            "topology": run.config.topology.kind,
            "repeat": run.repeat,
            "engine": run.engine,
            "moxtrace_version": __version__,
            **{key: value for key, value in facts.items() if key != "links"},
        }
        columns = row_columns(self._plan.columns)
        row = {column: known.pop(column, None) for column in columns}
        row |= {**known, "config": self._config(run)}
        self._store.write({**row, "links": facts.get("links")})
        self._rows[run.run] = row
        self.failed += row["status"] == "failed"
        if row["status"] == "failed":
            log.info("%s: failed: %s", run.run, row["reason"])

    def _config(self, run: PlannedRun) -> dict[str, Any]:
        """The resolved configuration; paths are relative to the sweep file, so that rows can travel."""
        value = run.config.model_dump(mode="json")
        for block, key in PATH_KEYS:
            if value[block][key] is not None:
                value[block][key] = os.path.relpath(value[block][key], self._plan.folder)
        return value


def _do_all(
    jobs: Sequence[tuple[PlannedRun, Mapping[str, Any]]],
    opened: SweepFolder,
    place: Place,
    writer: _Writer,
    progress: Progress | None,
) -> None:
    """Do runs, no more at once than the place takes and than fit into its memory."""
    from moxtrace.sweep.work import Job, run_job  # not needed where nothing is left to do

    waiting = list(reversed(jobs))
    running: dict[Future[Any], tuple[PlannedRun, float]] = {}
    done = 0
    if progress is not None:
        progress(done, len(jobs), "runs")
    with place.executor() as executor:
        while waiting or running:
            while waiting and len(running) < place.at_once:
                run, options = waiting[-1]
                size = cost_of(run.config, run.engine).size_bytes
                if running and size + sum(s for _, s in running.values()) > place.memory_bytes:
                    break
                waiting.pop()
                config = run.config.model_dump(mode="json")
                threads = place.threads(size, len(jobs))
                job = Job(
                    run.run, config, run.engine, run.bound, str(opened.path.resolve()), threads=threads,
                    **options,
                )  # fmt: skip
                running[executor.submit(run_job, job)] = (run, size)
            finished, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            if not finished:
                place.check()
            for future in finished:
                run, _ = running.pop(future)
                writer.keep(run, _facts_of(future, place))
                done += 1
                if progress is not None:
                    progress(done, len(jobs), f"{writer.failed} failed" if writer.failed else "runs")


def _facts_of(future: Future[Any], place: Place) -> Mapping[str, Any]:
    """What a run gave back, or why it did not."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is None:
        facts: Mapping[str, Any] = future.result()
        return facts
    if isinstance(error, OutputError):
        raise error
    return {"status": "failed", "reason": place.why(error)}
