"""Runs the processes of `fairlead server start --processes N` until a signal stops them."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from fairlead.cli.server_messages import EXIT_BY_SIGNAL, SECOND_SIGNAL_AFTER_S, store_line
from fairlead.cli.static_file import read_static, with_insecure
from fairlead.server.exposure import check_exposure
from fairlead.settings import DynamicSettings, parse_overrides
from fairlead.settings.static.config import StaticConfig, load_config
from fairlead.supervisor.process_config import check_supervised
from fairlead.supervisor.supervisor import ProcessFailed, Supervisor
from fairlead.telemetry import configure_logs, get_log

_log = get_log("supervisor")


def run_supervised(
    processes: int, file: Path | None, values: Sequence[str], log_level: str | None, *, is_insecure: bool
) -> None:
    """Run the processes; each gets the flags of this one."""
    config = read_static(file, log_level, is_insecure=is_insecure)
    overrides = parse_overrides(values)

    def check() -> None:
        """Raise if a process with these flags and the present files would not start."""
        present = config if file is None else load_config(file, os.environ)
        check_supervised(present, processes)
        check_exposure(with_insecure(present) if is_insecure else present)
        DynamicSettings(file=present.dynamic_file, overrides=overrides)

    check()
    configure_logs(config.log_level, config.log_format)
    arguments = [f"--dynamic-config-value={value}" for value in values]
    if file is not None:
        arguments += ["--config", str(file)]
    if log_level is not None:
        arguments += ["--log-level", log_level]
    if is_insecure:
        arguments.append("--insecure")
    try:
        asyncio.run(_supervise(config, lambda: Supervisor(config, processes, arguments, check=check)))
    except ProcessFailed as failed:
        # The process has printed the reason.
        click.echo(f"fairlead: {failed}", err=True)
        sys.exit(failed.code)


async def _supervise(config: StaticConfig, make: Callable[[], Supervisor]) -> None:
    supervisor = make()
    loop = asyncio.get_running_loop()
    supervising = asyncio.current_task()
    assert supervising is not None  # noqa: S101 - a coroutine runs in a task
    stopping = asyncio.Event()
    is_started = False
    first_signal_s = 0.0

    def stop(number: int) -> None:
        nonlocal first_signal_s
        if not stopping.is_set():
            first_signal_s = loop.time()
            stopping.set()
            _log.info("stopping; send the signal again to stop at once")
            if not is_started:
                supervising.cancel()
        elif loop.time() - first_signal_s >= SECOND_SIGNAL_AFTER_S:
            # Don't wait: the processes notice the end of their channels, and stop.
            _log.warning("stopped at once")
            supervisor.kill_processes()
            os._exit(EXIT_BY_SIGNAL + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, lambda: supervisor.restart() if is_started else None)
    try:
        await supervisor.start()
        is_started = True
        click.echo(_ready_line(config, supervisor))
        await stopping.wait()
        await supervisor.stop()
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
    finally:
        await supervisor.kill()


def _ready_line(config: StaticConfig, supervisor: Supervisor) -> str:
    hosts = supervisor.hosts
    scheme = "https" if config.metrics_tls.is_on else "http"
    metrics = (
        f"metrics at {scheme}://{supervisor.metrics_address}/metrics" if supervisor.metrics_address else "no metrics"
    )
    frontend = f"SDKs connect to {supervisor.address}, " if supervisor.address else ""
    return (
        f"Fairlead is ready at {hosts[0]}: {len(hosts)} processes ({', '.join(hosts)}), {frontend}"
        f"{store_line(config)}, {metrics}. Ctrl-C stops them, SIGHUP restarts them one by one."
    )
