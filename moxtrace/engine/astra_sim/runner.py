"""Run ASTRA-sim once: a working folder and a log folder of its own, and a record of how it went.

The working folder holds links to the run's inputs, so whatever ASTRA-sim leaves where it runs is not in the
run directory; its output stays in ``logs/astra-sim.N`` there.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moxtrace.chakra.astra_inputs import TRACES
from moxtrace.engine.astra_sim.before import check_inputs
from moxtrace.engine.astra_sim.binary import why_not_started
from moxtrace.engine.astra_sim.estimate import Estimate, estimate_of
from moxtrace.engine.astra_sim.outcome import judge
from moxtrace.engine.astra_sim.process import STDERR, STDOUT, Ended, watch
from moxtrace.errors import ExternalToolError, MoxtraceError, OutputError
from moxtrace.machine import raise_descriptor_limit
from moxtrace.outputs import reason
from moxtrace.rundir import Run, write_json

__all__ = ["ARGUMENTS", "Outcome", "execute", "link_inputs", "run_astra_sim"]

Progress = Callable[[str, int, int], None]

ARGUMENTS = (
    f"--workload-configuration={TRACES}/workload",
    "--system-configuration=system.json",
    "--remote-memory-configuration=memory.json",
    "--network-configuration=network.yml",
)
INPUTS = (TRACES, "system.json", "memory.json", "network.yml", "collectives.yml")
RECORD = "run.json"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A run that succeeded.

    Parameters
    ----------
    finished, exposed : arrays of int64, shape (npus,)
        Cycles.
    logs : Path
        Folder with what ASTRA-sim wrote.
    seconds : float
    peak_bytes : int or None
        Most memory that it was seen to hold.
    """

    finished: NDArray[np.int64]
    exposed: NDArray[np.int64]
    logs: Path
    seconds: float
    peak_bytes: int | None


def link_inputs(source: Path, work: Path) -> None:
    """Let ``work`` hold links to ASTRA-sim's inputs in ``source``."""
    for name in INPUTS:
        if (source / name).exists():
            (work / name).symlink_to((source / name).resolve())


def _new_logs(run: Run) -> Path:
    """A folder for this run's logs that no other run has."""
    folder = run.path / "logs"
    try:
        folder.mkdir(exist_ok=True)
        for number in count(1):
            logs = folder / f"astra-sim.{number}"
            if not logs.exists():
                with contextlib.suppress(FileExistsError):  # another run took the name
                    logs.mkdir()
                    break
    except OSError as error:
        raise OutputError(f"{folder}: logs cannot be written there: {reason(error)}") from None
    return logs


def _texts(logs: Path) -> tuple[str, str]:
    """Standard output, with ASTRA-sim's own logs behind it, and standard error."""
    own = sorted(p for p in (logs / "log").rglob("*") if p.is_file())
    read = [p.read_text(errors="replace") for p in (logs / STDOUT, *own)]
    return "\n".join(read), (logs / STDERR).read_text(errors="replace")


def _teller(progress: Progress | None, npus: int, estimate: Estimate) -> Callable[[int, float], None] | None:
    if progress is None:
        return None

    likely = max(sum(estimate.seconds) / 2, 1e-3)

    def tell(finished: int, seconds: float) -> None:
        about = estimate.duration()
        # NPUs finish together, at the end: until then only the estimate moves
        share = max(finished / npus, min(seconds / likely, 0.95))
        words = f"ASTRA-sim: {finished}/{npus} NPUs, {seconds:.0f} s of about {about}"
        progress(words, round(1000 * share), 1000)

    return tell


def execute(
    run: Run, binary: Path, timeout_s: float | None = None, progress: Progress | None = None
) -> Outcome:
    """Run ASTRA-sim on a run directory that has been checked.

    Parameters
    ----------
    run : Run
    binary : Path
    timeout_s : float, optional
    progress : callable, optional
        Called with (words, done, total): NPUs finished and seconds gone by are in the words.

    Raises
    ------
    ExternalToolError
        When the run did not succeed, or changed the run directory.
    OutputError
        When its logs cannot be written.

    Notes
    -----
    However it ends, ``run.json`` in the log folder says how.
    """
    estimate, npus = estimate_of(run), run.manifest["npus"]
    raise_descriptor_limit(estimate.descriptors, "ASTRA-sim")
    logs = _new_logs(run)
    command = [str(binary.resolve()), *ARGUMENTS, f"--logging-folder={logs.resolve() / 'log'}"]
    record: dict[str, Any] = {"command": command, "status": "interrupted", "nodes": estimate.nodes}
    try:
        ended = _watched(command, run, binary, logs, timeout_s, _teller(progress, npus, estimate))
        record |= {"exit_status": ended.code, "seconds": round(ended.seconds, 3)}
        record |= {"peak_memory_bytes": ended.peak_bytes}
        finished, exposed = judge(ended, npus, binary, timeout_s, *_texts(logs))
        _check_intact(run)
        record["status"] = "ok"
    except MoxtraceError as error:
        record |= {"status": "failed", "reason": str(error)}
        raise type(error)(f"{error}; its output is in {logs}") from None
    finally:
        write_json(logs / RECORD, record)
    return Outcome(finished, exposed, logs, ended.seconds, ended.peak_bytes)


def _watched(
    command: list[str],
    run: Run,
    binary: Path,
    logs: Path,
    timeout_s: float | None,
    tell: Callable[[int, float], None] | None,
) -> Ended:
    with tempfile.TemporaryDirectory(prefix="moxtrace-astra-") as work:
        link_inputs(run.path, Path(work))
        try:
            return watch(command, Path(work), logs, timeout_s, tell)
        except OSError as error:
            raise ExternalToolError(why_not_started(binary, error=error) or "") from None


def _check_intact(run: Run) -> None:
    """The traces were open for writing: they must be as they were."""
    problems = run.problems()
    if problems:
        raise ExternalToolError(f"ASTRA-sim: the run directory changed while it ran: {problems[0]}")


def run_astra_sim(
    run: Run, binary: Path, timeout_s: float | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Run ASTRA-sim on a run directory whose files are as the manifest says; nothing else is checked before.

    Parameters
    ----------
    run : Run
    binary : Path
    timeout_s : float, optional

    Returns
    -------
    finished, exposed : arrays of int64, shape (npus,)
        Cycles.

    Raises
    ------
    ExternalToolError
        When the run directory is not whole, ASTRA-sim cannot express it, or the run did not succeed.
    TraceError
        When there are more or fewer traces than NPUs, or they cannot be opened for writing.
    """
    problems = run.problems()
    if problems:
        raise ExternalToolError(f"{run.path}: {problems[0]}: not run")
    check_inputs(run)
    outcome = execute(run, binary, timeout_s)
    return outcome.finished, outcome.exposed
