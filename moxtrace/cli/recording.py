"""``moxtrace recording``: look at a recording, or convert it into the canonical file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from moxtrace.cli.common import json_option, print_json, print_table, verbosity_options

__all__ = ["command"]


@click.group(
    name="recording",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: moxtrace recording show configs/recordings/deepseek_v3_like.npz",
)
def command() -> None:
    """Look at a recording of expert popularity, or convert it."""


@command.command(
    epilog="Example: moxtrace recording show configs/recordings/deepseek_v3_like.npz --model deepseek-v3"
)
@click.argument("file")
@click.option("--model", metavar="NAME", help="Also check it against a model, e.g. deepseek-v3.")
@json_option
@verbosity_options
def show(file: str, model: str | None, as_json: bool) -> None:
    """Say what FILE is, how skewed each layer is, and what is wrong with it.

    FILE is a canonical .npz, counts (.npy, .npz, CSV layer,expert,count, JSON such as SGLang's
    logical_count), or token routes (.npz with topk_ids, JSON lines, JSON, CSV).  The kind of file is told by
    its content.
    """
    from moxtrace import models, recordings

    recording = recordings.read(file)
    if model is not None:
        shape = models.load(model)
        recording = recording.fit(shape.num_experts, shape.top_k)
    if as_json:
        print_json(_summary(recording))
    else:
        _print(recording)


@command.command(epilog="Example: moxtrace recording convert counts.json -o recording.npz")
@click.argument("file")
@click.option("-o", "--output", required=True, metavar="OUT.npz", help="The canonical file to write.")
@click.option("--force", is_flag=True, help="Replace OUT.npz if it exists.")
@verbosity_options
def convert(file: str, output: str, force: bool) -> None:
    """Write FILE, in any format that show reads, as a canonical recording."""
    from moxtrace import recordings
    from moxtrace.errors import OutputError

    if Path(output).exists() and not force:
        raise OutputError(f"{output}: exists already; choose another name or add --force")
    recording = recordings.read(file)
    recordings.write_canonical(recording, output)
    for warning in recording.warnings:
        click.echo(f"moxtrace: {file}: {warning}", err=True)


def _summary(recording: Any) -> dict[str, Any]:
    return {
        "format": recording.format,
        "kind": recording.kind,
        "num_layers": recording.num_layers,
        "num_moe_layers": len(recording.moe_layer_ids),
        "num_experts": recording.num_experts,
        "num_tokens": recording.num_tokens,
        "top_k": recording.top_k,
        "layers": [asdict(layer) for layer in recording.skew()],
        "warnings": list(recording.warnings),
        "note": recording.note,
    }


_KINDS = {"totals": "totals over a run", "tokens": "the experts of every token"}


def _print(recording: Any) -> None:
    click.echo(f"{recording.path}: {recording.format}, {_KINDS[recording.kind]}")
    moe = len(recording.moe_layer_ids)
    sizes = f"{recording.num_layers} layers ({moe} MoE) x {recording.num_experts} experts"
    if recording.num_tokens is not None:
        sizes += f", {recording.num_tokens} tokens"
    click.echo(sizes + ("" if recording.top_k is None else f", top-{recording.top_k}"))
    if recording.note:
        click.echo(f"note: {recording.note}")
    rows = [
        (s.layer, f"{s.total:.0f}", f"{s.max_over_mean:.2f}", f"{s.cv:.3f}", f"{s.gini:.3f}")
        for s in recording.skew()
        if s.max_over_mean is not None
    ]
    print_table(("layer", "total", "max/mean", "cv", "gini"), rows)
    for warning in recording.warnings:
        click.echo(f"warning: {warning}")
