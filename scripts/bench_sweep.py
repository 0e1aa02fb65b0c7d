"""Sweeps: how long 100 small runs take, how well two workers share them, what a run costs besides its work.

Called by ``scripts/bench.py``.  Times are of whole commands, process start included.  The 100 runs are every
policy on 20 networks, topology, placement, tokens and weights drawn anew for each.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_rows import Row, command_cost, higher, lower

__all__ = ["bench_sweep"]

ROOT = Path(__file__).resolve().parent.parent
SMALL = f"""\
base:
  recording: {{path: {ROOT}/configs/recordings/deepseek_v3_like.npz, layer: 20}}
  traffic: {{tokens_per_npu: 256}}
  topology: {{kind: expander, npus: 16, degree: 8}}
grid: {{routing.policy: [switch, min-hop, tree, mox-paper, mox]}}
repeats: 20
"""
TINY = """\
base:
  model: {num_experts: 16, top_k: 4, hidden_dim: 64, intermediate_dim: 64}
  traffic: {tokens_per_npu: 4, sampling: uniform}
  topology: {kind: torus, dims: [2, 4]}
  routing: {policy: tree}
repeats: 1000
"""


def bench_sweep() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, text in (("small", SMALL), ("tiny", TINY)):
            (folder / f"{kind}.yaml").write_text(text)

        def sweep(kind: str, jobs: int, into: str) -> float:
            arguments = (
                "sweep",
                f"{folder}/{kind}.yaml",
                "-o",
                f"{folder}/{into}",
                "-q",
                "--jobs",
                str(jobs),
            )
            return command_cost(*arguments)[0]

        command_cost("sweep", f"{folder}/small.yaml", "-o", f"{folder}/warm", "-q", "--set", "repeats=1")
        two, one = sweep("small", 2, "two"), sweep("small", 1, "one")
        yield lower("sweep_100_small_s", two, "s", 60)
        yield higher("sweep_2_jobs_over_1", one / two, "x faster", 1.7)
        whole, again = sweep("tiny", 1, "tiny"), sweep("tiny", 1, "tiny")
        with (folder / "tiny" / "results.csv").open(newline="") as file:
            work = sum(float(row["wall_s"]) for row in csv.DictReader(file))
        yield lower("sweep_overhead_per_run", 1e3 * (whole - again - work) / 1000, "ms", 50)
        yield lower("sweep_resume_1000_s", again, "s", 2)
