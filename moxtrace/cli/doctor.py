"""``moxtrace doctor``: what is installed, what it means, what to do."""

from __future__ import annotations

import sys

import click

from moxtrace.cli.common import json_option, print_json, progress, verbosity_options

__all__ = ["command"]


@click.command(
    epilog="Examples: moxtrace doctor; moxtrace doctor --astra-sim build/bin/ASTRA_SIM --json",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--astra-sim", metavar="PATH", help="The binary to try (default: $ASTRA_SIM, then the PATH).")
@json_option
@verbosity_options
def command(astra_sim: str | None, as_json: bool) -> None:
    """Say what is installed here, what each thing is for, and what to do about what is not.

    Libraries are imported, ASTRA-sim is asked a question whose answer is known. The exit status is 1 when
    something is broken without which moxtrace does not work.
    """
    from moxtrace.doctor import examine, summary

    with progress("doctor") as update:
        checks = examine(astra_sim, update)
    facts = summary(checks)
    if as_json:
        print_json(facts)
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            click.echo(f"{check.status:<7}  {check.name:<{width}}  {check.found}")
            if check.status != "ok":
                click.echo(f"{'':<{width + 11}}for: {check.means}")
                click.echo(f"{'':<{width + 11}}do:  {check.do}")
        broken = [check.name for check in checks if check.status == "broken"]
        click.echo(f"broken: {', '.join(broken)}" if broken else "nothing that moxtrace needs is broken")
    sys.exit(0 if facts["ok"] else 1)
