"""The MoX paper's evaluation: figures 2 to 6 and a table, every cell computed anew beside the paper's.

    python scripts/reproduce_paper.py --quick              # fewer seeds, sizes and tokens: under ten minutes
    python scripts/reproduce_paper.py -o runs/paper        # everything, five seeds to a point
    python scripts/reproduce_paper.py --only 2 3           # some figures: 2 to 6, sensitivity
    python scripts/reproduce_paper.py --again mox          # a policy's points anew; `all` for all of them

Goes in: ``configs/paper``: configurations, what is computed (evaluation.yaml), the paper's numbers
(published.yaml).  Comes out: ``table.md``, figures as PNG and PDF, and every point as JSON in ``points``.

A run that was stopped goes on where it was; points that another state of a policy's code made are computed
anew.  A point that fails is named in the table with its reason, and the script then exits with status 1.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from paper.figures import draw_all
from paper.grid import CONFIGS, FIGURES, POLICIES, Cell, cells_of, merged, read_plan
from paper.results import Results, comparisons, read_published
from paper.store import Store
from paper.table import table_of
from paper.work import tasks_of, work

from moxtrace.errors import MoxtraceError
from moxtrace.outputs import written_aside

BOUND = "bound"


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument(
        "-o", "--output", type=Path, help="default: runs/paper, with --quick runs/paper-quick"
    )
    parser.add_argument("--quick", action="store_true", help="fewer seeds, sizes and tokens")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="FIGURE", help=", ".join(FIGURES))
    plan = CONFIGS / "evaluation.yaml"
    parser.add_argument(
        "--plan", type=Path, default=plan, help="what is computed (default: configs/paper/evaluation.yaml)"
    )
    again = (*POLICIES, BOUND, "all")
    parser.add_argument(
        "--again", nargs="+", choices=again, metavar="POLICY", help="compute anew: " + ", ".join(again)
    )
    parser.add_argument(
        "--no-compute", action="store_true", help="table and figures of the points that are there"
    )
    arguments = parser.parse_args(given)
    if arguments.jobs < 1:
        parser.error(f"--jobs: {arguments.jobs}; expected at least 1")
    return arguments


def _forget(cells: Sequence[Cell], store: Store, again: Sequence[str]) -> None:
    """Drop the points that are to be computed anew."""
    for case in merged(cells):
        for policy in (*POLICIES, BOUND) if "all" in again else again:
            store.forget(case, policy)


def _bounded(results: Results, jobs: int, seeds: int) -> None:
    """Bounds of the cells where the paper's number is better, for some seeds each."""
    worse = [one for one in comparisons(results, read_published()) if one.is_worse]
    cases = {case.name: case for one in worse for case in one.cases[:seeds]}
    work(tasks_of(list(cases.values()), results.store, (BOUND,)), jobs, what="bounds")


def reproduce(arguments: argparse.Namespace) -> int:
    """Compute what is missing, draw and tabulate; returns the exit status."""
    plan, full = (read_plan(quick, arguments.plan) for quick in (arguments.quick, False))
    output = arguments.output or Path("runs/paper-quick" if arguments.quick else "runs/paper")
    store = Store(output.resolve())
    cells = cells_of(plan, arguments.only or ())
    results, cases = Results(cells, store), merged(cells)
    _forget(cells, store, arguments.again or ())
    try:
        if not arguments.no_compute:
            work(tasks_of(cases, store), arguments.jobs)
            _bounded(results, arguments.jobs, 1 if arguments.quick else len(plan.seeds))
    except KeyboardInterrupt:
        print("stopped; what was computed is kept, the same command goes on", file=sys.stderr)
        return 130
    published = read_published()
    found = comparisons(results, published)
    text = table_of(results, published, found, (plan, full))
    with written_aside(output / "table.md") as aside:
        aside.write_text(text, encoding="utf-8")
    draw_all(results, published, output)
    print(text)
    print(f"table and figures: {output}")
    return int(any(store.facts(case, policy) is None for case in cases for policy in case.policies))


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; an error is one line."""
    arguments = _arguments(given)
    try:
        return reproduce(arguments)
    except MoxtraceError as error:
        print(f"reproduce_paper: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes below as well
    sys.exit(main())
