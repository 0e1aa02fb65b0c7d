"""What commands share: their common options, JSON output, tables, and progress on a terminal."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import click

__all__ = ["json_option", "print_json", "print_table", "progress", "verbosity_options"]

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json``: the result as one JSON object on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(command)


def _set_level(ctx: click.Context, param: click.Parameter, value: int) -> int:
    if value:
        level = logging.ERROR if param.name == "quiet" else logging.INFO
        ctx.meta["quiet"] = param.name == "quiet"
        logger = logging.getLogger("moxtrace")
        ctx.call_on_close(partial(logger.setLevel, logger.level))  # for who calls a command from Python
        logger.setLevel(level)
    return value


def verbosity_options(command: F) -> F:
    """Add ``-q`` and ``-v``; messages go to stderr."""
    logging.basicConfig(format="moxtrace: %(message)s", stream=sys.stderr, level=logging.WARNING)
    quiet = click.option(
        "-q", "--quiet", is_flag=True, callback=_set_level, expose_value=False, help="No progress, no notes."
    )
    verbose = click.option(
        "-v", "--verbose", is_flag=True, callback=_set_level, expose_value=False, help="Say what is done."
    )
    return quiet(verbose(command))


def print_json(result: Any) -> None:
    """Write ``result`` to stdout as indented JSON."""
    click.echo(json.dumps(result, indent=2, allow_nan=False))


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: str | None = None,
    caption: str | None = None,
) -> None:
    """Write a table to stdout: aligned plain text, the same on a terminal and in a file.

    Numbers are right-aligned; a cell that is no string is written with ``str``.
    """
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(c), *(len(r[i]) for r in cells)) if cells else len(c) for i, c in enumerate(columns)]
    right = [all(r[i][:1].isdigit() or r[i][:1] in "+-.%" for r in cells) for i in range(len(columns))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)
        ).rstrip()

    if title:
        click.echo(title)
    click.echo(line(columns))
    click.echo("  ".join("-" * w for w in widths))
    for row in cells:
        click.echo(line(row))
    if caption:
        click.echo(caption)


def _announce_compilation() -> None:
    """Say once on stderr that kernels are being compiled, if any is: it takes a while, and only once."""
    from numba.core import event

    class Announcer(event.Listener):
        said = False

        def on_start(self, _: object) -> None:
            if not self.said:
                Announcer.said = True
                click.echo(
                    "moxtrace: compiling kernels, once per installation (up to a minute) ...", err=True
                )

        def on_end(self, _: object) -> None:
            pass

    event.register("numba:compile", Announcer())


@contextmanager
def progress(label: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr while the body runs, if stderr is a terminal.

    Yields a function ``update(done, total, label=...)``; it does nothing where there is no terminal.
    """
    ctx = click.get_current_context(silent=True)
    quiet = ctx is not None and ctx.meta.get("quiet")
    if not quiet:
        _announce_compilation()
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, label=label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total, label=label: bars.update(
            task, completed=done, total=total, description=label
        )
