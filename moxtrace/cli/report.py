"""``moxtrace report``: one page about a sweep or run directories."""

from __future__ import annotations

from pathlib import Path

import click

from moxtrace.cli.common import verbosity_options
from moxtrace.cli.plot import condition

__all__ = ["command"]


@click.command(
    epilog="Examples: moxtrace report sweep -o report.html; moxtrace report runs/mox -o mox.html",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The page, an .html file."
)
@click.option("--title", help="Heading of the page; default: the folder's name.")
@click.option(
    "--where", "conditions", multiple=True, metavar="KEY=VALUE", callback=condition,
    help="Report only runs that say so.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an earlier page.")
@verbosity_options
def command(
    runs: tuple[Path, ...], output: Path, title: str | None, conditions: list[tuple[str, str]], force: bool
) -> None:
    """Write one self-contained HTML page about a sweep folder, or run directories, RUNS.

    It shows the policies at a glance, the figures (zoom, hover), the table of runs (sort, filter), the
    hottest links, what failed and why, what the numbers stand on, and the configuration. It needs no network
    and no other file: mail it, or open it from disk. Of a sweep with several settings, heat map, network and
    hottest links show the first one with most policies; choose another with --where.
    """
    from moxtrace.errors import OutputError
    from moxtrace.plots.reading import read
    from moxtrace.report.page import write_report
    from moxtrace.units import format_bytes

    if output.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{output}: a report is a page; expected a name that ends in .html")
    if output.exists() and not force:
        raise OutputError(f"{output}: exists; choose another name, or replace it with --force")
    results = read(runs).where_is(conditions)
    name = title or ", ".join(dict.fromkeys(run.resolve().name for run in runs))
    size = write_report(results, name, output)
    failed = sum(not row.ok for row in results.rows)
    said = f", {failed} failed" if failed else ""
    count = f"{len(results.rows)} run{'' if len(results.rows) == 1 else 's'}"
    click.echo(f"{output}: {count}{said}, {format_bytes(size)}")
