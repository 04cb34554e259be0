"""`fairlead server start-dev`: everything in one process, with the flags of `temporal server start-dev`."""

from pathlib import Path

import click

from fairlead import __version__

DEFAULT_NAMESPACE = "default"
LOG_LEVELS = ("debug", "info", "warn", "error", "never")
LOG_FORMATS = ("text", "pretty", "json")
# Types of search attributes; copied from the settings, which are not imported to print the help.
ATTRIBUTE_TYPES = ("Text", "Keyword", "Int", "Double", "Bool", "Datetime", "KeywordList")
INITIAL_VERSION_DEFAULT = 1
INCREMENT_DEFAULT = 10

# Flags of Temporal's CLI without effect here, by parameter name, with the reason that is printed.
_WITHOUT_EFFECT = {
    "sqlite_pragma": "the store sets the pragmas that its durability needs",
}

_PORT = click.IntRange(0, 65_535)


@click.command("start-dev")
@click.option("-p", "--port", type=_PORT, default=7233, show_default=True, help="Port for SDKs. 0: any free port.")
@click.option("--ip", default="127.0.0.1", show_default=True, metavar="IP", help="The address to listen at.")
@click.option(
    "-f",
    "--db-filename",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Keep everything in this SQLite file. [default: in memory; lost when the process ends]",
)
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help='A namespace to create at launch, beside "default". May be repeated.',
)
@click.option(
    "--search-attribute",
    "attributes",
    multiple=True,
    metavar="KEY=TYPE",
    help=f"A search attribute of these namespaces: {', '.join(ATTRIBUTE_TYPES)}. May be repeated.",
)
@click.option(
    "--dynamic-config-value",
    "values",
    multiple=True,
    metavar="KEY=JSON",
    help="A dynamic setting, see `fairlead config list`. May be repeated.",
)
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write a journal to this folder, for `fairlead pipeline`. [default: no journal]",
)
@click.option(
    "--journal-payloads",
    type=click.Choice(["true", "false", "keys"]),
    is_flag=False,
    flag_value="true",
    default="false",
    help="With --journal: also write the events; `keys` leaves out the data of payloads, but keeps metadata and sizes.",
)
@click.option("--cluster-name", metavar="NAME", help="Name of this cluster; enables global namespaces.")
@click.option(
    "--cluster-initial-version",
    "initial_version",
    type=int,
    default=INITIAL_VERSION_DEFAULT,
    show_default=True,
    help="Initial failover version; must differ between clusters and be below --cluster-increment.",
)
@click.option(
    "--cluster-increment",
    "increment",
    type=int,
    default=INCREMENT_DEFAULT,
    show_default=True,
    help="Failover version increment; must be the same in all clusters.",
)
@click.option(
    "--remote-cluster",
    "remotes",
    multiple=True,
    metavar="NAME=VERSION@HOST:PORT",
    help="A remote cluster: its name, initial failover version and address for SDKs. May be repeated.",
)
@click.option("--metrics-port", type=_PORT, default=0, help="Port of /metrics. [default: any free port]")
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="warn",
    show_default=True,
    help="Minimum level of the logs on standard error.",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="Format of the logs: for people, or JSON for programs.",
)
@click.option("--log-config", is_flag=True, help="Print the configuration to standard error.")
@click.option("--http-port", type=_PORT, default=0, help="Port of the HTTP API. [default: any free port]")
@click.option("--headless", is_flag=True, help="Serve no web page.")
@click.option("--ui-port", type=_PORT, help="Port of the web page. [default: --port plus 1000, or any free port]")
@click.option("--ui-ip", metavar="IP", help="The address at which the web page listens. [default: --ip]")
@click.option(
    "--ui-asset-path",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Built pages of Temporal's web UI. [default: those that `fairlead ui fetch` has fetched]",
)
@click.option("--ui-codec-endpoint", metavar="URL", help="A codec server, which the web page asks to decode payloads.")
@click.option(
    "--ui-lake",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Lake of `fairlead pipeline`, whose report and repair plan the console shows.",
)
@click.option("--ui-public-path", metavar="PATH", help="The path at which a browser sees the web page, say /temporal.")
@click.option("--ui-disable-news-fetch", is_flag=True, help="Accepted: the web page never looks for news.")
@click.option("--sqlite-pragma", multiple=True, metavar="KEY=VALUE", help="Accepted, without effect.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow an --ip that other machines can reach: everybody who reaches the server may do everything.",
)
@click.option("--stop-with-input", is_flag=True, hidden=True, help="Stop when standard input ends.")
def start_dev(
    *,
    port: int,
    ip: str,
    db_filename: Path | None,
    namespaces: tuple[str, ...],
    attributes: tuple[str, ...],
    values: tuple[str, ...],
    journal: Path | None,
    journal_payloads: str,
    cluster_name: str | None,
    initial_version: int,
    increment: int,
    remotes: tuple[str, ...],
    http_port: int,
    metrics_port: int,
    log_level: str,
    log_format: str,
    log_config: bool,
    headless: bool,
    ui_port: int | None,
    ui_ip: str | None,
    ui_asset_path: Path | None,
    ui_codec_endpoint: str | None,
    ui_lake: Path | None,
    ui_public_path: str | None,
    ui_disable_news_fetch: bool,  # noqa: ARG001 - the page never looks for news
    insecure: bool,
    stop_with_input: bool,
    **without_effect: object,
) -> None:
    """Start a server for development: all services in one process, ready for SDKs and the `temporal` command.

    It takes the flags of `temporal server start-dev`. All data is in memory, and lost when the process ends, unless
    --db-filename is given. Memory grows with the stored data; closed workflows are deleted after a day.

    \b
    fairlead server start-dev
    fairlead server start-dev --db-filename dev.db --namespace orders --search-attribute Customer=Keyword
    fairlead server start-dev --cluster-name a --remote-cluster b=2@127.0.0.1:7234
    """
    if db_filename is not None:
        _check_place(db_filename)
    _say_what_begins(port, ip, db_filename)
    # Imported after the first line is printed: these imports take most of the time until the server is ready.
    from fairlead.cli.lean_imports import import_lean  # noqa: PLC0415

    import_lean()
    from fairlead.cli.dev_server import UiFlags, run_dev  # noqa: PLC0415

    run_dev(
        port=port,
        ip=ip,
        db_filename=db_filename,
        namespaces=namespaces,
        attributes=attributes,
        values=values,
        journal=journal,
        journal_payloads=journal_payloads,
        cluster_name=cluster_name,
        initial_version=initial_version,
        increment=increment,
        remotes=remotes,
        http_port=http_port,
        metrics_port=metrics_port,
        log_level=log_level,
        log_format=log_format,
        log_config=log_config,
        ui=None if headless else UiFlags(ui_port, ui_ip, ui_asset_path, ui_codec_endpoint, ui_public_path, ui_lake),
        is_insecure=insecure,
        stop_with_input=stop_with_input,
        without_effect={
            f"--{name.replace('_', '-')}": _WITHOUT_EFFECT[name]
            for name, given in without_effect.items()
            if given not in (None, ())
        },
    )


def _check_place(db_filename: Path) -> None:
    """Raise an error for a file that the store could not open, before the imports."""
    if not db_filename.parent.is_dir():
        raise click.UsageError(
            f"--db-filename {db_filename}: there is no folder {db_filename.parent}; make it, or give another file"
        )
    if db_filename.is_dir():
        raise click.UsageError(f"--db-filename {db_filename} is a folder: give a file")


def _say_what_begins(port: int, ip: str, db_filename: Path | None) -> None:
    place = f"{ip}:{port}" if port else f"a free port of {ip}"
    store = "in memory" if db_filename is None else f"SQLite file {db_filename}"
    click.echo(f"Fairlead {__version__} is starting at {place}, {store}.")
