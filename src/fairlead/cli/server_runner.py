"""Runs a server until a signal stops it; shared by all server commands."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click

from fairlead.api.enum_values import cache_enum_values
from fairlead.cli.server_messages import (
    EXIT_BAD_ARGUMENTS,
    EXIT_BY_SIGNAL,
    EXIT_FAILED,
    SECOND_SIGNAL_AFTER_S,
    report_problems,
)
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.server.process import Server
from fairlead.server.warm_up import warm_up
from fairlead.settings import InvalidSettings
from fairlead.settings.static.config import LogFormat, StaticConfig
from fairlead.supervisor.process_channel import ProcessChannel, Ready
from fairlead.telemetry import get_log
from fairlead.telemetry.descriptors import raise_descriptor_limit

# Returns the text to print when the server is ready.
Greeting = Callable[[StaticConfig, Server], str]

# Number of new objects after which the garbage collector runs. It frees cycles, which reference counting can't free.
GARBAGE_OBJECTS = 20_000

_log = get_log("server")


def run_server(
    config: StaticConfig,
    make: Callable[[], Server],
    greeting: Greeting,
    *,
    stops_with_input: bool = False,
    channel: int | None = None,
) -> None:
    """Create a server and run it; an error is logged as JSON, if that is the log's format.

    With `stops_with_input`, the server also stops when standard input ends, for instance because its parent process
    ended. `channel` is the file descriptor of the channel to a supervisor, which gives it connections and stops it.
    """
    raise_descriptor_limit()
    try:
        _runner()(_serve(config, make(), greeting, stops_with_input=stops_with_input, channel_fd=channel))
    except (FairleadError, OSError) as failure:
        # With JSON logs, a program reads the output and must not find anything else.
        if config.log_format is LogFormat.JSON:
            _log.error("not started", error=str(failure))
            sys.exit(EXIT_BAD_ARGUMENTS if isinstance(failure, FixRequest) else EXIT_FAILED)
        if isinstance(failure, InvalidSettings):
            report_problems(config.dynamic_file, failure)
        raise


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        # uvloop handles about twice as many calls per second as the standard loop. Some platforms don't have it.
        from uvloop import run  # noqa: PLC0415
    except ImportError:
        return asyncio.run
    return run


def _look_for_garbage_less_often() -> None:
    """Exclude the loaded modules from garbage collection: they stay, so scanning them is wasted time."""
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 20, 100)
    gc.enable()


async def _serve(
    config: StaticConfig, server: Server, greeting: Greeting, *, stops_with_input: bool, channel_fd: int | None
) -> None:
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
                # This is as safe as a crash: acknowledged requests are on disk, and clients retry the others at other
                # hosts.
                _log.warning("stopped at once")
                os._exit(EXIT_BY_SIGNAL + number)
            return
        first_signal_s = loop.time()
        stopping.set()
        _log.info("stopping; send the signal again to stop at once")
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
    channel = None if channel_fd is None else ProcessChannel(channel_fd, stop=lambda: stop(signal.SIGTERM))
    try:
        await server.start()
    except asyncio.CancelledError:
        return
    is_started = True
    cache_enum_values()
    _look_for_garbage_less_often()
    if channel is None:
        click.echo(greeting(config, server))
    else:
        channel.serve(server.frontend_rpc, Ready(server.address, server.metrics_address))
    warming = asyncio.create_task(warm_up())
    await stopping.wait()
    warming.cancel()
    if channel is not None:
        await channel.close()
    await server.stop()
