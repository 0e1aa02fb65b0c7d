"""A figure of ``scripts/bench.py``: its value, its target, and whether that is reached."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Row", "command_cost", "higher", "lower", "seconds"]


@dataclass(frozen=True)
class Row:
    """One figure, its target, and whether it is reached."""

    name: str
    value: float
    unit: str
    target: float
    better: str

    @property
    def ok(self) -> bool:
        """Whether the target is reached."""
        return self.value >= self.target if self.better == "higher" else self.value <= self.target


def higher(name: str, value: float, unit: str, target: float) -> Row:
    return Row(name, float(value), unit, target, "higher")


def lower(name: str, value: float, unit: str, target: float) -> Row:
    return Row(name, float(value), unit, target, "lower")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def command_cost(*arguments: str) -> tuple[float, float]:
    """Wall seconds and peak memory in GB of a moxtrace command."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "moxtrace", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"bench: moxtrace {' '.join(arguments)} failed")
    return time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e9
