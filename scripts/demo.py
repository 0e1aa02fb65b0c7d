"""The demo: one configuration under three policies against the ideal switch, a table and a figure."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from moxtrace.cli.common import print_table, progress
from moxtrace.config import load
from moxtrace.generate import generate
from moxtrace.plots.loads import plot_link_loads
from moxtrace.rundir import Run
from moxtrace.simulate import simulate_run
from moxtrace.units import format_bytes, format_ns

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "training.yaml"
POLICIES = ("min-hop", "tree", "mox-paper", "mox")


def warm_up(output: Path) -> None:
    """A tiny run of each policy, so that the times below are those of the work, not of the compiler."""
    for policy in ("switch", *POLICIES):
        target = output / "warm-up"
        generate(load(CONFIG, [f"routing.policy={policy}", "traffic.tokens_per_npu=8"]), target, force=True)
        simulate_run(Run.open(target))
    shutil.rmtree(target)


def main(output: Path) -> None:
    with progress("demo"):
        warm_up(output)
    rows, runs = [], []
    for policy in ("switch", *POLICIES):
        start = time.perf_counter()
        summary = generate(load(CONFIG, [f"routing.policy={policy}"]), output / policy, force=True)
        run = Run.open(output / policy)
        times = simulate_run(run)
        if policy in POLICIES:
            runs.append(run)
        rows.append(
            [
                policy if policy != "switch" else "ideal switch",
                format_ns(times.completion_ns),
                f"{times.slowdown - 1:+.1%}",
                format_bytes(summary["busiest_link_bytes"]),
                f"{summary['normalized_max_load']:.2f}",
                f"{summary['bandwidth_tax']:.1%}",
                f"{time.perf_counter() - start:.1f} s",
            ]
        )
        print(f"{policy}: {run.path}", file=sys.stderr)
    figure = output / "link_load.png"
    plot_link_loads(runs, figure)
    facts = f"{summary['npus']} NPUs, degree-8 expander, {summary['tokens']:,} tokens"
    print_table(
        ["policy", "MoE block", "over the switch", "busiest link", "/ switch port", "bandwidth tax", "took"],
        rows,
        title=f"{facts}; {summary['stands_on']}",
    )
    print(f"runs: {', '.join(str(output / p) for p in ('switch', *POLICIES))}")
    print(f"figure: {figure}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
