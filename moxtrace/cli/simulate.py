"""``moxtrace simulate``: a run directory, a configuration, or somebody else's ASTRA-sim inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moxtrace.cli.common import json_option, print_json, print_table, progress, verbosity_options
from moxtrace.units import format_ns

if TYPE_CHECKING:
    from moxtrace.engine.result import Agreement

__all__ = ["command"]

_PATH = click.Path(path_type=Path)


@click.command(
    epilog="Examples: moxtrace simulate run --json; moxtrace simulate run --engine astra-sim --timeout 3600; "
    "moxtrace simulate configs/training.yaml; "
    "moxtrace simulate --workload case/workload --system case/system.json --network case/network.yml",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("run", type=_PATH, required=False, metavar="RUN|CONFIG")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a key of CONFIG.")
@click.option("--engine", type=click.Choice(["builtin", "astra-sim"]), default="builtin", show_default=True)
@click.option("--astra-sim", metavar="PATH", help="ASTRA-sim's binary (default: $ASTRA_SIM, then the PATH).")
@click.option("--timeout", type=float, metavar="SECONDS", help="Give ASTRA-sim up after so long.")
@click.option("--yes", is_flag=True, help="Start ASTRA-sim although it may not fit into memory.")
@click.option("--workload", type=str, metavar="PREFIX", help="Other files: PREFIX.{rank}.et.")
@click.option("--system", type=_PATH, metavar="FILE", help="ASTRA-sim's system file, with --workload.")
@click.option("--network", type=_PATH, metavar="FILE", help="ASTRA-sim's network file, with --workload.")
@click.option("--memory", type=_PATH, metavar="FILE", help="ASTRA-sim's remote memory file, with --workload.")
@json_option
@verbosity_options
def command(
    run: Path | None,
    overrides: tuple[str, ...],
    engine: str,
    astra_sim: str | None,
    timeout: float | None,
    yes: bool,
    workload: str | None,
    system: Path | None,
    network: Path | None,
    memory: Path | None,
    as_json: bool,
) -> None:
    """Completion times of RUN, a run directory, or of the ASTRA-sim inputs named by --workload.

    Of CONFIG, a YAML file, the MoE block is simulated transfer by transfer without writing traces: use it for
    networks whose traces would not fit.

    With --engine astra-sim RUN is verified and simulated by the built-in engine first, and both results are
    compared; what ASTRA-sim wrote stays in RUN/logs.
    """
    if workload is not None:
        if run is not None:
            raise click.UsageError("give a run directory or --workload, not both")
        if system is None or network is None:
            raise click.UsageError("--workload needs --system and --network")
        if engine != "builtin":
            raise click.UsageError(
                "--workload is for the built-in engine; run ASTRA-sim on such files itself"
            )
        _foreign(workload, system, network, memory, as_json)
        return
    if run is None:
        raise click.UsageError("give a run directory, a configuration, or --workload, --system and --network")
    is_config = run.is_file()
    if is_config and engine != "builtin":
        raise click.UsageError("ASTRA-sim needs traces: make a run directory with 'moxtrace generate' first")
    if overrides and not is_config:
        raise click.UsageError("--set changes a configuration; a run directory is as it was generated")
    from moxtrace.config import load
    from moxtrace.rundir import Run
    from moxtrace.simulate import simulate_config, simulate_run

    with progress("simulate") as update:

        def tell(step: str, done: int, total: int) -> None:
            update(done, total, step)

        if is_config:
            result = simulate_config(load(run, overrides), tell)
        else:
            result = simulate_run(
                Run.open(run), engine, astra_sim=astra_sim, timeout_s=timeout, anyway=yes, progress=tell
            )
    if as_json:
        print_json(result.to_json())
        return
    click.echo(f"{run}: engine {result.engine}")
    click.echo(f"  completion    {format_ns(result.completion_ns)}")
    click.echo(
        f"  ideal switch  {format_ns(result.switch_completion_ns)}; slowdown {result.slowdown:.4f} "
        f"({result.slowdown - 1:+.2%})"
    )
    if result.agreement:
        _tell_agreement(result.agreement, result.logs)
    if result.links:
        click.echo(
            f"  links         busiest {result.links['busiest_utilisation']:.1%} busy, "
            f"mean {result.links['mean_utilisation']:.1%}"
        )
    if result.phases:
        rows = [[n, format_ns(p["start_ns"]), format_ns(p["end_ns"])] for n, p in result.phases.items()]
        print_table(["phase", "first NPU starts", "last NPU ends"], rows)


def _tell_agreement(agreement: Agreement, logs: str) -> None:
    """Say whether the engines agree, or what each of them says."""
    if agreement.agrees:
        click.echo("  agrees        the built-in engine has the same time for every NPU; phases are its")
    else:
        both = ", ".join(f"{engine} {format_ns(ns)}" for engine, ns in agreement.completion_ns.items())
        differ = format_ns(agreement.largest_difference_ns)
        click.echo(f"  disagrees     {both}; an NPU differs by up to {differ}")
    click.echo(f"  logs          {logs}")


def _foreign(workload: str, system: Path, network: Path, memory: Path | None, as_json: bool) -> None:
    """Simulate files that moxtrace did not write."""
    from moxtrace.engine.inputs import load, simulate_inputs

    with progress("simulate") as update:
        result = simulate_inputs(load(workload, system, network, memory), update)
    answer: dict[str, Any] = {
        "finished_cycles": result.finished.tolist(),
        "exposed_communication_cycles": result.exposed.tolist(),
        "completion_cycles": result.completion,
        "busiest_link_bytes": int(result.links.size_bytes.max(initial=0)),
        "engine": "builtin",
    }
    if as_json:
        print_json(answer)
        return
    rows = [[r, f, e] for r, (f, e) in enumerate(zip(result.finished, result.exposed, strict=True))]
    print_table(["rank", "finished_cycles", "exposed_communication_cycles"], rows)
    click.echo(f"completion: {result.completion} cycles")
