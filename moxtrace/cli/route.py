"""``moxtrace route``: how a policy loads the links, and what failures cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moxtrace.cli.common import json_option, print_json, print_table, progress, verbosity_options

if TYPE_CHECKING:
    from moxtrace.failures import FailedCable

__all__ = ["command"]

SHOWN = 10


@click.command(
    epilog="Example: moxtrace route configs/training.yaml --fail-each-link --set traffic.tokens_per_npu=512",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--fail-each-link", "failing", is_flag=True, help="Also fail every cable, one at a time.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of CONFIG.")
@json_option
@verbosity_options
def command(config: Path, failing: bool, overrides: tuple[str, ...], as_json: bool) -> None:
    """Route CONFIG's dispatch and print the loads of its links; writes nothing.

    With --fail-each-link, one lane of each cable fails in both directions, one cable after the other: the
    busiest link then, over the busiest now, with the weights kept as they are and with weights computed for
    what is left. Tokens and placement stay. What has failed already stands in topology.failed.
    """
    from moxtrace.config import load
    from moxtrace.failures import fail_each_link
    from moxtrace.routing.loads import summary
    from moxtrace.scenario import dispatch_on, prepare, weights_on

    run_config = load(config, overrides)
    with progress("routing") as update:
        scenario = prepare(run_config)
        network = scenario.topology
        weights = weights_on(scenario, network)
        dispatch = dispatch_on(scenario, network, weights, update)
    answer: dict[str, Any] = {
        "policy": run_config.routing.policy,
        "npus": network.num_npus,
        "links": network.num_links,
        "tokens": len(scenario.demand.source),
        **summary(dispatch, scenario.demand),
    }
    if failing:
        with progress("failing each cable") as update:
            failed = fail_each_link(scenario, dispatch, weights, update)
        answer["failures"] = _failures(failed)
    if as_json:
        print_json(answer)
        return
    print_table(("property", "value"), _lines(answer), title=f"{config}: dispatch, policy {answer['policy']}")
    if failing:
        _print_failures(answer["failures"], weights is not None)


def _failures(failed: list[FailedCable]) -> dict[str, Any]:
    """Every cable, and the worst and the mean of those that leave the network whole."""
    whole = [f for f in failed if not f.parts]
    result: dict[str, Any] = {"cables": [asdict(f) for f in failed], "apart": len(failed) - len(whole)}
    for name in ("kept", "recomputed"):
        busiest = [getattr(f, name).busiest for f in whole]
        result[name] = {"mean": sum(busiest) / len(busiest), "worst": max(busiest)} if busiest else None
    return result


def _lines(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("NPUs", f"{answer['npus']:,}"),
        ("links (directed)", f"{answer['links']:,}"),
        ("tokens", f"{answer['tokens']:,}"),
        ("busiest link", f"{answer['busiest_link_bytes'] / 1e6:,.3f} MB"),
        ("mean link", f"{answer['mean_link_bytes'] / 1e6:,.3f} MB"),
        ("relays per delivery (tax)", f"{answer['bandwidth_tax']:.4f}"),
        ("busiest link over the ideal switch's port", f"{answer['normalized_max_load']:.4f}"),
    ]


def _print_failures(found: dict[str, Any], weighted: bool) -> None:
    """The cables whose failure costs most, and the mean of all."""
    names = {"kept": "weights kept", "recomputed": "weights recomputed"} if weighted else {"kept": "busiest"}
    apart = [f for f in found["cables"] if f["parts"]]
    whole = sorted((f for f in found["cables"] if not f["parts"]), key=lambda f: -f["kept"]["busiest"])
    rows = [
        [" - ".join(f["ends"]), str(f["lanes_left"]), *(f"{f[key]['busiest']:.4f}" for key in names)]
        for f in whole[:SHOWN]
    ]
    for label in ("worst", "mean") if whole else ():
        rows.append([f"{label} of {len(whole)}", "", *(f"{found[key][label]:.4f}" for key in names)])
    click.echo()
    if rows:
        columns = ["cable that lost a lane", "lanes left", *names.values()]
        print_table(columns, rows, title="busiest link, over the busiest with nothing failed")
    for f in apart[:SHOWN]:
        click.echo(f"{' - '.join(f['ends'])}: parts the network in {' and '.join(map(_part, f['parts']))}")
    if len(apart) > SHOWN:
        click.echo(f"... and {len(apart) - SHOWN} more cables whose loss parts the network")


def _part(names: list[str]) -> str:
    return f"{len(names)} NPUs" if len(names) > 8 else ", ".join(names)
