"""The command line: one file per command; each loads, makes one library call and writes.

Commands are imported when they are used, so that ``moxtrace --help`` starts at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from moxtrace import __version__
from moxtrace.errors import MoxtraceError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["main"]

# command -> what it does; the module moxtrace.cli.COMMAND holds it as ``command``
COMMANDS = {
    "generate": "Recording and topology to a run directory with traces.",
    "simulate": "Completion time of a run directory, a configuration, or any ASTRA-sim inputs.",
    "verify": "Check a run directory's traces against everything they must satisfy.",
    "recording": "Look at a recording, or convert it.",
    "topology": "Build, describe and convert topologies.",
    "weights": "Compute link weights offline.",
    "bound": "What no routing can beat, and how far each policy is from it.",
    "route": "Link loads of a configuration's policy, and what each single failure costs.",
    "sweep": "Many configurations, one table: resumable, on one machine or many.",
    "timeline": "What every link does when, for ui.perfetto.dev.",
    "plot": "Figures of a sweep or of run directories.",
    "report": "One self-contained page about a sweep or run directories.",
    "doctor": "What is installed, what it means, what to do.",
    "completion": "A script for bash, zsh or fish that completes commands and options.",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"moxtrace.cli.{name}").command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # without importing every command for its help
        names = [CompletionItem(n, help=h) for n, h in COMMANDS.items() if n.startswith(incomplete)]
        return names + [
            c for c in click.Command.shell_complete(self, ctx, incomplete) if c.value != incomplete
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"no such command {args[0]!r}{hint} Commands: {', '.join(COMMANDS)}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: moxtrace generate CONFIG.yaml -o RUN && moxtrace simulate RUN",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=lambda c, p, on: _version(c, on),
    help="Show the version, and those of what is installed with it.",
)  # fmt: skip
def _group() -> None:
    """Recorded expert popularity and a topology to MoX-routed Chakra traces for ASTRA-sim 2."""


def _version(ctx: click.Context, wanted: bool) -> None:
    """Versions of moxtrace and of what it stands on; ``moxtrace doctor`` looks closer."""
    if not wanted or ctx.resilient_parsing:
        return
    from moxtrace.doctor import versions

    click.echo("\n".join([f"moxtrace {__version__}", *versions()]))
    ctx.exit()


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit status 1."""
    for ending in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, ending):
            signal.signal(getattr(signal, ending), _interrupt)
    try:
        _group.main(prog_name="moxtrace", standalone_mode=False)
        sys.stdout.flush()
    except MoxtraceError as error:
        _fail(str(error))
    except MemoryError as error:
        why = f": {error}" if str(error) else ""
        _fail(f"not enough memory{why}; use fewer tokens per NPU or fewer NPUs")
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error))
        sys.exit(0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("moxtrace: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # whoever read our output closed it: stop quietly
        _give_up_stdout()
        sys.exit(141)
    except OSError as error:
        _give_up_stdout()
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")


def _interrupt(number: int, frame: object) -> None:
    """End as Ctrl-C does, so that nothing half-written stays."""
    raise KeyboardInterrupt


def _fail(message: str) -> NoReturn:
    """Say in one line what went wrong, and end with status 1."""
    click.echo(f"moxtrace: error: {' '.join(message.split())}", err=True)
    sys.exit(1)


def _give_up_stdout() -> None:
    """Let go of a standard output that takes nothing more, so that Python does not try again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
