"""``moxtrace plot``: figures of a sweep or of run directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moxtrace.cli.common import verbosity_options

if TYPE_CHECKING:
    from moxtrace.plots.results import Results
    from moxtrace.plots.style import Drawing

__all__ = ["command", "condition"]

# moxtrace.plots.figures.KINDS, without matplotlib for --help
KINDS = ("time", "load", "heatmap", "topology", "proxy")
ENDINGS = (".png", ".svg", ".pdf")


def condition(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Take ``KEY=VALUE`` apart."""
    found = []
    for text in values:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r}: expected KEY=VALUE, as in topology.npus=16")
        found.append((key.strip(), value.strip()))
    return found


@click.command(
    epilog="Examples: moxtrace plot runs/min-hop runs/tree runs/mox -o link_load.png; moxtrace plot sweep -o "
    "figures; moxtrace plot sweep -o npus.pdf --kind time --over topology.npus --where model.top_k=8",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True,
    help="One figure (.png, .svg or .pdf), or a folder for all of them.",
)  # fmt: skip
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Figures to draw; default: all."
)
@click.option(
    "--over", multiple=True, metavar="KEY", help="Keys to draw times over; default: all swept ones."
)
@click.option(
    "--where", "conditions", multiple=True, metavar="KEY=VALUE", callback=condition,
    help="Draw only runs that say so.",
)  # fmt: skip
@click.option(
    "--format", "formats", multiple=True, type=click.Choice([e[1:] for e in ENDINGS]), default=("png",),
    show_default=True, help="Formats in a folder.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace earlier figures.")
@verbosity_options
def command(
    runs: tuple[Path, ...],
    output: Path,
    kinds: tuple[str, ...],
    over: tuple[str, ...],
    conditions: list[tuple[str, str]],
    formats: tuple[str, ...],
    force: bool,
) -> None:
    """Draw a sweep folder, or run directories, RUNS.

    Into a folder go all kinds that the results allow, a file each: time (completion over each swept key, over
    the ideal switch's), load (links of each policy, busiest first), heatmap (source by destination), topology
    (the network coloured by load) and proxy (busiest link against simulated time). Into a single file goes
    one kind: --kind, or time of a sweep and load of run directories.

    Figures are 3.3 inches wide, one column; a line is a policy, and seeds and repeats are the band around it.
    heatmap and topology show one setting of the swept keys; choose another with --where. Above 128 NPUs,
    topology shows the 200 hottest links, and heatmap the busiest link of blocks of NPUs.
    """
    from moxtrace.plots.reading import read
    from moxtrace.plots.style import save

    folder = output.is_dir() or not output.suffix
    if not folder:
        _check_single(output, force)
    results = read(runs).where_is(conditions)
    if over:
        kinds = tuple(dict.fromkeys((*kinds, "time")))
    if folder:
        drawn = _all(results, kinds, over)
        files = [
            (d, output / f"{_plain(d.name)}.{ending}") for d in drawn for ending in dict.fromkeys(formats)
        ]
    else:
        files = [(_single(results, kinds, over), output)]
    _make_room([path for _, path in files], force)
    for drawing, path in files:
        save(drawing, path)
        click.echo(f"{path}: {drawing.title}")


def _check_single(output: Path, force: bool) -> None:
    from moxtrace.errors import OutputError

    if output.suffix.lower() not in ENDINGS:
        raise OutputError(
            f"{output}: unknown picture format {output.suffix!r}; expected {', '.join(ENDINGS)}, or a folder"
        )
    _make_room([output], force)


def _make_room(files: list[Path], force: bool) -> None:
    """Refuse to replace a figure, before anything is drawn; make the folder."""
    from moxtrace.errors import OutputError
    from moxtrace.outputs import reason

    for path in files:
        if path.exists() and not force:
            raise OutputError(f"{path}: exists; choose another name, or replace it with --force")
    try:
        files[0].parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{files[0].parent}: cannot be made: {reason(error)}") from None


def _plain(name: str) -> str:
    """A file name of letters, digits, dots and dashes."""
    return "".join(c if c.isalnum() or c in ".-_" else "_" for c in name)


def _single(results: Results, kinds: tuple[str, ...], over: tuple[str, ...]) -> Drawing:
    """The one drawing that a file holds."""
    from moxtrace.errors import ConfigError
    from moxtrace.plots.figures import drawings

    if len(kinds) > 1:
        raise ConfigError(
            f"--kind: {', '.join(kinds)} are {len(kinds)} figures; give a folder with -o, or one kind"
        )
    kind = kinds[0] if kinds else ("time" if results.sweep else "load")
    drawn = drawings(results, kind, over)
    if len(drawn) > 1:
        names = ", ".join(d.name.removeprefix("time-") for d in drawn)
        raise ConfigError(
            f"--over: {len(drawn)} keys were swept ({names}); choose one, or give a folder with -o"
        )
    return drawn[0]


def _all(results: Results, kinds: tuple[str, ...], over: tuple[str, ...]) -> list[Drawing]:
    """All drawings that a folder holds; kinds that nobody asked for may be impossible."""
    from moxtrace.errors import ConfigError
    from moxtrace.plots.figures import drawings

    _ = results.ok  # nothing to draw at all is an error, whatever the kind
    drawn = []
    for kind in kinds or KINDS:
        try:
            drawn += drawings(results, kind, over, apart=True)
        except ConfigError as error:
            if kinds:
                raise
            click.echo(f"no figure {kind!r}: {error}", err=True)
    return drawn
