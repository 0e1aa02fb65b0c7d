"""``moxtrace timeline``: what every link does when, for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path

import click

from moxtrace.cli.common import json_option, print_json, progress, verbosity_options
from moxtrace.units import format_bytes

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(
    epilog="Examples: moxtrace timeline run -o run.pftrace; "
    "moxtrace timeline configs/training.yaml --set topology.npus=64 --max-events 200000 -o run.pftrace. "
    "Then open run.pftrace at https://ui.perfetto.dev, which loads it in the browser and sends it nowhere.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("run", type=_PATH, metavar="RUN|CONFIG")
@click.option("-o", "--output", type=_PATH, required=True, metavar="FILE", help="The timeline.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of CONFIG.")
@click.option(
    "--max-events", type=int, default=1_000_000, show_default=True,
    help="Messages and queue samples to keep; beyond that every k-th token, and queues' peaks.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an earlier file.")
@json_option
@verbosity_options
def command(
    run: Path, output: Path, overrides: tuple[str, ...], max_events: int, force: bool, as_json: bool
) -> None:
    """Write the timeline of RUN, a run directory, or of CONFIG, a YAML file.

    One track per link with its messages (token, source, size, wait), one counter per link with the messages
    that wait, and each NPU's phases. The block is simulated transfer by transfer.
    """
    from moxtrace.config import load
    from moxtrace.errors import OutputError
    from moxtrace.rundir import Run
    from moxtrace.timeline import config_of, timeline_of

    if overrides and not run.is_file():
        raise click.UsageError("--set changes a configuration; a run directory is as it was generated")
    if output.exists() and not force:
        raise OutputError(f"{output}: exists; choose another name, or replace it with --force")
    config = load(run, overrides) if run.is_file() else config_of(Run.open(run))
    with progress("timeline") as update:
        timeline = timeline_of(config, max_events, lambda step, done, total: update(done, total, step))
        size = timeline.write(output)
    if timeline.is_sampled:
        click.echo(f"moxtrace: sampled: {timeline.sampling()}; more with --max-events", err=True)
    if as_json:
        facts = {"file": str(output), "bytes": size, "events": timeline.events, "stride": timeline.stride}
        print_json({**facts, "notes": timeline.notes})
        return
    click.echo(
        f"{output}: {timeline.events:,} events, {format_bytes(size)}; open it at https://ui.perfetto.dev"
    )
