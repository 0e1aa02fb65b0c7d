"""What an ended run means: every NPU's cycles, or one line that says why there are none."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moxtrace.engine.astra_sim.binary import why_not_started
from moxtrace.engine.astra_sim.process import Ended
from moxtrace.errors import ExternalToolError
from moxtrace.units import format_bytes

__all__ = ["judge", "parse_finished"]

_FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles, exposed communication (-?\d+) cycles")
# what ASTRA-sim 518bd51 writes before it stops, and what it means
_MEANING = (
    (r"bad_alloc", "out of memory (std::bad_alloc); it needs about 1 kB per trace node"),
    (r"Too many open files", "too many open files: raise 'ulimit -n'"),
    (
        r"Cannot access et file for collective algorithm:\s*'(.+?)'",
        "cannot use {0}: missing, empty, without metadata, damaged, all of it one cycle, or one file too "
        "many to be open at once ('ulimit -n')",
    ),
    (r"workload file: (\S+) does not exist", "fewer .et files than NPUs: {0} does not exist"),
    (r"bad file: (\S+)", "cannot read {0}"),
    (
        r"not dependancy free",
        "a trace whose nodes are not free when they should be: a cut or damaged .et file",
    ),
    (
        r"Assertion [`'](.+?)' failed",
        "its assertion {0} failed: a size of 0, a message to its own or no rank",
    ),
)


def parse_finished(text: str, npus: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Finished and exposed cycles of each NPU from ASTRA-sim's log.

    Parameters
    ----------
    text : str
    npus : int

    Raises
    ------
    ExternalToolError
        When the lines are not those of ``npus`` distinct NPUs.
    """
    finished = np.full(npus, -1, np.int64)
    exposed = np.full(npus, -1, np.int64)
    for rank, cycles, comm in _FINISHED.findall(text):
        if int(rank) >= npus:
            raise ExternalToolError(
                f"ASTRA-sim: reports sys[{rank}], but the run has {npus} NPUs: more .et files than NPUs"
            )
        if int(cycles) >= 2**62:
            raise ExternalToolError(f"ASTRA-sim: sys[{rank}] took {cycles} cycles: a negative size")
        finished[int(rank)], exposed[int(rank)] = int(cycles), int(comm)
    missing = np.flatnonzero(finished < 0)
    if len(missing):
        some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise ExternalToolError(
            f"ASTRA-sim: exit status 0, but {len(missing)} of {npus} NPUs never finished (sys {some}): "
            "a deadlock, a RECV without its SEND, unequal sizes or tags, or ids used twice; "
            "'moxtrace verify' names it"
        )
    return finished, exposed


def _killed(ended: Ended) -> str:
    """Why a process got SIGKILL."""
    held = f"; it held {format_bytes(ended.peak_bytes)}" if ended.peak_bytes else ""
    needs = f"{held}, and needs about 1 kB per trace node: use fewer tokens per NPU or --engine builtin"
    if ended.out_of_memory:
        return f"was killed by the system: out of memory{needs}"
    if ended.out_of_memory is None:
        return f"was killed (SIGKILL): most likely out of memory{needs}"
    return (
        "was killed (SIGKILL), and the kernel counts no kill for want of memory: somebody or a batch system "
        f"did it{held}"
    )


def _last_line(*texts: str) -> str:
    """The last thing that was said."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def _failed(ended: Ended, binary: Path, stdout: str, stderr: str) -> str:
    """Why a run with a bad exit status failed."""
    start = why_not_started(binary, code=ended.code, stderr=stderr)
    if start:
        return start
    if ended.code == -signal.SIGKILL:
        return f"ASTRA-sim: {_killed(ended)}"
    name = f"ended with {signal.Signals(-ended.code).name}" if ended.code < 0 else f"exit status {ended.code}"
    for pattern, meaning in _MEANING:
        match = re.search(pattern, f"{stderr}\n{stdout}")
        if match:
            return f"ASTRA-sim: {name}: {meaning.format(*match.groups())}"
    return f"ASTRA-sim: {name}{_last_line(stdout, stderr)}"


def judge(
    ended: Ended, npus: int, binary: Path, timeout_s: float | None, stdout: str, stderr: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Finished and exposed cycles of each NPU.

    Parameters
    ----------
    ended : Ended
    npus : int
    binary : Path
    timeout_s : float or None
    stdout, stderr : str
        What it wrote, its logs with the first.

    Raises
    ------
    ExternalToolError
        With the reason, when the run did not succeed.
    """
    if ended.timed_out:
        count = len(set(re.findall(r"sys\[(\d+)\] finished", stdout)))
        raise ExternalToolError(
            f"ASTRA-sim: not done after {timeout_s:g} s, {count} of {npus} NPUs finished; raise --timeout"
        )
    if ended.code != 0:
        raise ExternalToolError(_failed(ended, binary, stdout, stderr))
    return parse_finished(stdout, npus)
