"""``moxtrace generate``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from moxtrace.cli.common import json_option, print_json, progress, verbosity_options
from moxtrace.units import format_bytes, format_ns

__all__ = ["command"]


@click.command(
    epilog="Example: moxtrace generate configs/training.yaml -o run --set routing.policy=min-hop",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Run directory to make.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of CONFIG.")
@click.option("--force", is_flag=True, help="Replace an earlier run directory.")
@json_option
@verbosity_options
def command(config: Path, output: Path, overrides: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Make a run directory: routes, Chakra traces and ASTRA-sim's inputs.

    CONFIG is a YAML file; see configs/ for commented ones.
    """
    from moxtrace.config import load
    from moxtrace.generate import generate

    run_config = load(config, overrides)
    with progress("generate") as update:
        summary = generate(
            run_config, output, force=force, progress=lambda step, done, total: update(done, total, step)
        )
    if as_json:
        print_json(summary)
    else:
        describe(summary, output)


def describe(summary: dict[str, Any], output: Path) -> None:
    """The summary for people."""
    moved = sum(summary["transfers"].values())
    click.echo(f"{output}: {summary['npus']} NPUs, {summary['topology']}, policy {summary['policy']}")
    click.echo(f"  stands on      {summary['stands_on']}")
    for warning in summary["warnings"]:
        click.echo(f"  note           {warning}")
    click.echo(f"  tokens         {summary['tokens']:,}, {moved:,} messages over links")
    click.echo(
        f"  busiest link   {format_bytes(summary['busiest_link_bytes'])} in dispatch, "
        f"{summary['normalized_max_load']:.3f} x the switch's busiest port"
    )
    click.echo(f"  bandwidth tax  {summary['bandwidth_tax']:.1%}")
    if "placement_gain" in summary:
        gain = summary["placement_gain"]
        click.echo(
            f"  placement      a token touches {gain['fan_out_after']:.2f} NPUs instead of "
            f"{gain['fan_out_before']:.2f}; the busiest NPU computes {gain['load_after']:.2f} x the mean "
            f"instead of {gain['load_before']:.2f} ({gain['tokens']:,} tokens that it was not fitted to)"
        )
    if "completion_ns" in summary:
        click.echo(
            f"  completion     {format_ns(summary['completion_ns'])}, "
            f"{summary['slowdown'] - 1:+.2%} over the ideal switch, transfer by transfer; "
            "'moxtrace simulate' times the traces"
        )
