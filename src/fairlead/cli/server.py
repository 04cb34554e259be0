"""`fairlead server start`: one process of a cluster, or all of it."""

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import click

from fairlead.server import Server
from fairlead.settings import Plain, parse_overrides
from fairlead.settings.static import (
    DEFAULTS,
    LogLevel,
    MemoryConfig,
    PostgresConfig,
    SqliteConfig,
    StaticConfig,
    load_config,
)
from fairlead.telemetry import configure_logs

# How a shell says that a program was ended by a signal.
EXIT_BY_SIGNAL = 128


@click.group(no_args_is_help=True)
def server() -> None:
    """Run a server."""


@server.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration file. [default: none; 127.0.0.1:7240 with the SQLite file fairlead.db in this folder]",
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
def start(file: Path | None, values: tuple[str, ...], log_level: str | None) -> None:
    """Start a server, and run it until it is told to stop.

    SIGTERM or SIGINT (Ctrl-C) stops it in order: it leaves the ring, answers while others take over, stores what it
    has taken, and exits with 0. A second one stops it at once; nothing that was acknowledged is lost by that.

    \b
    fairlead server start
    fairlead server start --config fairlead.yaml
    fairlead server start --dynamic-config-value matching.numTasklistReadPartitions=4
    """
    config = load_config(file, os.environ) if file is not None else DEFAULTS
    if log_level is not None:
        config = dataclasses.replace(config, log_level=LogLevel(log_level))
    overrides = parse_overrides(values)
    configure_logs(config.log_level, config.log_format)
    _runner()(_serve(config, overrides))


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        # Handles about twice as many calls a second as the loop of the standard library. Not on every platform.
        from uvloop import run  # noqa: PLC0415
    except ImportError:
        return asyncio.run
    return run


async def _serve(config: StaticConfig, overrides: Mapping[str, Plain]) -> None:
    serving = asyncio.current_task()
    assert serving is not None  # noqa: S101 - a coroutine runs in a task
    stopping = asyncio.Event()
    is_started = False

    def stop(number: int) -> None:
        if stopping.is_set():
            # What was acknowledged is on disk, and what was not is tried again elsewhere: as safe as a crash.
            click.echo("fairlead: stopped at once", err=True)
            sys.stderr.flush()
            os._exit(EXIT_BY_SIGNAL + number)
        stopping.set()
        if not is_started:
            serving.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    server = Server(config, overrides=overrides)
    try:
        await server.start()
    except asyncio.CancelledError:
        return
    is_started = True
    click.echo(ready_line(config, server))
    await stopping.wait()
    click.echo("fairlead: stopping; once more to stop at once", err=True)
    await server.stop()


def ready_line(config: StaticConfig, server: Server) -> str:
    """What whoever started the server wants to know."""
    metrics = f"metrics at http://{server.metrics_address}/metrics" if server.metrics_address else "no metrics"
    return f"Fairlead is ready at {server.address}: {_store(config)}, {metrics}. Ctrl-C stops it."


def _store(config: StaticConfig) -> str:
    match config.store:
        case SqliteConfig(file):
            return f"SQLite file {file}"
        case PostgresConfig(dsn):
            # Installed, since the store is open.
            from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

            # Only these: there may be a password among the rest.
            parts = conninfo_to_dict(dsn)
            return f"PostgreSQL database {parts.get('dbname', 'by default')} at {parts.get('host', 'this machine')}"
        case MemoryConfig():
            return "everything in memory, nothing kept"
