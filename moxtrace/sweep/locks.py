"""Locks that the system lets go of when their holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moxtrace.errors import OutputError
from moxtrace.outputs import reason

__all__ = ["Held", "held", "holder_of"]

_CANNOT_LOCK = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class Held(Exception):  # noqa: N818  # an answer, not an error
    """Somebody else holds the lock; ``str`` says who, where that is known."""


@contextmanager
def held(path: Path, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold a lock while the body runs.

    Parameters
    ----------
    path : path
        A file in a folder that exists; it is made, and stays.
    shared : bool
        Together with others that also hold it shared.
    wait : bool
        Until it is free.

    Raises
    ------
    Held
        When somebody holds it and ``wait`` is not set.
    OutputError
        When the file cannot be made, or its file system has no locks.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {reason(error)}") from None
    try:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise Held(_said(file)) from None
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
            raise OutputError(
                f"{path}: this file system has no locks; choose a folder on another, such as a local disk"
            ) from None
        os.ftruncate(file, 0)  # of a holder that was killed
        if not shared:
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(file)


def holder_of(path: Path) -> str | None:
    """Who holds a lock now; None if nobody does."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _said(file)
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _said(file: int) -> str:
    return os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
