"""``moxtrace bound``: what no routing can beat, and how far the policies are from it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moxtrace.cli.common import json_option, print_json, print_table, progress, verbosity_options

if TYPE_CHECKING:
    from moxtrace.bound import Bounds
    from moxtrace.config import RunConfig
    from moxtrace.scenario import Scenario

__all__ = ["command"]

log = logging.getLogger(__name__)

_UNIT = "load per capacity of the ideal switch's busiest port"
_ARGUMENTS = {
    "ingress": "copies into an NPU, over its capacity in",
    "egress": "tokens out of an NPU, at least once each, over its capacity out",
    "cut": "tokens into a set of nodes, over the links into it",
    "steiner-mean": "links of the smallest trees, over all links",
    "node-prices": "cheapest trees, where links into busy nodes cost more",
    "link-prices": "cheapest trees, where busy links cost more",
    "linear-program": "the optimum if tokens could be split",
}


@click.command(
    epilog="Example: moxtrace bound configs/training.yaml --policies tree,mox-paper --set topology.npus=32",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--exact", is_flag=True, help="Also solve the linear program of split tokens (small cases).")
@click.option(
    "--policies",
    metavar="NAME,...",
    help="Policies to compare, or none; default: all that run on the network.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of CONFIG.")
@json_option
@verbosity_options
def command(
    config: Path, exact: bool, policies: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Bound from below the busiest link of ANY multicast routing of CONFIG's traffic (dispatch).

    Loads are those of `normalized_max_load` in a run's summary: tokens per unit of a link's capacity, over
    the same at the busiest port of the ideal switch, which is 1.0. The bound is the best of several
    arguments, each of which covers all tokens; what was only sampled is listed apart, with its confidence.
    A policy's ratio is its busiest link over the bound: 1.0 cannot be beaten.

    With --exact the linear program is solved to 1e-6; where it is too large a warning says so and the other
    bounds stand.
    """
    from moxtrace.bound import bounds_of
    from moxtrace.config import load
    from moxtrace.scenario import prepare

    run_config = _with_policy(load(config, overrides), "min-hop")  # the network itself, not its ideal switch
    with progress("bound") as update:
        scenario = prepare(run_config)
        names = _chosen(policies, scenario)
        bounds = bounds_of(
            scenario.topology, scenario.demand, exact=exact, seed=run_config.traffic.seed,
            progress=lambda step, done, total: update(done, total, step),
        )  # fmt: skip
        loads = {}
        for name in names:
            update(0, 1, name)
            loads[name] = _busiest(scenario, name, load(config, overrides))
    if bounds.not_exact is not None:
        log.warning("--exact: %s; the bound is by %s instead", bounds.not_exact, bounds.kind)
    answer = _answer(bounds, loads)
    if as_json:
        print_json(answer)
    else:
        _describe(config, scenario, bounds, answer)


def _with_policy(config: RunConfig, policy: str) -> RunConfig:
    """The configuration with another policy; a file of weights goes with the policy that it was named for."""
    weights = config.routing.weights if policy == config.routing.policy else None
    routing = config.routing.model_copy(update={"policy": policy, "weights": weights})
    return config.model_copy(update={"routing": routing})


def _chosen(policies: str | None, scenario: Scenario) -> list[str]:
    """Names of the policies to compare."""
    import difflib

    from moxtrace.errors import ConfigError
    from moxtrace.routing import POLICIES

    if policies is None:
        return ["min-hop"] if scenario.topology.has_switch else [p for p in POLICIES if p != "switch"]
    names = [] if policies == "none" else [name.strip() for name in policies.split(",")]
    for name in names:
        if name not in POLICIES:
            near = difflib.get_close_matches(name, POLICIES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"--policies: {name!r} is no policy; expected some of {', '.join(POLICIES)}{hint}"
            )
    return list(dict.fromkeys(names))


def _busiest(scenario: Scenario, policy: str, config: RunConfig) -> float:
    """Tokens per Gbit/s on the busiest link under a policy, dispatch."""
    from dataclasses import replace

    from moxtrace.routing.loads import link_load
    from moxtrace.scenario import block_of

    block = block_of(replace(scenario, config=_with_policy(config, policy)))
    return float(link_load(block.dispatch).max())


def _answer(bounds: Bounds, loads: dict[str, float]) -> dict[str, Any]:
    """What ``--json`` prints; every load in units of the switch's busiest port."""
    unit = bounds.normalized
    answer: dict[str, Any] = {
        "bound": unit(bounds.load),
        "kind": bounds.kind,
        "unit": _UNIT,
        "certified": True,
        "bounds": {name: unit(load) for name, load in bounds.loads.items()},
        "cut": list(bounds.cut),
        "distinct_tokens": bounds.rows,
        "policies": {
            name: {"max_load": unit(load), "ratio": load / bounds.load if bounds.load else 1.0}
            for name, load in loads.items()
        },
        "sampled": {
            name: {
                "value": unit(e.load),
                "low": unit(e.load - 1.96 * e.standard_error),
                "high": unit(e.load + 1.96 * e.standard_error),
                "confidence": 0.95,
                "distinct_tokens": e.rows,
                "certified": False,
            }
            for name, e in bounds.estimates.items()
        },
        "exact": None,
    }
    if bounds.program is not None:
        program = bounds.program
        answer["exact"] = {
            "lower": unit(program.lower),
            "upper": unit(program.upper),
            "rounds": program.rounds,
        }
    return answer


def _describe(config: Path, scenario: Scenario, bounds: Bounds, answer: dict[str, Any]) -> None:
    """The answer for people."""
    network = scenario.topology
    click.echo(f"{config}: {network.num_npus} NPUs, {network.kind}, dispatch; {scenario.stands_on}")
    click.echo(f"{scenario.demand.num_tokens:,} tokens, {bounds.rows:,} different ones")
    click.echo(f"unit: {_UNIT}")
    rows = [
        [name, f"{load:.4f}", _ARGUMENTS[name], "<- the bound" if name == bounds.kind else ""]
        for name, load in answer["bounds"].items()
    ]
    print_table(["certified bound", "load", "counts", ""], rows)
    if answer["exact"] is not None:
        lower, upper = answer["exact"]["lower"], answer["exact"]["upper"]
        click.echo(f"linear program: optimum between {lower:.6f} and {upper:.6f}")
    for name, e in answer["sampled"].items():
        click.echo(
            f"sampled, not certified: {name} {e['value']:.4f}, 95 % confidence {e['low']:.4f} to "
            f"{e['high']:.4f} ({e['distinct_tokens']:,} different tokens)"
        )
    if answer["policies"]:
        rows = [[n, f"{p['max_load']:.4f}", f"{p['ratio']:.4f}"] for n, p in answer["policies"].items()]
        print_table(["policy", "busiest link", "over the bound"], rows)
