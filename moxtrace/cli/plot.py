"""``moxtrace plot``: figures of run directories."""

from __future__ import annotations

from pathlib import Path

import click

from moxtrace.cli.common import verbosity_options

__all__ = ["command"]


@click.command(
    epilog="Example: moxtrace plot runs/min-hop runs/tree runs/mox-paper -o link_load.png",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Figure: .png, .svg or .pdf."
)
@click.option("--force", is_flag=True, help="Replace an earlier figure.")
@verbosity_options
def command(runs: tuple[Path, ...], output: Path, force: bool) -> None:
    """Draw the link loads of RUNS, one curve per run, into one figure."""
    from moxtrace.errors import OutputError
    from moxtrace.plots.loads import plot_link_loads
    from moxtrace.rundir import Run

    if output.exists() and not force:
        raise OutputError(f"{output}: exists; choose another name, or replace it with --force")
    plot_link_loads([Run.open(run) for run in runs], output)
    click.echo(f"{output}: link loads of {len(runs)} run{'' if len(runs) == 1 else 's'}")
