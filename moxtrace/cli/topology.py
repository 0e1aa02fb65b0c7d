"""``moxtrace topology``: build, describe and convert networks."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from moxtrace.cli.common import json_option, print_json, print_table, verbosity_options
from moxtrace.errors import ConfigError, OutputError
from moxtrace.kinds import KINDS, PARAMETERS
from moxtrace.topology import Topology, build, describe, read, write

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])

BUILT = tuple(kind for kind in KINDS if kind != "graph")


def _dims(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Lengths of dimensions from ``4x4x8``."""
    if value is None:
        return None
    try:
        return [int(length) for length in value.split("x")]
    except ValueError:
        raise click.BadParameter(f"{value!r}; expected lengths such as 4x4 or 4x4x8", ctx, param) from None


def _params(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Parameters from ``key=value``; a list of numbers is ``1,5,14``."""
    found: dict[str, Any] = {}
    for setting in values:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or name not in PARAMETERS:
            near = difflib.get_close_matches(name, PARAMETERS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(PARAMETERS)}"
            raise click.BadParameter(f"{setting!r}: expected key=value{hint}", ctx, param)
        if name in found:
            raise click.BadParameter(f"{name} is given twice", ctx, param)
        found[name] = _value(text, PARAMETERS[name].form)
    return found


def _value(text: str, form: str) -> Any:
    """A parameter's value; what is no number stays text, which the builder refuses by name."""
    try:
        if form == "number":
            return int(text)
        if form == "numbers":
            return [int(number) for number in text.strip("[]").split(",")]
    except ValueError:
        pass
    return text


def _kinds_text() -> str:
    """Every kind and its own parameters, and what these mean, for help texts."""
    lines = []
    for name, kind in KINDS.items():
        own = ", ".join(k if v is None else f"{k}={v}" for k, v in kind.parameters.items())
        lines.append(f"  {name}: {kind.text}" + (f"\n      {own}" if own else ""))
    lines += ["\n\b\nParameters (-p KEY=VALUE; as keys of topology: in a configuration):"]
    lines += [f"  {name}: {parameter.text}" for name, parameter in PARAMETERS.items()]
    return "\n".join(lines)


def _examples(*lines: str, kinds: bool = False) -> str:
    """An epilog that keeps its lines as they are."""
    text = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
    return text + f"\n\n\b\nKinds, with parameters of their own:\n{_kinds_text()}" if kinds else text


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


_rate_options = _options(
    click.option("--link-gbps", type=float, help="Gbit/s per lane; default 100, boardfly 1600."),
    click.option("--latency-ns", type=float, default=500, show_default=True, help="Latency of a link, ns."),
    click.option("--lanes", type=int, default=1, show_default=True, help="Parallel cables of a link."),
)
_shape_options = _options(
    click.option("--npus", type=int, help="NPUs, 2 to 4096; kinds with a size of their own need none."),
    click.option("--degree", type=int, help="Links per NPU, where the kind leaves a choice."),
    click.option("--dims", metavar="AxB[xC]", callback=_dims, help="Of torus, mesh, hyperx, twisted-torus."),
    click.option("--seed", type=int, default=1, show_default=True, help="Of a random kind."),
    click.option("--select", help=PARAMETERS["select"].text[0].upper() + PARAMETERS["select"].text[1:] + "."),
    click.option(
        "-p",
        "--param",
        "own",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_params,
        help="Any other parameter of the kind, such as groups=36 or offsets=1,5; see `make -h`.",
    ),
    _rate_options,
)
_force_option = click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
_out_type = click.Path(path_type=Path, dir_okay=False)


def _may_write(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise OutputError(f"{path}: exists already; give another name, or --force to overwrite it")


def _say_written(path: Path, topology: Topology) -> None:
    if not click.get_current_context().meta.get("quiet"):
        what = f"{topology.kind}, {topology.num_npus} NPUs, {topology.num_links} links"
        notes = "".join(f"; {name}: {text}" for name, text in _notes(topology.parameters))
        click.echo(f"wrote {path}: {what}{notes}", err=True)


def _notes(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the builder has to tell beside the graph."""
    lines = []
    if won := told.get("annealing"):
        for name in ("triangles", "pairs_beyond_2_hops", "score"):
            before, after = won[name]
            lines.append((f"annealed {name.replace('_', ' ')}", f"{before:,g} -> {after:,g}"))
    if cables := told.get("cables"):
        lines.append(("cables", ", ".join(f"{count:,} {sort}" for sort, count in cables.items())))
    if "direct_traffic" in told:
        lines.append(("traffic over one link", f"{told['direct_traffic']:.1%}"))
    return lines


@click.group(
    epilog=_examples(
        "moxtrace topology make expander --npus 64 --degree 8 -o net.csv",
        "moxtrace topology show net.csv --plot net.png",
        "moxtrace topology show torus --npus 64 --dims 4x4x4 --json",
        "moxtrace topology convert net.csv net.graphml",
    )
)
def command() -> None:
    """Build, describe and convert topologies."""


@command.command(
    short_help="Build a topology and write it to a file.",
    epilog=_examples(
        "moxtrace topology make expander --npus 64 --degree 8 -o net.csv",
        "moxtrace topology make torus --npus 32 --dims 4x8 --link-gbps 200 -o torus.json",
        "moxtrace topology make switch --npus 16 --degree 8 -o switch.graphml",
        "moxtrace topology make boardfly --npus 1024 -p port_map=random -o pod.csv",
        "moxtrace topology make demand-tuned --degree 8 -p path=traffic.csv -o tuned.csv",
        kinds=True,
    ),
)
@click.argument("kind")
@_shape_options
@click.option("-o", "--output", "path", type=_out_type, required=True, help="FILE: .csv, .graphml, .json")
@_force_option
@verbosity_options
def make(kind: str, path: Path, force: bool, **shape: Any) -> None:
    """Build a topology of KIND and write it to FILE."""
    _may_write(path, force)
    topology = build(kind, shape.pop("npus"), **_merged(shape))
    write(topology, path)
    _say_written(path, topology)


@command.command(
    short_help="Describe a file or a topology that is built on the spot.",
    epilog=_examples(
        "moxtrace topology show net.csv",
        "moxtrace topology show hypercube --npus 64 --json",
        "moxtrace topology show expander --npus 32 --degree 8 --plot net.png",
    ),
)
@click.argument("what", metavar="FILE|KIND")
@_shape_options
@click.option("--plot", "picture", type=_out_type, help="Also draw it: .png, .svg or .pdf")
@click.option("--force", is_flag=True, help="Overwrite the picture if it exists.")
@json_option
@verbosity_options
def show(what: str, picture: Path | None, force: bool, as_json: bool, **shape: Any) -> None:
    """Describe a topology: paths, bisection, degree, capacities.

    FILE is a .csv, .graphml or .json file; KIND is built as by `make`. For a file, the rate, latency and
    lanes given here hold where the file does not say.
    """
    if picture is not None:
        _may_write(picture, force)
    topology = _load(what, shape)
    result = describe(topology)
    if picture is not None:
        from moxtrace.plots.topology import draw_topology

        draw_topology(topology, picture)
        _say_written(picture, topology)
    if as_json:
        print_json(result)
    else:
        print_table(("property", "value"), _lines(result), title=f"topology {what}")


def _load(what: str, shape: dict[str, Any]) -> Topology:
    npus = shape.pop("npus")
    if what in BUILT:
        return build(what, npus, **_merged(shape))
    ctx = click.get_current_context()
    given = [name for name in ("degree", "dims", "seed", "select", "own") if _was_given(ctx, name)]
    if given or not (Path(what).suffix or Path(what).exists()):
        near = difflib.get_close_matches(what, BUILT, 1)
        hint = f", did you mean {near[0]!r}?" if near else ""
        found = (
            f"--{given[0].replace('own', 'param')} with a file{hint}"
            if given
            else f"neither a file nor a kind{hint}"
        )
        raise ConfigError(f"topology {what}: {found}; expected a file, or a kind: {', '.join(BUILT)}")
    return read(what, npus=npus, **_rates(shape))


def _rates(given: Mapping[str, Any]) -> dict[str, Any]:
    """Rate options; a file's links are at 100 Gbit/s where neither it nor the user says."""
    rates = {name: given[name] for name in ("link_gbps", "latency_ns", "lanes")}
    return {name: value for name, value in rates.items() if value is not None}


def _merged(shape: dict[str, Any]) -> dict[str, Any]:
    """Options of their own and ``--param`` together."""
    own = shape.pop("own")
    twice = [name for name in own if shape.get(name) is not None]
    if twice:
        raise ConfigError(f"topology: {twice[0]} is given as an option and as --param; give it once")
    return {**shape, **own}


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    def span(name: str, unit: str = "") -> str:
        low, high = result[f"{name}_min"], result[f"{name}_max"]
        return (f"{low:,.6g}" if low == high else f"{low:,.6g} to {high:,.6g}") + unit

    def yes(name: str) -> str:
        return "yes" if result[name] else "no"

    return [
        ("NPUs", f"{result['npus']:,}"),
        ("links (directed)", f"{result['links']:,}"),
        ("links out of an NPU", span("degree")),
        ("lanes of a link", span("lanes")),
        ("diameter", f"{result['diameter']} hops"),
        ("radius", f"{result['radius']} hops"),
        ("average path length", f"{result['average_path_length']:.4f} hops"),
        ("bisection (estimate, upper bound)", f"{result['bisection_gbps']:,.6g} Gbit/s"),
        ("capacity of a link", span("link_gbps", " Gbit/s")),
        ("capacity out of an NPU", span("npu_out_gbps", " Gbit/s")),
        ("capacity into an NPU", span("npu_in_gbps", " Gbit/s")),
        ("latency of a link", span("latency_ns", " ns")),
        ("triangles", f"{result['triangles']:,}"),
        ("every link has an equal reverse", yes("is_symmetric")),
        ("all links alike, one lane each", yes("is_uniform")),
        *_notes(result),
    ]


@command.command(
    short_help="Read a topology and write it in another format.",
    epilog=_examples(
        "moxtrace topology convert net.graphml net.csv",
        "moxtrace topology convert bare.json net.csv --link-gbps 400 --latency-ns 300",
    ),
)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("path", metavar="OUT", type=_out_type)
@click.option("--npus", type=int, help="Refuse a file with another number of NPUs.")
@_rate_options
@_force_option
@verbosity_options
def convert(source: Path, path: Path, force: bool, **defaults: Any) -> None:
    """Read IN and write OUT; formats by ending: .csv, .graphml, .json (node-link).

    The rate, latency and lanes given here hold where IN does not say.
    """
    _may_write(path, force)
    topology = read(source, npus=defaults.pop("npus"), **_rates(defaults))
    write(topology, path)
    _say_written(path, topology)
