"""The entry of the `fairlead` command: its groups, and how it says that something was wrong."""

import io
import sys
from importlib import import_module

import click

from fairlead import __version__
from fairlead.core.errors import FairleadError, FixRequest

EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
EXIT_INTERRUPTED = 130


# Each is a module with a command of the same name.
COMMANDS = {
    name: f"fairlead.cli.{name}"
    for name in ("admin", "bench", "config", "demo", "export", "pipeline", "server", "simulate")
}


class _Commands(click.Group):
    """Loads a command when it is asked for: what one of them needs, the others should not have to wait for."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[name]), name)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="fairlead %(version)s")
def cli() -> None:
    """Fairlead leads many tasks fairly to the workers that run them."""


def main() -> None:
    """Run the command; what is wrong with it is one line on standard error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that can't show a character gets another one, not a traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        cli.main(prog_name="fairlead", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message(), err=True)
        sys.exit(EXIT_BAD_ARGUMENTS)
    except click.UsageError as wrong:
        hint = f" (see '{wrong.ctx.command_path} --help')" if wrong.ctx else ""
        _say(wrong.format_message().rstrip(".") + hint)
        sys.exit(EXIT_BAD_ARGUMENTS)
    except FixRequest as wrong:
        _say(str(wrong))
        sys.exit(EXIT_BAD_ARGUMENTS)
    except (click.ClickException, FairleadError, OSError) as failed:
        _say(str(failed))
        sys.exit(EXIT_FAILED)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(EXIT_INTERRUPTED)


def _say(message: str) -> None:
    click.echo("fairlead: " + " ".join(message.split()), err=True)
