"""The command groups of `fairlead`, and how errors are printed."""

import io
import sys
from importlib import import_module

import click

from fairlead import __version__
from fairlead.core.errors import FairleadError, FixRequest

EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
EXIT_INTERRUPTED = 130


# Command names with the first sentence of their help. The sentence is repeated here so that `fairlead --help` does not
# have to load the modules; each module has the name of its command.
COMMANDS = {
    "admin": "Inspect and administer a running cluster.",
    "bench": "Put a load on a server and measure its performance.",
    "config": "Show the dynamic settings: those that can be changed while...",
    "demo": "Demonstrate Fairlead on this machine, in about two minutes.",
    "export": "Write the histories of a store or a server to a journal, with...",
    "lake": "Query, describe and tidy the tables of a lake, without Spark.",
    "pipeline": "Run the data pipeline on Spark: from the journal of the...",
    "server": "Run a server.",
    "simulate": "Run a part of the core on a synthetic workload.",
    "ui": "Get the pages of Temporal's web UI.",
}


class _Commands(click.Group):
    """Loads a command's module on first use, so that no command waits for the imports of another."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"fairlead.cli.{name}"), name)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="fairlead %(version)s")
def cli() -> None:
    """Fairlead leads many tasks fairly to the workers that run them."""


def run() -> None:
    """Run the `fairlead` command."""
    run_command(cli, "fairlead")


def run_command(command: click.Command, name: str) -> None:
    """Run a command; an error is printed as one line on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Replace characters that the terminal can't show: otherwise printing would fail.
        sys.stdout.reconfigure(errors="replace")
    try:
        command.main(prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message(), err=True)
        sys.exit(EXIT_BAD_ARGUMENTS)
    except click.UsageError as wrong:
        hint = f" (see '{wrong.ctx.command_path} --help')" if wrong.ctx else ""
        _say(name, wrong.format_message().rstrip(".") + hint)
        sys.exit(EXIT_BAD_ARGUMENTS)
    except FixRequest as wrong:
        _say(name, str(wrong))
        sys.exit(EXIT_BAD_ARGUMENTS)
    except (click.ClickException, FairleadError, OSError) as failed:
        _say(name, str(failed))
        sys.exit(EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)


def _say(name: str, message: str) -> None:
    from fairlead.report import printable  # noqa: PLC0415 - loads rich, which a command without errors may not need

    click.echo(f"{name}: " + printable(" ".join(message.split())), err=True)
