"""Where runs are done on this machine: in this process, or in workers that may die.

Both are ``concurrent.futures`` executors.  Python's own process pool gives up when one worker is killed, and
does not say which run it had; here the run fails and the rest goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from moxtrace.errors import MoxtraceError

__all__ = ["InProcess", "LocalProcesses", "WorkerDiedError", "start_server"]

T = TypeVar("T")


class WorkerDiedError(MoxtraceError):
    """A worker process ended in the middle of a run."""


class InProcess(Executor):
    """Does each call when it is submitted, before ``submit`` returns."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call ``fn`` now; an expected error goes to whoever asks for the result."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except MoxtraceError as error:
            future.set_exception(error)
        return future


class LocalProcesses(Executor):
    """Worker processes, each replaced when it dies.

    Parameters
    ----------
    workers : int
    """

    def __init__(self, workers: int) -> None:
        start_server()
        self._context = multiprocessing.get_context("forkserver")
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._tasks = queue.SimpleQueue()
        self._processes: dict[int, BaseProcess] = {}
        self._ended = False
        self._threads = [
            threading.Thread(target=self._manage, args=(i,), daemon=True) for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Hand a call to the next worker that is free.

        The future raises :class:`WorkerDiedError` if the worker dies meanwhile.
        """
        if self._ended:
            raise RuntimeError("the pool has been shut down")
        future: Future[T] = Future()
        self._tasks.put((future, _Call(fn, kwargs), args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers: after what they were given, or at once with ``cancel_futures``."""
        self._ended = True
        if cancel_futures:
            with contextlib.suppress(queue.Empty):
                while True:
                    task = self._tasks.get_nowait()
                    if task is not None:
                        task[0].cancel()
            for process in list(self._processes.values()):
                process.kill()
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _manage(self, number: int) -> None:
        """Give tasks to one worker, and start another where it died."""
        worker: _Worker | None = None
        try:
            while (task := self._tasks.get()) is not None:
                future, call, arguments = task
                if not future.set_running_or_notify_cancel():
                    continue
                if worker is None:
                    worker = _Worker(self._context)
                    self._processes[number] = worker.process
                answer = worker.ask(call, arguments)
                if answer is None:
                    future.set_exception(WorkerDiedError(_why_died(worker.end())))
                    worker = None
                elif isinstance(answer, MoxtraceError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer[0])
        finally:
            if worker is not None:
                worker.end()


def start_server() -> None:
    """Start the process that imports everything once, and of which each worker is a copy.

    It takes half a second, in which the one who will need workers can read what they are to do.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["moxtrace.sweep.work"])
    forkserver.ensure_running()


class _Call:
    """A function with its keyword arguments, which can travel."""

    def __init__(self, fn: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        self._fn, self._kwargs = fn, kwargs

    def __call__(self, *args: Any) -> Any:
        return self._fn(*args, **self._kwargs)


class _Worker:
    """A process that answers calls one after the other."""

    def __init__(self, context: Any) -> None:
        self._connection, theirs = context.Pipe()
        watched, self._alive = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, watched), daemon=True)
        self.process.start()
        theirs.close()
        watched.close()

    def ask(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any] | MoxtraceError | None:
        """The result in a tuple, or the expected error of the call; None if the worker died."""
        try:
            self._connection.send((call, arguments))
            answer: tuple[Any] | MoxtraceError = self._connection.recv()
        except (EOFError, OSError):
            return None
        return answer

    def end(self) -> int:
        """Let go of the worker; returns its exit code."""
        self._connection.close()
        self._alive.close()
        self.process.join()
        return self.process.exitcode or 0


def _serve(connection: Connection, alive: Connection) -> None:
    """Answer calls until nobody asks any more; the end of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it, who ends the workers
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            call, arguments = connection.recv()
            connection.send(_answer(call, arguments))


def _end_with(alive: Connection) -> None:
    """End this process as soon as the one who started it has ended, however that came."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)


def _answer(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any] | MoxtraceError:
    """The result in a tuple, or an expected error; any other ends the worker, with its traceback."""
    try:
        return (call(*arguments),)
    except MoxtraceError as error:
        return error


def _why_died(code: int) -> str:
    """What an exit code says about the end of a worker."""
    if code == -signal.SIGKILL:
        return "killed by the system (SIGKILL), most likely out of memory: use fewer tokens or fewer --jobs"
    if code < 0:
        return f"the worker process ended with {signal.Signals(-code).name}"
    return f"the worker process ended with exit status {code} in the middle of the run"
