"""`fairlead server start`: one process of a cluster, or all of it."""

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click

from fairlead.core.errors import FairleadError, FixRequest
from fairlead.server import Server
from fairlead.settings import InvalidSettings, parse_overrides
from fairlead.settings.static import (
    DEFAULTS,
    LogFormat,
    LogLevel,
    MemoryConfig,
    PostgresConfig,
    SqliteConfig,
    StaticConfig,
    load_config,
)
from fairlead.telemetry import configure_logs, get_log

EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
# How a shell says that a program was ended by a signal.
EXIT_BY_SIGNAL = 128
# A signal that follows another sooner is the same one: a terminal and what runs in it may both send it on.
SECOND_SIGNAL_AFTER_S = 0.5

_log = get_log("server")


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
    has taken, and exits with 0. A second one, half a second later or more, stops it at once; nothing that was
    acknowledged is lost by that.

    \b
    fairlead server start
    fairlead server start --config fairlead.yaml
    fairlead server start --dynamic-config-value matching.numTasklistReadPartitions=4
    """
    config = DEFAULTS
    try:
        if file is not None:
            config = load_config(file, os.environ)
    except InvalidSettings as wrong:
        _tell_problems(file, wrong)
    if log_level is not None:
        config = dataclasses.replace(config, log_level=LogLevel(log_level))
    overrides = parse_overrides(values)
    configure_logs(config.log_level, config.log_format)
    try:
        server = Server(config, overrides=overrides)
        _runner()(_serve(config, server))
    except (FairleadError, OSError) as failure:
        # Who asks for JSON reads it with a program, which should not have to read anything else.
        if config.log_format is LogFormat.JSON:
            _log.error("not started", error=str(failure))
            sys.exit(EXIT_BAD_ARGUMENTS if isinstance(failure, FixRequest) else EXIT_FAILED)
        if isinstance(failure, InvalidSettings):
            _tell_problems(config.dynamic_file, failure)
        raise


def _tell_problems(file: Path | None, wrong: InvalidSettings) -> NoReturn:
    """Each problem with its place, on a line of its own, as `fairlead config validate` tells them."""
    # What was given on the command line, or can't be read at all, has no lines.
    if file is None or not any(problem.line for problem in wrong.problems):
        raise wrong
    for line, message in wrong.problems:
        click.echo(f"{file}:{line or 1}: {message}", err=True)
    sys.exit(EXIT_BAD_ARGUMENTS)


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        # Handles about twice as many calls a second as the loop of the standard library. Not on every platform.
        from uvloop import run  # noqa: PLC0415
    except ImportError:
        return asyncio.run
    return run


async def _serve(config: StaticConfig, server: Server) -> None:
    serving = asyncio.current_task()
    assert serving is not None  # noqa: S101 - a coroutine runs in a task
    stopping = asyncio.Event()
    is_started = False
    first_signal_s = 0.0
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        nonlocal first_signal_s
        if stopping.is_set():
            if loop.time() - first_signal_s >= SECOND_SIGNAL_AFTER_S:
                # What was acknowledged is on disk, and what was not is tried again elsewhere: as safe as a crash.
                _log.warning("stopped at once")
                os._exit(EXIT_BY_SIGNAL + number)
            return
        first_signal_s = loop.time()
        stopping.set()
        _log.info("stopping; once more to stop at once")
        if not is_started:
            serving.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await server.start()
    except asyncio.CancelledError:
        return
    is_started = True
    click.echo(ready_line(config, server))
    await stopping.wait()
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
