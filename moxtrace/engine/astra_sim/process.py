"""One process, watched: its output into files, its lines counted, its time limited, its end explained."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from moxtrace.machine import oom_kills, peak_memory

__all__ = ["STDERR", "STDOUT", "Ended", "watch"]

STDOUT, STDERR = "stdout.txt", "stderr.txt"
MARK = b"] finished, "
SHORTEST, LONGEST = 0.01, 0.25  # seconds between two looks at the process
# Linux ends a process with its parent when it asks for that; so not even kill -9 leaves one behind
_TIE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Ended(NamedTuple):
    """How a process ended.

    ``code`` is negative for a signal; ``peak_bytes`` is None and ``out_of_memory`` is None where the system
    does not say.
    """

    code: int
    seconds: float
    timed_out: bool
    peak_bytes: int | None
    out_of_memory: bool | None


class _Counter:
    """How many lines of a growing file hold :data:`MARK`."""

    def __init__(self, path: Path) -> None:
        self.path, self.at, self.count = path, 0, 0

    def look(self) -> int:
        """Count what was added since the last look."""
        with self.path.open("rb") as file:
            file.seek(self.at)
            new = file.read()
        whole = new.rfind(b"\n") + 1
        self.at += whole
        self.count += new[:whole].count(MARK)
        return self.count


def watch(
    command: Sequence[str],
    folder: Path,
    logs: Path,
    timeout_s: float | None = None,
    tell: Callable[[int, float], None] | None = None,
) -> Ended:
    """Run a command to its end.

    Whatever ends this call, Ctrl-C too, ends the command and all that it started; on Linux the command also
    ends with this process.

    Parameters
    ----------
    command : sequence of str
    folder : Path
        Where it runs.
    logs : Path
        Folder for what it writes to its standard output and error.
    timeout_s : float, optional
        After so long it is killed.
    tell : callable, optional
        Called now and then with the ``finished`` lines so far and the seconds gone by.

    Raises
    ------
    OSError
        When it cannot be started.
    """
    kills, start = oom_kills(), time.monotonic()
    with (logs / STDOUT).open("wb") as out, (logs / STDERR).open("wb") as err:
        process = subprocess.Popen(
            _tied(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        timed_out, peak = _wait(process, _Counter(logs / STDOUT), start, timeout_s, tell)
    finally:
        _kill(process)
    after = oom_kills()
    known = None if kills is None or after is None else after > kills
    return Ended(process.returncode, time.monotonic() - start, timed_out, peak, known)


def _tied(command: Sequence[str]) -> list[str]:
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *command]


def _wait(
    process: subprocess.Popen[bytes],
    counter: _Counter,
    start: float,
    timeout_s: float | None,
    tell: Callable[[int, float], None] | None,
) -> tuple[bool, int | None]:
    """Wait for the end or the limit; returns whether it was the limit, and the most memory that was seen."""
    pause, peak = SHORTEST, None
    while True:
        gone = time.monotonic() - start
        if timeout_s is not None:
            if gone >= timeout_s:
                return True, peak
            pause = min(pause, timeout_s - gone)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(pause)
            return False, peak
        peak = peak_memory(process.pid) or peak
        if tell:
            tell(counter.look(), time.monotonic() - start)
        pause = min(2 * pause, LONGEST)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it started, if it still runs."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
