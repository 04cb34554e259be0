"""`fairlead-test-server PORT`: a server for workflow tests, whose time skips to the next timer.

Temporal's SDKs start it like their own test server: the first argument is the port.
"""

from typing import TYPE_CHECKING

import click

from fairlead import __version__
from fairlead.cli.commands import run_command
from fairlead.cli.server import LOG_LEVELS
from fairlead.cli.start_dev import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from fairlead.server import Server
    from fairlead.settings.static.config import StaticConfig


@click.command("fairlead-test-server", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("port", type=click.IntRange(0, 65_535))
@click.option(
    "--enable-time-skipping",
    "is_unlocked",
    is_flag=True,
    help="Start with time skipping unlocked. [default: locked until a client unlocks it, as the SDKs do]",
)
@click.option("--ip", default="127.0.0.1", show_default=True, metavar="IP", help="The address to listen at.")
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help=f'A namespace to create at launch, beside "{DEFAULT_NAMESPACE}". May be repeated.',
)
@click.option(
    "--search-attribute",
    "attributes",
    multiple=True,
    metavar="KEY=TYPE",
    help="A search attribute of these namespaces. May be repeated.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="warning",
    show_default=True,
    help="Minimum level of the logs on standard error.",
)
@click.option("--stop-with-input", is_flag=True, hidden=True, help="Stop when standard input ends.")
@click.version_option(__version__, message="fairlead-test-server %(version)s")
def run_test_server(
    port: int,
    *,
    is_unlocked: bool,
    ip: str,
    namespaces: tuple[str, ...],
    attributes: tuple[str, ...],
    log_level: str,
    stop_with_input: bool,
) -> None:
    """Start a server for tests that skips time: a workflow that sleeps for a month ends in a moment.

    PORT is where SDKs connect; 0 means any free port. All data is in memory, and no workflow is deleted before the
    server ends.

    \b
    fairlead-test-server 7233
    WorkflowEnvironment.start_time_skipping(test_server_existing_path=shutil.which("fairlead-test-server"))
    """
    # Imported late, so that --help and argument errors are fast.
    from fairlead.cli.lean_imports import import_lean  # noqa: PLC0415

    import_lean("temporalio.api.testservice.v1")
    from fairlead.cli.dev_server import GRACE_S, parse_namespaces  # noqa: PLC0415
    from fairlead.cli.server_runner import run_server  # noqa: PLC0415
    from fairlead.server import Server  # noqa: PLC0415
    from fairlead.settings.static.config import (  # noqa: PLC0415
        Address,
        LogFormat,
        LogLevel,
        MemoryConfig,
        StaticConfig,
    )
    from fairlead.telemetry import configure_logs  # noqa: PLC0415
    from fairlead.time_skipping import TimeSkipping  # noqa: PLC0415

    config = StaticConfig(
        frontend_listen=Address(ip, port),
        listen=Address("127.0.0.1", 0),
        store=MemoryConfig(),
        namespaces=parse_namespaces(namespaces, attributes),
        log_level=LogLevel(log_level),
        log_format=LogFormat.CONSOLE,
        hand_over_s=0.0,
        grace_s=GRACE_S,
    )
    configure_logs(config.log_level, config.log_format)
    skipping = TimeSkipping(is_locked=not is_unlocked)
    run_server(config, lambda: Server(config, skipping=skipping), banner, stops_with_input=stop_with_input)


def banner(_config: "StaticConfig", server: "Server") -> str:
    """Return the address of the server, with `Ready` on the last line."""
    return f"Fairlead test server {__version__}\n\nServer:      {server.frontend_address}\n\nReady. Ctrl-C stops it."


def main() -> None:
    """Run the command; an error is printed as one line on standard error."""
    run_command(run_test_server, "fairlead-test-server")
