"""``moxtrace weights``: link weights, offline."""

from __future__ import annotations

from pathlib import Path

import click

from moxtrace.cli.common import json_option, print_json, print_table, progress, verbosity_options

__all__ = ["command"]


@click.command(
    epilog="Example: moxtrace weights configs/training.yaml -o weights.json",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Weights file to write.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of CONFIG.")
@click.option("--force", is_flag=True, help="Replace an earlier file.")
@json_option
@verbosity_options
def command(config: Path, output: Path, overrides: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Compute link weights for CONFIG's topology, placement and top-K, without knowing its traffic."""
    from moxtrace.config import load
    from moxtrace.errors import OutputError
    from moxtrace.scenario import compute_weights_of

    if output.exists() and not force:
        raise OutputError(f"{output}: exists; choose another name, or replace it with --force")
    with progress("weights") as update:
        weights = compute_weights_of(load(config, overrides), update)
    weights.save(output)
    loads = [float(x) for x in weights.history]
    answer = {
        "output": str(output),
        "links": weights.num_links,
        "max_over_mean_load": loads,
        "kept": sum(loads[i] for i in weights.kept_replays) / len(weights.kept_replays),
        "state_bytes": weights.state_bytes(),
    }
    if as_json:
        print_json(answer)
        return
    rows = [[i, f"{x:.4f}", "kept" if i in weights.kept_replays else ""] for i, x in enumerate(loads)]
    print_table(["replay", "busiest / mean link", ""], rows)
    state = weights.state_bytes()
    click.echo(
        f"{output}: weights of {weights.num_links} links; replay 0 is unweighted; a source holds "
        f"{state['own']:,} bytes of its own and {state['common']:,} that all share"
    )
