"""``moxtrace sweep``: many configurations, one table; and how such a sweep stands."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moxtrace.cli.common import json_option, print_json, print_table, progress, verbosity_options

if TYPE_CHECKING:
    from moxtrace.sweep import Outcome, Place, Plan
    from moxtrace.sweep.status import Status

__all__ = ["command"]

_PATH = click.Path(path_type=Path)
_CONTEXT = {"help_option_names": ["-h", "--help"]}
_SHOWN = 10  # failures


class _WithDefault(click.Group):
    """A group whose first command can be left out: ``moxtrace sweep FILE`` is ``moxtrace sweep run FILE``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _run.format_help(click.Context(_run, info_name=ctx.info_name, parent=ctx.parent), formatter)
        self.format_commands(ctx, formatter)


@click.group(cls=_WithDefault, context_settings=_CONTEXT)
def command() -> None:
    """Run many configurations into one table, and see how that stands."""


@command.command(
    "run",
    epilog="Examples: moxtrace sweep run configs/sweeps/degree.yaml -o runs/degree; or, without run: "
    "moxtrace sweep configs/sweeps/policies.yaml -o runs/policies --jobs 2; "
    "moxtrace sweep configs/sweeps/cluster.yaml -o runs/cluster --dask tcp://login1:8786; "
    "moxtrace sweep configs/sweeps/seeds.yaml --dry-run --set repeats=3",
    context_settings=_CONTEXT,
)
@click.argument("sweep", type=_PATH)
@click.option("-o", "--output", type=_PATH, metavar="DIR", help="The sweep's folder; go on where it exists.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key of the base, or repeats=3, grid.KEY=[...].",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Cores to use, a run on each (default: all; fewer runs where memory is short); 1: in this process.",
)
@click.option(
    "--dask", metavar="ADDRESS", help="Run on the Dask cluster of this scheduler, or scheduler file."
)
@click.option(
    "--dask-timeout",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for the scheduler and for its first worker.",
)
@click.option(
    "--emit-slurm", is_flag=True, help="Write job scripts for Slurm into DIR/slurm instead of running."
)
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tasks of the Slurm array (default: one per run, 64 at most).",
)
@click.option(
    "--shard", "shard", metavar="I/N", help="Do only the I-th of N parts; 'sweep collect' makes the table."
)
@click.option("--dry-run", is_flag=True, help="List the runs with estimated time and memory.")
@click.option("--retry-failed", is_flag=True, help="Do failed runs again.")
@click.option("--yes", is_flag=True, help="Accept more than 10,000 runs, and ASTRA-sim where it may not fit.")
@click.option("--astra-sim", metavar="PATH", help="ASTRA-sim's binary (default: $ASTRA_SIM, then the PATH).")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give a run of ASTRA-sim up after so long.")
@json_option
@verbosity_options
def _run(
    sweep: Path,
    output: Path | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    dask: str | None,
    dask_timeout: float,
    emit_slurm: bool,
    tasks: int | None,
    shard: str | None,
    dry_run: bool,
    retry_failed: bool,
    yes: bool,
    astra_sim: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Run the configurations of SWEEP, a YAML file, into one table.

    SWEEP has `base:` (a configuration, or the path of one), `grid:` (keys such as topology.degree, each with
    a list or a range {start, stop, step}: all combinations), `zip:` (keys that move together), `engine:`
    (builtin, builtin-traces, astra-sim, or a list of them), `repeats:` (how often, with other seeds),
    `bound:` (quick, best, none).

    Each run is a row; rows are kept in DIR/rows as they end, and DIR/results.csv and results.parquet have all
    of them. Started again, the sweep does what is missing or has changed. A run that fails is a row with its
    reason, and the exit status is 1.
    """
    if dask is not None and (jobs is not None or emit_slurm):
        raise click.UsageError("--dask, --jobs and --emit-slurm exclude each other")
    if tasks is not None and not emit_slurm:
        raise click.UsageError("--tasks is for --emit-slurm")
    from moxtrace.sweep.plan import load_plan

    if output is None and not dry_run:
        raise click.UsageError("give the sweep's folder with -o DIR (or only look with --dry-run)")
    place = None if dry_run or emit_slurm else _place(jobs, dask, dask_timeout)
    plan = load_plan(sweep, overrides, many=yes)
    if dry_run or output is None:
        _list(plan, output, as_json)
        return
    if emit_slurm:
        given = {"--set": overrides, "--retry-failed": retry_failed, "--yes": yes, "--astra-sim": astra_sim,
                 "--timeout": timeout}  # fmt: skip
        _emit(plan, sweep, output, given, tasks, as_json)
        return
    from moxtrace.sweep import run_sweep
    from moxtrace.sweep.folder import Shard

    with ExitStack() as stack:
        update = None

        def tell(done: int, total: int, what: str) -> None:
            nonlocal update
            if update is None:  # only where something is left to do
                update = stack.enter_context(progress("sweep"))
            update(done, total, what)

        outcome = run_sweep(
            plan, output, place, retry_failed=retry_failed,
            shard=Shard.of(shard) if shard else None, astra_sim=astra_sim, timeout_s=timeout, anyway=yes,
            progress=tell,
        )  # fmt: skip
    _finish(outcome, as_json)


def _place(jobs: int | None, dask: str | None, dask_timeout: float) -> Place:
    """Where the runs are done."""
    if dask is not None:
        from moxtrace.sweep.cluster import Dask

        return Dask(dask, dask_timeout)
    from moxtrace.sweep import Local

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Local(jobs or cores)


def _finish(outcome: Outcome, as_json: bool) -> None:
    """Say how it ended; exit status 1 if a run failed."""
    if as_json:
        print_json(outcome.to_json())
    else:
        new = outcome.ok + outcome.failed - outcome.kept
        click.echo(
            f"{outcome.folder}: {outcome.total} runs: {outcome.ok} ok, {outcome.failed} failed; "
            f"{outcome.kept} were there, {new} are new"
        )
        if outcome.tables:
            click.echo("table: " + ", ".join(str(path) for path in outcome.tables))
        _say_failures(outcome)
    if outcome.failed:
        sys.exit(1)


def _say_failures(outcome: Outcome) -> None:
    for row in outcome.failures[:_SHOWN]:
        click.echo(f"failed: {row['run']}: {row['reason']}", err=True)
    if outcome.failed > _SHOWN:
        click.echo(f"failed: {outcome.failed - _SHOWN} more; their reasons stand in the table", err=True)


def _list(plan: Plan, output: Path | None, as_json: bool) -> None:
    """The runs with what they cost when everything is computed anew, and which are there already."""
    from moxtrace.sweep.estimate import cost_of
    from moxtrace.sweep.rows import RowStore
    from moxtrace.units import format_bytes

    costs = [cost_of(run.config, run.engine) for run in plan.runs]
    rows = RowStore(output / "rows").read_all([run.run for run in plan.runs])[0] if output else {}
    status = [rows[run.run]["status"] if run.run in rows else "to do" for run in plan.runs]
    if as_json:
        print_json(
            {
                "name": plan.name,
                "runs": [
                    {"run": run.run, **run.swept, "repeat": run.repeat, "engine": run.engine,
                     "estimated_s": round(cost.seconds, 1), "estimated_bytes": round(cost.size_bytes),
                     "status": now}
                    for run, cost, now in zip(plan.runs, costs, status, strict=True)
                ],
            }
        )  # fmt: skip
        return
    table = [
        [run.run, *("" if v is None else v for v in run.swept.values()), run.repeat, run.engine,
         f"{cost.seconds:.1f} s", format_bytes(cost.size_bytes), now]
        for run, cost, now in zip(plan.runs, costs, status, strict=True)
    ]  # fmt: skip
    print_table(["run", *plan.columns, "repeat", "engine", "time", "memory", "status"], table)
    left = [cost.seconds for cost, now in zip(costs, status, strict=True) if now == "to do"]
    click.echo(
        f"{len(plan.runs)} runs, {len(left)} to do, about {_duration(sum(left))} of one core in all, "
        f"{format_bytes(max(c.size_bytes for c in costs))} at most for one"
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _emit(
    plan: Plan, sweep: Path, output: Path, given: dict[str, Any], tasks: int | None, as_json: bool
) -> None:
    """Write Slurm's scripts and say how to submit them."""
    from moxtrace.sweep.slurm import emit_slurm

    arguments: list[str] = []
    for name, value in given.items():
        if isinstance(value, tuple):
            arguments += [part for one in value for part in (name, one)]
        elif value is True:
            arguments.append(name)
        elif value not in (None, False):
            arguments += [name, str(value)]
    paths = emit_slurm(plan, sweep, output, arguments, tasks)
    if as_json:
        print_json({"scripts": [str(path) for path in paths]})
        return
    for path in paths:
        click.echo(path)
    click.echo(f"submit with: bash {paths[-1]}")


@command.command(
    "status",
    epilog="Example: moxtrace sweep status runs/degree",
    context_settings=_CONTEXT,
)
@click.argument("folder", type=_PATH, metavar="DIR")
@json_option
@verbosity_options
def _status(folder: Path, as_json: bool) -> None:
    """Say how many runs of the sweep in DIR are done, failed, and left; also while it is running."""
    from moxtrace.sweep.status import status_of

    status = status_of(folder)
    if as_json:
        print_json(status.to_json())
        return
    _describe(folder, status)


def _describe(folder: Path, status: Status) -> None:
    found = status.outcome
    who = f"{status.at_work} is at work" if status.at_work else "nobody is at work"
    click.echo(f"{folder}: {status.name}: {found.total} runs; {who}")
    click.echo(
        f"  ok {found.ok}, failed {found.failed}, left {found.missing}; {_duration(status.seconds)} so far"
    )
    if status.corrupt:
        click.echo(
            f"  {len(status.corrupt)} of the runs left have a file that is no row: {status.corrupt[0]}.json"
        )
    if status.earlier:
        click.echo(f"  {status.earlier} rows more are of runs that the sweep no longer has")
    _say_failures(found)


@command.command(
    "collect",
    epilog="Example: moxtrace sweep collect runs/cluster",
    context_settings=_CONTEXT,
)
@click.argument("folder", type=_PATH, metavar="DIR")
@json_option
@verbosity_options
def _collect(folder: Path, as_json: bool) -> None:
    """Write the table of the rows in DIR, whoever made them; exit status 1 if some failed or are missing."""
    from moxtrace.sweep.status import collect

    outcome = collect(folder)
    if as_json:
        print_json(outcome.to_json())
    else:
        click.echo(
            f"{folder}: {outcome.total} runs: {outcome.ok} ok, {outcome.failed} failed, "
            f"{outcome.missing} missing"
        )
        click.echo("table: " + ", ".join(str(path) for path in outcome.tables))
        _say_failures(outcome)
    if outcome.failed or outcome.missing:
        sys.exit(1)
