"""``moxtrace verify``: check a run directory."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from moxtrace.cli.common import json_option, print_json, progress, verbosity_options

__all__ = ["command"]


@click.command(
    epilog="Example: moxtrace verify run",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--chakra", is_flag=True, help="Also read the traces back through mlcommons/chakra's schema.")
@json_option
@verbosity_options
def command(run: Path, chakra: bool, as_json: bool) -> None:
    """Check RUN: files, traces, and that every token reaches every expert exactly once and comes back.

    The exit status is 1 when there are problems.
    """
    from moxtrace.rundir import Run
    from moxtrace.verify import verify_run

    opened = Run.open(run)
    with progress("verify") as update:
        result = verify_run(opened, update)
    problems = list(result.problems)
    if chakra:
        from moxtrace.chakra.schema_check import read_back

        problems += read_back(opened)
    if as_json:
        print_json({"ok": not problems, "problems": problems, "checked": result.checked})
    else:
        for problem in problems:
            click.echo(f"problem: {problem}")
        counts = ", ".join(f"{count:,} {what}" for what, count in result.checked.items())
        click.echo(f"{run}: {len(problems) or 'no'} problem{'' if len(problems) == 1 else 's'} ({counts})")
    sys.exit(1 if problems else 0)
