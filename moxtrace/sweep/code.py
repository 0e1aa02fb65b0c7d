"""Which code made a result: rows and shared work of other code must not pass for its own.

A version number is not enough: between two releases the code changes under the same number, and whoever
installs from the repository would be given yesterday's results.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from moxtrace import __version__

__all__ = ["code_version", "hash_of_code"]

# rooms that only show results, or say where and when they are made
_NO_MATTER = ("__main__", "cli", "doctor", "plots", "report", "timeline")
_SWEEP = ("sweep/work.py", "sweep/cache.py", "sweep/plan.py")  # of the sweep, what decides what a row says


def hash_of_code(package: Path) -> str:
    """SHA-256 of all files of a package that decide a result, by name and content.

    Parameters
    ----------
    package : path
        Its folder; line ends do not count.
    """
    digest = hashlib.sha256()
    for path in sorted(p for end in ("py", "yaml") for p in package.rglob(f"*.{end}")):
        name = path.relative_to(package).as_posix()
        room = name.partition("/")[0].removesuffix(".py")
        if room in _NO_MATTER or (room == "sweep" and name not in _SWEEP):
            continue
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@cache
def code_version() -> str:
    """The version and twelve digits of the code's hash, as of when it is first asked for."""
    return f"{__version__}+{hash_of_code(Path(__file__).resolve().parent.parent)[:12]}"
