"""Small sweeps: files, and places that go wrong in ways that a test chooses."""

from __future__ import annotations

import csv
import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

from moxtrace.sweep import Plan, load_plan, run_sweep
from moxtrace.sweep.places import Local

BASE = """\
model: {num_experts: 16, top_k: 4, hidden_dim: 64, intermediate_dim: 64}
traffic: {tokens_per_npu: 8, sampling: uniform}
topology: {kind: torus, dims: [2, 4]}
routing: {policy: tree}
"""
GRID = """\
base: base.yaml
grid:
  routing.policy: [tree, min-hop, switch]
  traffic.seed: {start: 1, stop: 2, step: 1}
bound: none
"""


def written(folder: Path, text: str = GRID, base: str = BASE, name: str = "sweep.yaml") -> Path:
    """Write a sweep and its base; returns the sweep file."""
    (folder / "base.yaml").write_text(base)
    (folder / name).write_text(text)
    return folder / name


def planned(folder: Path, text: str = GRID, base: str = BASE, **options) -> Plan:
    return load_plan(written(folder, text, base), **options)


def table(folder: Path, *, timings: bool = False) -> list[dict[str, str]]:
    """Rows of ``results.csv``, without the columns that differ each time."""
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not timings:
        for row in rows:
            del row["wall_s"], row["peak_memory_bytes"]
    return rows


def row_of(folder: Path, run: str) -> dict:
    return json.loads((folder / "rows" / f"{run}.json").read_text())


class Spoiled:
    """A place whose executor spoils some calls: ``spoil(number of the call, job)`` says with what.

    What it returns is called with the job in place of the run; None leaves the call alone.
    """

    def __init__(self, jobs: int, spoil) -> None:
        self._place, self._spoil = Local(jobs), spoil
        self.at_once, self.memory_bytes = self._place.at_once, self._place.memory_bytes
        self.calls = 0

    def threads(self, size_bytes, runs):
        return self._place.threads(size_bytes, runs)

    @contextmanager
    def executor(self):
        with self._place.executor() as executor:
            self._executor = executor
            yield self

    def submit(self, function, job):
        self.calls += 1
        return self._executor.submit(self._spoil(self.calls, job) or function, job)

    def why(self, error):
        return self._place.why(error)

    def check(self):
        self._place.check()


def die(job):
    """What the system does to a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def done(plan: Plan, folder: Path, **options):
    """Run a plan in this process."""
    return run_sweep(plan, folder, **options)
