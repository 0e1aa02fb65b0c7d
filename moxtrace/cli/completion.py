"""``moxtrace completion``: a script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from moxtrace.errors import ConfigError

__all__ = ["command"]

PROGRAM, VARIABLE = "moxtrace", "_MOXTRACE_COMPLETE"  # what click looks for when the shell asks


@click.command(
    epilog="Examples: moxtrace completion bash >> ~/.bashrc; moxtrace completion zsh >> ~/.zshrc; "
    "moxtrace completion fish > ~/.config/fish/completions/moxtrace.fish",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script for SHELL: source it, and Tab completes commands, options and file names.

    bash must be 4.4 or newer.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(
            f"completion: the installed click knows no {shell}; bash, zsh and fish came with 8.0"
        )
    script = kind(click.Command(PROGRAM), {}, PROGRAM, VARIABLE)
    click.echo(script.source_template % script.source_vars())
