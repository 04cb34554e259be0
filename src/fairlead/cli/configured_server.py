"""Runs the server of `fairlead server start` from a configuration file."""

from collections.abc import Sequence
from pathlib import Path

from fairlead.cli.server_messages import store_line
from fairlead.cli.server_runner import run_server
from fairlead.cli.static_file import read_static
from fairlead.server.process import Server
from fairlead.settings import parse_overrides
from fairlead.settings.static.config import StaticConfig
from fairlead.settings.static.tls import ServerTls
from fairlead.supervisor.process_config import process_config
from fairlead.telemetry import configure_logs


def run_configured(
    file: Path | None,
    values: Sequence[str],
    log_level: str | None,
    *,
    is_insecure: bool,
    stop_with_input: bool,
    process: int | None = None,
    channel: int | None = None,
) -> None:
    """Run the server with this file and these flags; `process` and `channel` are given by a supervisor."""
    config = read_static(file, log_level, is_insecure=is_insecure)
    if process is not None:
        config = process_config(config, process)
    overrides = parse_overrides(values)
    configure_logs(config.log_level, config.log_format)
    run_server(
        config,
        lambda: Server(config, overrides=overrides, listens=channel is None),
        ready_line,
        stops_with_input=stop_with_input,
        channel=channel,
    )


def ready_line(config: StaticConfig, server: Server) -> str:
    """Return the line that is printed when the server is ready."""
    metrics = "no metrics"
    if server.metrics_address:
        metrics = f"metrics at {_scheme(config.metrics_tls)}://{server.metrics_address}/metrics"
    scheme = _scheme(config.security.tls.frontend.server)
    place = server.address or server.frontend_address
    frontend = f"SDKs connect to {server.frontend_address}, " if server.frontend_address else ""
    if server.http_address:
        frontend += f"HTTP API at {scheme}://{server.http_address}, "
    if server.ui_address:
        frontend += f"web page at {scheme}://{server.ui_address}, "
    return f"Fairlead is ready at {place}: {frontend}{store_line(config)}, {metrics}. Ctrl-C stops it."


def _scheme(tls: ServerTls) -> str:
    return "https" if tls.is_on else "http"
