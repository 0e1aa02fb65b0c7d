"""Points computed on several processes; what was computed is kept, and what fails stops nothing else.

Goes in: cases and a :class:`~paper.store.Store`.  Comes out: results in the store.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from moxtrace.errors import MoxtraceError
from moxtrace.routing import TABLE_POLICIES, WEIGHTED_POLICIES
from paper.bench import Bench, case_config, make_weights
from paper.grid import Case
from paper.store import Store

__all__ = ["Task", "compute", "tasks_of", "work"]

PERIOD = 30  # seconds between lines of progress where there is no terminal


@dataclass(frozen=True)
class Task:
    """Points of one case; or weights that several cases share.

    Parameters
    ----------
    case : Case
    policies : tuple of str
    folder : str
        The output folder.
    weights : str
        What the weights are for, where that is the task; else empty.
    after : frozenset of str
        Weights that must be there.
    """

    case: Case
    policies: tuple[str, ...]
    folder: str
    weights: str = ""
    after: frozenset[str] = frozenset()


def compute(task: Task) -> None:
    """Carry out a task; failures are kept with their reason."""
    case, store = task.case, Store(Path(task.folder))
    if task.weights:
        # who needs weights that cannot be had meets the reason again, and keeps it
        with contextlib.suppress(MoxtraceError, MemoryError):
            make_weights(case_config(case), task.policies[0], store)
        return
    try:
        bench = Bench(case, store)
    except (MoxtraceError, MemoryError) as error:
        for policy in task.policies:
            store.keep(case, policy, failed=_said(error))
        return
    for policy in task.policies:
        try:
            store.keep(case, policy, facts=bench.facts(policy))
        except (MoxtraceError, MemoryError) as error:
            store.keep(case, policy, failed=_said(error))


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, MoxtraceError) else f"{type(error).__name__}: {text}"


def tasks_of(cases: Sequence[Case], store: Store, policies: tuple[str, ...] | None = None) -> list[Task]:
    """What is left to compute: weights first, and the larger networks first.

    Parameters
    ----------
    cases : sequence of Case
    store : Store
    policies : tuple of str, optional
        In place of each case's own; failed points are tried again.
    """
    weights: dict[str, Task] = {}
    points = []
    for case in sorted(cases, key=lambda one: -int(one.keys.get("topology.npus", 1024))):
        left = [p for p in (policies or case.policies) if store.facts(case, p) is None]
        needed = {_weights_name(case, p): p for p in left if p in WEIGHTED_POLICIES + TABLE_POLICIES}
        if "paper.topology" in case.keys:
            needed = {}  # its network is known only when its tokens are
        for name, policy in needed.items():
            weights.setdefault(name, Task(case, (policy,), str(store.folder), name))
        if left:
            points.append(Task(case, tuple(left), str(store.folder), after=frozenset(needed)))
    return [*weights.values(), *points]


def _weights_name(case: Case, policy: str) -> str:
    """Equal for cases that share the weights of a policy."""
    keys = {k: v for k, v in case.keys.items() if k.split(".")[0] in ("topology", "placement", "model")}
    return f"{policy} {case.config == 'boardfly'} {json.dumps(keys, sort_keys=True)}"


def new_pool(jobs: int) -> Executor:
    """Processes that start afresh, as threads and forks do not mix; an interrupt is for who started them."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN))


def work(
    tasks: Sequence[Task],
    jobs: int,
    pool_of: Callable[[int], Executor] | None = None,
    *,
    what: str = "tasks",
) -> None:
    """Carry out all tasks; ``what`` they are is for the progress.

    Where a process is killed, for its memory say, all that waited is tried again, each in a process of its
    own; a task that ends that as well fails.  On an interrupt the processes end, and what was computed
    stays.
    """
    pool_of = pool_of or new_pool
    told = _Progress(len(tasks), what)
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
    queue, done = list(tasks), {name for task in tasks for name in task.after}
    done -= {task.weights for task in tasks}  # of these nobody need be waited for
    running: dict[Future[None], Task] = {}
    pool = pool_of(jobs)
    try:
        while queue or running:
            for task in [task for task in queue if task.after <= done]:
                queue.remove(task)
                try:
                    running[pool.submit(compute, task)] = task
                except BrokenProcessPool:
                    lost.append(task)
                    done.add(task.weights)
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, error = running.pop(future), future.exception()
                done.add(task.weights)
                if isinstance(error, BrokenProcessPool):
                    lost.append(task)
                    continue
                if error is not None:
                    _fail(task, f"{type(error).__name__}: {' '.join(str(error).split())}")
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
    store = Store(Path(task.folder))
    for policy in () if task.weights else task.policies:
        if store.facts(task.case, policy) is None:
            store.keep(task.case, policy, failed=reason)


class _Progress:
    """One line on stderr: rewritten on a terminal, else a new one now and then."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._done, self._start, self._last = total, 0, time.monotonic(), 0.0
        self._what = what
        self._terminal = sys.stderr.isatty()

    def step(self) -> None:
        self._done += 1
        now = time.monotonic()
        if not self._terminal and now - self._last < PERIOD and self._done < self._total:
            return
        self._last = now
        took = now - self._start
        text = f"{self._done} of {self._total} {self._what}, the large ones first; {took:.0f} s"
        print(
            f"\r{text:<60}" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr
        )
        sys.stderr.flush()

    def close(self) -> None:
        if self._terminal and self._done:
            print(file=sys.stderr)
