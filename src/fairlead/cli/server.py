"""`fairlead server start`: one process of a cluster, or all of it."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairlead.cli.start_dev import start_dev
from fairlead.settings import InvalidSettings, parse_overrides
from fairlead.settings.static import DEFAULTS, LogLevel, StaticConfig, load_config
from fairlead.telemetry import configure_logs

if TYPE_CHECKING:
    from fairlead.server import Server


@click.group(no_args_is_help=True)
def server() -> None:
    """Run a server."""


server.add_command(start_dev)


@server.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration file. [default: none; SDKs connect to 127.0.0.1:7233, other hosts to 127.0.0.1:7240, and "
    "the store is the SQLite file fairlead.db in this folder]",
)
@click.option(
    "--dynamic-config-value",
    "values",
    multiple=True,
    metavar="KEY=JSON",
    help="A dynamic setting that comes before the settings file. Any number of times.",
)
@click.option(
    "--log-level",
    type=click.Choice([level.value for level in LogLevel]),
    help="In place of what the file says. [default: info]",
)
@click.option("--stop-with-input", is_flag=True, hidden=True, help="Stop when standard input ends.")
def start(file: Path | None, values: tuple[str, ...], log_level: str | None, *, stop_with_input: bool) -> None:
    """Start a server, and run it until it is told to stop.

    SIGTERM or SIGINT (Ctrl-C) stops it in order: it lets SDKs go, leaves the ring, answers while others take over,
    stores what it has taken, and exits with 0. A second one, half a second later or more, stops it at once; nothing
    that was acknowledged is lost by that.

    \b
    fairlead server start
    fairlead server start --config fairlead.yaml
    fairlead server start --dynamic-config-value matching.numTasklistReadPartitions=4
    """
    # Who only asks for help need not wait for it to load.
    from fairlead.cli.serving import run_server, tell_problems  # noqa: PLC0415
    from fairlead.server import Server  # noqa: PLC0415

    config = DEFAULTS
    try:
        if file is not None:
            config = load_config(file, os.environ)
    except InvalidSettings as wrong:
        tell_problems(file, wrong)
    if log_level is not None:
        config = dataclasses.replace(config, log_level=LogLevel(log_level))
    overrides = parse_overrides(values)
    configure_logs(config.log_level, config.log_format)
    run_server(config, lambda: Server(config, overrides=overrides), ready_line, stops_with_input=stop_with_input)


def ready_line(config: StaticConfig, server: "Server") -> str:
    """What whoever started the server wants to know."""
    from fairlead.cli.serving import store_line  # noqa: PLC0415 - see above

    metrics = f"metrics at http://{server.metrics_address}/metrics" if server.metrics_address else "no metrics"
    place = server.address or server.frontend_address
    frontend = f"SDKs connect to {server.frontend_address}, " if server.frontend_address else ""
    return f"Fairlead is ready at {place}: {frontend}{store_line(config)}, {metrics}. Ctrl-C stops it."
