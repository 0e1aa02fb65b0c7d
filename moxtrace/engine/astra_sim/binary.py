"""Find ASTRA-sim's binary, and say what keeps it from starting."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import signal
import subprocess
from pathlib import Path

from moxtrace.errors import ExternalToolError

__all__ = ["BINARY", "check_starts", "find_binary", "why_not_started"]

BINARY = "AstraSim_Analytical_Congestion_Aware"
_SECONDS = 5.0  # without arguments ASTRA-sim complains and ends at once
_LIBRARY = re.compile(r"error while loading shared libraries: ([^:\s]+):?\s*(.*)")
_LOADER = re.compile(r"version [`'](\S+?)' not found")


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
                raise ExternalToolError(f"{origin}: {_no_program(Path(named).expanduser())}")
            return Path(found).resolve()
    found = shutil.which(BINARY)
    if found is None:
        raise ExternalToolError(
            f"ASTRA-sim: no {BINARY} on the PATH; name it with --astra-sim PATH or $ASTRA_SIM, "
            "or use --engine builtin"
        )
    return Path(found).resolve()


def _no_program(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a directory; expected the program {BINARY} itself"
    if path.exists():
        return f"{path} is not executable: 'chmod +x {path}'"
    return f"no program at {path}; expected {BINARY}"


def why_not_started(
    binary: Path, *, error: OSError | None = None, code: int = 0, stderr: str = ""
) -> str | None:
    """What kept a program from starting, in one line; None if it did start.

    Parameters
    ----------
    binary : Path
    error : OSError, optional
        With which the system refused to start it.
    code : int
        Its exit status; negative for a signal.
    stderr : str
    """
    head = f"ASTRA-sim: {binary} cannot start: "
    if error is not None:
        why = {
            errno.ENOEXEC: f"it is no program for this machine ({platform.machine()}): build it here",
            errno.EACCES: "it is not executable, or its file system forbids programs: 'chmod +x', or copy it",
            errno.ENOENT: "it, or the loader that it names, is not there: it was built for another system",
            errno.ENOMEM: "there is no memory left",
            errno.EAGAIN: "no more processes are allowed: raise 'ulimit -u'",
        }
        return head + why.get(error.errno or 0, error.strerror or str(error))
    library = _LIBRARY.search(stderr)
    if library:
        missing = "cannot open" in library[2]
        how = "is missing: install it, or name its folder in LD_LIBRARY_PATH" if missing else library[2]
        return f"{head}{library[1]} {how}"
    version = _LOADER.search(stderr)
    if version:
        return f"{head}it needs {version[1]}, which this system's libraries do not have: build it here"
    if code == -signal.SIGILL:
        return head + "it uses instructions that this processor does not have: build it here"
    return None


def check_starts(binary: Path) -> None:
    """Start the binary without arguments, only to see that it starts.

    Raises
    ------
    ExternalToolError
        When it does not: another processor's program, a missing library, a file that is not executable.
    """
    why = None
    try:
        done = subprocess.run(
            [str(binary)], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        why = why_not_started(binary, code=done.returncode, stderr=done.stderr)
    except subprocess.TimeoutExpired:
        pass  # it does start
    except OSError as error:
        why = why_not_started(binary, error=error)
    if why:
        raise ExternalToolError(why)
