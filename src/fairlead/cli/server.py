"""`fairlead server start`: one process of a cluster, or the whole cluster."""

from pathlib import Path

import click

from fairlead.cli.start_dev import start_dev

# Copied from the settings, which are not imported to print the help.
LOG_LEVELS = ("debug", "info", "warning", "error")


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
    help="A dynamic setting that overrides the settings file. May be repeated.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    help="Overrides the configuration file. [default: info]",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Listen beyond loopback even without authorization: everybody who reaches the server may do everything.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Run N hosts as processes, to use all cores of this machine; needs PostgreSQL. "
    "They share the port for SDKs and the metrics, and listen for other "
    "hosts on N consecutive ports, the first being that of `listen`.",
)
@click.option("--process", type=int, hidden=True, help="Number of this process of a supervisor.")
@click.option("--channel", type=int, hidden=True, help="File descriptor of the channel to the supervisor.")
@click.option("--stop-with-input", is_flag=True, hidden=True, help="Stop when standard input ends.")
def start(
    file: Path | None,
    values: tuple[str, ...],
    log_level: str | None,
    *,
    insecure: bool,
    processes: int,
    process: int | None,
    channel: int | None,
    stop_with_input: bool,
) -> None:
    """Start a server, and run it until it is stopped.

    SIGTERM or SIGINT (Ctrl-C) stops it cleanly: it disconnects SDKs, leaves the ring, serves requests while other hosts
    take over, stores its tasks, and exits with 0. A second signal, at least half a second later, stops it at once,
    without losing anything that was acknowledged.

    With --processes, SIGTERM stops the processes one by one, and SIGHUP restarts them one by one, without a failed
    request. A process that dies is started again.

    \b
    fairlead server start
    fairlead server start --config fairlead.yaml
    fairlead server start --config fairlead.yaml --processes 4
    fairlead server start --dynamic-config-value matching.numTasklistReadPartitions=4
    """
    # Imported late, so that --help is fast.
    if processes > 1:
        from fairlead.cli.supervised import run_supervised  # noqa: PLC0415

        run_supervised(processes, file, values, log_level, is_insecure=insecure)
        return
    from fairlead.cli.lean_imports import import_lean  # noqa: PLC0415

    import_lean()
    from fairlead.cli.configured_server import run_configured  # noqa: PLC0415

    run_configured(
        file,
        values,
        log_level,
        is_insecure=insecure,
        stop_with_input=stop_with_input,
        process=process,
        channel=channel,
    )
