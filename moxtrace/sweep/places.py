"""Places where runs are done: this process, workers on this machine; :mod:`.cluster` has Dask.

A place is an executor with what the sweep must know of it: how many runs it takes at once, how much memory
they may fill, and what an error that comes back instead of a result means.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from moxtrace.sweep.memory import available_bytes
from moxtrace.sweep.pool import InProcess, LocalProcesses, WorkerDiedError, start_server

__all__ = ["Given", "Local", "Place"]

_SHARE = 0.9  # of the free memory that runs may fill


class Place(Protocol):
    """Where runs are done."""

    @property
    def at_once(self) -> int:
        """Runs that it takes at the same time."""

    @property
    def memory_bytes(self) -> float:
        """What the runs at work together may fill, by their estimates."""

    def threads(self, size_bytes: float, runs: int) -> int:
        """Threads for each of so many runs of this size."""

    def executor(self) -> AbstractContextManager[Executor]:
        """An executor for the time of the sweep; an interruption ends what it has begun."""

    def why(self, error: BaseException) -> str:
        """Why a run came back with this error, for its row; raises if no other run would fare better."""

    def check(self) -> None:
        """Asked while nothing comes back; raises if nothing ever will."""


class Local:
    """Processes on this machine.

    Parameters
    ----------
    jobs : int
        Cores to use: as many runs at once, one core each, or fewer on more cores each where there are fewer
        or where memory does not allow more.  With 1, runs are done in this process.
    """

    def __init__(self, jobs: int) -> None:
        self.at_once = jobs
        self.memory_bytes = _SHARE * available_bytes()
        if jobs > 1:
            start_server()

    def threads(self, size_bytes: float, runs: int) -> int:
        """The cores, shared among the runs that fit beside each other."""
        together = min(self.at_once, runs, self.memory_bytes // size_bytes)
        return max(1, int(self.at_once // max(1, together)))

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Workers, or this process; no worker outlives the body."""
        executor = InProcess() if self.at_once == 1 else LocalProcesses(self.at_once)
        done = False
        try:
            yield executor
            done = True
        finally:
            executor.shutdown(cancel_futures=not done)

    def why(self, error: BaseException) -> str:
        """A worker that died takes its run with it, and no other."""
        if isinstance(error, WorkerDiedError):
            return str(error)
        raise error

    def check(self) -> None:
        """A process that dies says so itself."""


class Given:
    """Any ``concurrent.futures`` executor, whose owner ends it.

    Parameters
    ----------
    executor : Executor
        Its workers must be able to import moxtrace and to read the files that configurations name.
    at_once : int
    """

    memory_bytes = float("inf")

    def __init__(self, executor: Executor, at_once: int) -> None:
        self._executor, self.at_once = executor, at_once

    def threads(self, size_bytes: float, runs: int) -> int:
        """One: a worker's other cores are for other runs."""
        return 1

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """The executor."""
        yield self._executor

    def why(self, error: BaseException) -> str:
        """Nothing is known of the executor: its errors are the owner's."""
        raise error

    def check(self) -> None:
        """Nothing is known of it."""
