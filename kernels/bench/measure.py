"""Times of a sequence of steps, on a GPU or a CPU: of the slowest rank in every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

__all__ = ["percentile", "rounds"]

Step = Callable[[], object]


def percentile(times: Sequence[float], share: float) -> float:
    """The least time that ``share`` of all do not exceed.

    Parameters
    ----------
    times : sequence of float
        At least one.
    share : float
        From 0 to 1.

    Returns
    -------
    float
        One of the times.
    """
    ordered = sorted(times)
    index = max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)
    return ordered[min(index, len(ordered) - 1)]


def rounds(steps: Sequence[Step], repeat: int, warmup: int, device: torch.device) -> list[list[float]]:
    """Run all steps one after the other, many times.

    Parameters
    ----------
    steps : sequence of callable
        Called without arguments; on a GPU they queue work on the current stream.
    repeat, warmup : int
        Rounds that count, and rounds before them that do not.
    device : torch.device
        A GPU is timed with events, a CPU with its clock.

    Returns
    -------
    list of list of float
        For each step, its time in each round in microseconds: that of the slowest rank. Ranks start a round
        together.
    """
    one = _gpu_round if device.type == "cuda" else _cpu_round
    for _ in range(warmup):
        one(steps)
    mine = torch.tensor([one(steps) for _ in range(repeat)], dtype=torch.float64, device=device)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return mine.T.tolist()


def _cpu_round(steps: Sequence[Step]) -> list[float]:
    dist.barrier()
    times = []
    for step in steps:
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e6)
    return times


def _gpu_round(steps: Sequence[Step]) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
    dist.barrier()
    marks[0].record()
    for step, mark in zip(steps, marks[1:], strict=True):
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e3 for a, b in zip(marks, marks[1:], strict=False)]
