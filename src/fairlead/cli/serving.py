"""Runs a server until it is told to stop: what its commands have in common."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click

from fairlead.core.errors import FairleadError, FixRequest
from fairlead.server import Server
from fairlead.settings import InvalidSettings
from fairlead.settings.static import LogFormat, MemoryConfig, PostgresConfig, SqliteConfig, StaticConfig
from fairlead.telemetry import get_log

EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
# How a shell says that a program was ended by a signal.
EXIT_BY_SIGNAL = 128
# A signal that follows another sooner is the same one: a terminal and what runs in it may both send it on.
SECOND_SIGNAL_AFTER_S = 0.5

# What is said when the server is ready.
Greeting = Callable[[StaticConfig, Server], str]

# New objects between two looks for garbage that counting references does not find.
GARBAGE_OBJECTS = 20_000

_log = get_log("server")


def run_server(
    config: StaticConfig, make: Callable[[], Server], greeting: Greeting, *, stops_with_input: bool = False
) -> None:
    """Make a server and run it. What is wrong is told as the log's format wants it.

    `stops_with_input`: also when standard input ends, as it does when whoever started this process is gone.
    """
    try:
        _runner()(_serve(config, make(), greeting, stops_with_input=stops_with_input))
    except (FairleadError, OSError) as failure:
        # Who asks for JSON reads it with a program, which should not have to read anything else.
        if config.log_format is LogFormat.JSON:
            _log.error("not started", error=str(failure))
            sys.exit(EXIT_BAD_ARGUMENTS if isinstance(failure, FixRequest) else EXIT_FAILED)
        if isinstance(failure, InvalidSettings):
            tell_problems(config.dynamic_file, failure)
        raise


def tell_problems(file: Path | None, wrong: InvalidSettings) -> NoReturn:
    """Each problem with its place, on a line of its own, as `fairlead config validate` tells them."""
    # What was given on the command line, or can't be read at all, has no lines.
    if file is None or not any(problem.line for problem in wrong.problems):
        raise wrong
    for line, message in wrong.problems:
        click.echo(f"{file}:{line or 1}: {message}", err=True)
    sys.exit(EXIT_BAD_ARGUMENTS)


def store_line(config: StaticConfig) -> str:
    """Which store it is, in a few words."""
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


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        # Handles about twice as many calls a second as the loop of the standard library. Not on every platform.
        from uvloop import run  # noqa: PLC0415
    except ImportError:
        return asyncio.run
    return run


def _look_for_garbage_less_often() -> None:
    """What was loaded stays: to look through all of it again and again takes long and finds nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 20, 100)


async def _serve(config: StaticConfig, server: Server, greeting: Greeting, *, stops_with_input: bool) -> None:
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

    def read_input() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            stop(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    if stops_with_input:
        loop.add_reader(sys.stdin.fileno(), read_input)
    try:
        await server.start()
    except asyncio.CancelledError:
        return
    is_started = True
    _look_for_garbage_less_often()
    click.echo(greeting(config, server))
    await stopping.wait()
    await server.stop()
