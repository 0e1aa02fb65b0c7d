"""Single files that are whole or absent: written aside and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moxtrace.errors import OutputError

__all__ = ["reason", "written_aside"]

_HINTS = {
    errno.ENOSPC: "the disk is full; nothing was left behind: free space or write elsewhere",
    errno.EDQUOT: "the disk quota is used up; nothing was left behind",
    errno.EACCES: "no permission to write there",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "too many open files: raise 'ulimit -n'",
    errno.ENOENT: "no such directory",
}


def reason(error: OSError) -> str:
    """Why the system refused to write, and what helps."""
    return _HINTS.get(error.errno or 0, error.strerror or str(error))


@contextmanager
def written_aside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes the name ``path`` when the body succeeds.

    Whatever happens in the body, ``path`` is untouched or complete, and nothing is left beside it.

    Raises
    ------
    OutputError
        When the system refuses to write.
    """
    target = Path(os.path.realpath(path))  # through a symbolic link, the file that it names
    if target.exists() and not target.is_file():
        raise OutputError(f"{path}: is no regular file; choose another name")
    # the ending stays: some writers choose the format by it
    aside = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        yield aside
        aside.replace(target)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {reason(error)}") from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
