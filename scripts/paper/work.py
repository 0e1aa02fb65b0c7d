"""Points computed on several processes; what was computed is kept, and what fails stops nothing else.

Goes in: cases and a :class:`~paper.store.Store`.  Comes out: results in the store.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from moxtrace.errors import MoxtraceError
from moxtrace.routing import TABLE_POLICIES, WEIGHTED_POLICIES
from paper.bench import Bench, case_config, make_weights
from paper.grid import Case
from paper.store import Store

__all__ = ["Task", "compute", "tasks_of", "work"]

Task = tuple[Case, tuple[str, ...], str]  # case, policies, folder; a case without policies: its weights
PERIOD = 30  # seconds between lines of progress where there is no terminal


def compute(task: Task) -> None:
    """Carry out a task; failures are kept with their reason."""
    case, policies, folder = task
    store = Store(Path(folder))
    if not policies:
        _prepare_weights(case, store)
        return
    try:
        bench = Bench(case, store)
    except (MoxtraceError, MemoryError) as error:
        for policy in policies:
            store.keep(case, policy, failed=_said(error))
        return
    for policy in policies:
        try:
            store.keep(case, policy, facts=bench.facts(policy))
        except (MoxtraceError, MemoryError) as error:
            store.keep(case, policy, failed=_said(error))


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, MoxtraceError) else f"{type(error).__name__}: {text}"


def _prepare_weights(case: Case, store: Store) -> None:
    """Weights that other tasks will read; who needs ones that fail meets the reason again, and keeps it."""
    for policy in WEIGHTED_POLICIES + TABLE_POLICIES:
        if policy in case.policies:
            try:
                make_weights(case_config(case), policy, store)
            except (MoxtraceError, MemoryError):
                return


def tasks_of(cases: Sequence[Case], store: Store, policies: tuple[str, ...] | None = None) -> list[Task]:
    """What is left to compute: shared weights first, then the larger networks first.

    Parameters
    ----------
    cases : sequence of Case
    store : Store
    policies : tuple of str, optional
        In place of each case's own; failed points are tried again.
    """
    tasks: list[Task] = []
    for case in cases:
        wanted = case.policies if policies is None else policies
        left = tuple(p for p in wanted if store.facts(case, p) is None)
        if left:
            tasks.append((case, left, str(store.folder)))
    tasks.sort(key=lambda task: -int(task[0].keys.get("topology.npus", 1024)))
    first: dict[tuple[object, ...], Task] = {}
    for case, left, folder in tasks:
        keys = {k: v for k, v in case.keys.items() if k.split(".")[0] in ("topology", "placement", "model")}
        if "paper.topology" not in case.keys and set(left) & set(WEIGHTED_POLICIES + TABLE_POLICIES):
            first.setdefault((case.config == "boardfly", *sorted(keys.items())), (case, (), folder))
    return [*first.values(), *tasks]


def new_pool(jobs: int) -> Executor:
    """Processes that start afresh, as threads and forks do not mix; an interrupt is for who started them."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))


def work(tasks: Sequence[Task], jobs: int, pool_of: Callable[[int], Executor] | None = None) -> None:
    """Carry out all tasks.

    Where a process is killed, for its memory say, all that waited is tried again, each in a process of its
    own; a task that ends that as well fails.  On an interrupt the processes end, and what was computed
    stays.
    """
    pool_of = pool_of or new_pool
    told = _Progress(len(tasks))
    crashed = _round(tasks, jobs, pool_of, told)
    for task in crashed:
        if _round([task], 1, pool_of, told):
            _fail(task, "its process was killed, perhaps for want of memory; try --jobs 1")
    told.close()


def _round(
    tasks: Sequence[Task], jobs: int, pool_of: Callable[[int], Executor], told: _Progress
) -> list[Task]:
    """Carry out tasks in one pool; returns those that a dying process took with it."""
    lost: list[Task] = []
    pool = pool_of(jobs)
    try:
        waiting: dict[Future[None], Task] = {}
        for task in tasks:
            try:
                waiting[pool.submit(compute, task)] = task
            except BrokenProcessPool:
                lost.append(task)
        for future in as_completed(waiting):
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                lost.append(waiting[future])
                continue
            if error is not None:
                _fail(waiting[future], f"{type(error).__name__}: {' '.join(str(error).split())}")
            told.step()
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    pool.shutdown()
    return lost


def _fail(task: Task, reason: str) -> None:
    """Keep the reason at those points of a task that have no numbers."""
    case, policies, folder = task
    store = Store(Path(folder))
    for policy in policies:
        if store.facts(case, policy) is None:
            store.keep(case, policy, failed=reason)


class _Progress:
    """One line on stderr: rewritten on a terminal, else a new one now and then."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._start, self._last = total, 0, time.monotonic(), 0.0
        self._terminal = sys.stderr.isatty()

    def step(self) -> None:
        self._done += 1
        now = time.monotonic()
        if not self._terminal and now - self._last < PERIOD and self._done < self._total:
            return
        self._last = now
        took = now - self._start
        text = f"{self._done} of {self._total} tasks, the large ones first; {took:.0f} s"
        print(
            f"\r{text:<60}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr
        )
        sys.stderr.flush()

    def close(self) -> None:
        if self._terminal and self._done:
            print(file=sys.stderr)
