"""The ASTRA-sim runner: find the binary, run it on a run directory, and believe it only when it is right.

ASTRA-sim exits with status 0 on a deadlock, a missing receive and a cut file, so success here is three
things: exit status 0, a line ``sys[i] finished`` for each NPU, and a run directory that is as its manifest
says.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moxtrace.errors import ExternalToolError
from moxtrace.rundir import Run

__all__ = ["BINARY", "find_binary", "run_astra_sim"]

BINARY = "AstraSim_Analytical_Congestion_Aware"
_FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles, exposed communication (-?\d+) cycles")


def find_binary(path: str | None = None) -> Path:
    """The ASTRA-sim binary: ``path``, else ``$ASTRA_SIM``, else on the PATH.

    Raises
    ------
    ExternalToolError
        When there is none, or what was named is not a program.
    """
    for origin, named in (("--astra-sim", path), ("$ASTRA_SIM", os.environ.get("ASTRA_SIM"))):
        if named:
            found = shutil.which(named) or shutil.which(str(Path(named).expanduser()))
            if found is None:
                raise ExternalToolError(f"{origin}: no program at {named}; expected {BINARY}")
            return Path(found).resolve()
    found = shutil.which(BINARY)
    if found is None:
        raise ExternalToolError(
            f"ASTRA-sim: no {BINARY} on the PATH; name it with --astra-sim PATH or $ASTRA_SIM, "
            "or use --engine builtin"
        )
    return Path(found).resolve()


def _raise_descriptor_limit(needed: int) -> None:
    """ASTRA-sim keeps a descriptor open for each rank and file set."""
    import resource  # only Unix has it, and only this engine needs it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise ExternalToolError(
                f"ASTRA-sim: needs {wanted} open files, the hard limit is {hard}; raise 'ulimit -H -n'"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def _status(code: int, stderr: str) -> str:
    """Why a run with a bad exit status failed."""
    if code == -signal.SIGKILL:
        return (
            "ASTRA-sim: was killed (SIGKILL): most likely out of memory; it needs about 1 kB per trace node"
        )
    if code < 0:
        return f"ASTRA-sim: ended with {signal.Signals(-code).name}{_last_line(stderr)}"
    return f"ASTRA-sim: exit status {code}{_last_line(stderr)}"


def parse_finished(text: str, npus: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Finished and exposed cycles of each NPU from ASTRA-sim's log.

    Raises
    ------
    ExternalToolError
        When the lines are not those of ``npus`` distinct NPUs.
    """
    finished = np.full(npus, -1, np.int64)
    exposed = np.full(npus, -1, np.int64)
    for rank, cycles, comm in _FINISHED.findall(text):
        if int(rank) >= npus:
            raise ExternalToolError(f"ASTRA-sim: reports sys[{rank}], but the run has {npus} NPUs")
        finished[int(rank)], exposed[int(rank)] = int(cycles), int(comm)
    missing = np.flatnonzero(finished < 0)
    if len(missing):
        some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise ExternalToolError(
            f"ASTRA-sim: exit status 0, but {len(missing)} of {npus} NPUs never finished (sys {some}): "
            "a deadlock, a missing receive or a mismatch; 'moxtrace verify' names it"
        )
    return finished, exposed


def run_astra_sim(
    run: Run, binary: Path, timeout_s: float | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Run ASTRA-sim on a run directory.

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
    """
    npus = run.manifest["npus"]
    problems = run.problems()
    if problems:
        raise ExternalToolError(f"{run.path}: {problems[0]}: not run")
    if not (run.path / "network.yml").is_file():
        raise ExternalToolError(f"{run.path}: {run.manifest['astra_sim']}; use --engine builtin")
    _raise_descriptor_limit(npus * len(run.manifest["traces"]))
    with tempfile.TemporaryDirectory(prefix="moxtrace-astra-") as logs:
        command = [
            str(binary),
            "--workload-configuration=traces/workload",
            "--system-configuration=system.json",
            "--remote-memory-configuration=memory.json",
            "--network-configuration=network.yml",
            f"--logging-folder={logs}/log",
        ]
        try:
            done = subprocess.run(
                command, cwd=run.path, capture_output=True, text=True, errors="replace", timeout=timeout_s,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ExternalToolError(f"ASTRA-sim: not done after {timeout_s:g} s; raise --timeout") from None
        except OSError as error:
            raise ExternalToolError(f"ASTRA-sim: cannot run {binary}: {error.strerror}") from None
        text = done.stdout + "".join(
            p.read_text(errors="replace") for p in sorted(Path(logs).rglob("*")) if p.is_file()
        )
    if done.returncode != 0:
        raise ExternalToolError(_status(done.returncode, done.stderr))
    return parse_finished(text, npus)
