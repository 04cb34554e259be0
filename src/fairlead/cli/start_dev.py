"""`fairlead server start-dev`: everything in one process, with the flags of `temporal server start-dev`."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from fairlead import __version__
from fairlead.core.versions import InvalidClusters
from fairlead.settings import SETTINGS, InvalidValue, Plain, UnknownSetting, parse_overrides
from fairlead.settings.static import (
    Address,
    ClusterConfig,
    JournalConfig,
    LogFormat,
    LogLevel,
    MemoryConfig,
    NamespaceConfig,
    RemoteClusterConfig,
    SearchAttributeType,
    SqliteConfig,
    StaticConfig,
    parse_remote_address,
)
from fairlead.settings.static_clusters import INCREMENT_DEFAULT, INITIAL_VERSION_DEFAULT, parse_cluster_name
from fairlead.settings.static_namespaces import parse_namespace_name, parse_search_attributes
from fairlead.telemetry import configure_logs

if TYPE_CHECKING:
    from fairlead.server import Server

DEFAULT_NAMESPACE = "default"
GRACE_S = 5.0
_NEVER = "never"
# As the reference calls them.
_LEVELS = {
    "debug": LogLevel.DEBUG,
    "info": LogLevel.INFO,
    "warn": LogLevel.WARNING,
    "error": LogLevel.ERROR,
    _NEVER: LogLevel.ERROR,
}
_FORMATS = {"text": LogFormat.CONSOLE, "pretty": LogFormat.CONSOLE, "json": LogFormat.JSON}

# Flags of the reference with nothing behind them here, by their parameters, and what is said to who gives one.
_UI = "there is no web page in this server"
_WITHOUT_EFFECT = {
    "ui_port": _UI,
    "ui_ip": _UI,
    "ui_asset_path": _UI,
    "ui_codec_endpoint": _UI,
    "ui_public_path": _UI,
    "ui_disable_news_fetch": _UI,
    "http_port": "there is no HTTP API here: use gRPC",
    "sqlite_pragma": "the store sets its own, which its durability needs",
}

_REMOTE = re.compile(r"(?P<name>[^=]+)=(?P<version>[0-9]{1,7})@(?P<address>.+)", re.ASCII)
_PORT = click.IntRange(0, 65_535)


@click.command("start-dev")
@click.option("-p", "--port", type=_PORT, default=7233, show_default=True, help="Where SDKs connect. 0: any free one.")
@click.option("--ip", default="127.0.0.1", show_default=True, metavar="IP", help="The address that it listens at.")
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
    help='A namespace to create at launch, beside "default", which always is. Any number of times.',
)
@click.option(
    "--search-attribute",
    "attributes",
    multiple=True,
    metavar="KEY=TYPE",
    help="A search attribute of these "
    f"namespaces: {', '.join(kind.value for kind in SearchAttributeType)}. Any number of times.",
)
@click.option(
    "--dynamic-config-value",
    "values",
    multiple=True,
    metavar="KEY=JSON",
    help="A dynamic setting, see `fairlead config list`. Any number of times.",
)
@click.option(
    "--journal",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write down in this folder what it does, for `fairlead pipeline`. [default: nowhere]",
)
@click.option("--journal-payloads", "has_payloads", is_flag=True, help="Of --journal: events with all that is in them.")
@click.option(
    "--cluster-name", metavar="NAME", help="Share namespaces with other clusters, which know it by this name."
)
@click.option(
    "--cluster-initial-version",
    "initial_version",
    type=int,
    default=INITIAL_VERSION_DEFAULT,
    show_default=True,
    help="Of --cluster-name: another one in each cluster, below the increment.",
)
@click.option(
    "--cluster-increment",
    "increment",
    type=int,
    default=INCREMENT_DEFAULT,
    show_default=True,
    help="Of --cluster-name: the same in all clusters.",
)
@click.option(
    "--remote-cluster",
    "remotes",
    multiple=True,
    metavar="NAME=VERSION@HOST:PORT",
    help="Another cluster: its name, its initial version, and where SDKs connect to it. Any number of times.",
)
@click.option("--metrics-port", type=_PORT, default=0, help="Where /metrics is served. [default: any free port]")
@click.option(
    "--log-level",
    type=click.Choice(list(_LEVELS)),
    default="warn",
    show_default=True,
    help="How much is logged, to standard error.",
)
@click.option(
    "--log-format",
    type=click.Choice(list(_FORMATS)),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)
@click.option("--log-config", is_flag=True, help="Print the configuration to standard error.")
@click.option("--headless", is_flag=True, help="Accepted: there is no web page to leave out.")
@click.option("--http-port", type=_PORT, help="Accepted, without effect.")
@click.option("--sqlite-pragma", multiple=True, metavar="KEY=VALUE", help="Accepted, without effect.")
@click.option("--ui-port", type=_PORT, help="Accepted, without effect, as all that begin with --ui.")
@click.option("--ui-ip", metavar="IP", hidden=True)
@click.option("--ui-asset-path", metavar="PATH", hidden=True)
@click.option("--ui-codec-endpoint", metavar="URL", hidden=True)
@click.option("--ui-public-path", metavar="PATH", hidden=True)
@click.option("--ui-disable-news-fetch", is_flag=True, default=None, hidden=True)
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
    has_payloads: bool,
    cluster_name: str | None,
    initial_version: int,
    increment: int,
    remotes: tuple[str, ...],
    metrics_port: int,
    log_level: str,
    log_format: str,
    log_config: bool,
    headless: bool,  # noqa: ARG001 - it asks for what is so anyway
    stop_with_input: bool,
    **without_effect: object,
) -> None:
    """Start a server for development: all services in one process, ready for SDKs and the `temporal` command.

    It takes the flags of `temporal server start-dev`. Everything is in memory, and lost with the process, unless
    --db-filename is given. Memory grows with what is kept: closed workflows are deleted after a day.

    \b
    fairlead server start-dev
    fairlead server start-dev --db-filename dev.db --namespace orders --search-attribute Customer=Keyword
    fairlead server start-dev --cluster-name a --remote-cluster b=2@127.0.0.1:7234
    """
    config = StaticConfig(
        frontend_listen=Address(ip, port),
        # For `fairlead admin`; nobody else needs to know where it is.
        listen=Address("127.0.0.1", 0),
        store=MemoryConfig() if db_filename is None else SqliteConfig(db_filename),
        namespaces=parse_namespaces(namespaces, attributes),
        metrics_listen=Address(ip, metrics_port),
        journal=None if journal is None else JournalConfig(journal, has_payloads),
        cluster=parse_cluster(cluster_name, initial_version, increment, remotes),
        log_level=_LEVELS[log_level],
        log_format=_FORMATS[log_format],
        grace_s=GRACE_S,
    )
    overrides = _known(parse_overrides(values))
    for name, given in without_effect.items():
        if given not in (None, ()):
            _note(f"--{name.replace('_', '-')} has no effect: {_WITHOUT_EFFECT[name]}")
    if log_config:
        for field in fields(config):
            _note(f"{field.name}: {getattr(config, field.name)}")
    configure_logs(config.log_level, config.log_format, stream=_nowhere() if log_level == _NEVER else None)
    # Who only asks for help, or gets a complaint, need not wait for it to load.
    from fairlead.cli.serving import run_server  # noqa: PLC0415
    from fairlead.server import Server  # noqa: PLC0415

    run_server(config, lambda: Server(config, overrides=overrides), banner, stops_with_input=stop_with_input)


def banner(config: StaticConfig, server: "Server") -> str:
    """What whoever started the server wants to know, with `Ready` on the last line."""
    store = f"SQLite file {config.store.file}" if isinstance(config.store, SqliteConfig) else "in memory"
    lines = {
        "Server": server.frontend_address,
        **({"Cluster": config.cluster_name} if config.cluster else {}),
        "Namespaces": ", ".join(namespace.name for namespace in config.namespaces),
        "Persistence": store,
        "Metrics": f"http://{server.metrics_address}/metrics",
        "Admin": f"fairlead admin --address {server.address} ...",
    }
    told = "\n".join(f"{what + ':':13}{value}" for what, value in lines.items())
    return f"Fairlead {__version__}\n\n{told}\n\nReady. Ctrl-C stops it."


def parse_namespaces(names: Sequence[str], attributes: Sequence[str]) -> tuple[NamespaceConfig, ...]:
    """The default namespace and those that are named, each with the search attributes, which are KEY=TYPE."""
    wanted: dict[str, Plain] = {}
    for text in attributes:
        key, separator, kind = text.partition("=")
        if not separator:
            raise click.UsageError(f"--search-attribute {text!r} is not of the form KEY=TYPE")
        if wanted.setdefault(key, kind) != kind:
            raise click.UsageError(f"--search-attribute {key} is given twice: keep one")
    try:
        found = parse_search_attributes(wanted)
        distinct = dict.fromkeys([DEFAULT_NAMESPACE, *names])
        return tuple(NamespaceConfig(_name(name), search_attributes=found) for name in distinct)
    except InvalidValue as wrong:
        raise click.UsageError(f"--search-attribute {wrong}") from wrong


def parse_cluster(
    name: str | None, initial_version: int, increment: int, remotes: Sequence[str]
) -> ClusterConfig | None:
    """The cluster that is named, and the others, which are NAME=VERSION@HOST:PORT."""
    if name is None:
        if remotes:
            raise click.UsageError("--remote-cluster is given without --cluster-name: name this cluster, too")
        return None
    found: dict[str, RemoteClusterConfig] = {}
    for text in remotes:
        match = _REMOTE.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--remote-cluster {text!r} is not of the form NAME=VERSION@HOST:PORT")
        if match["name"] in found:
            raise click.UsageError(f"--remote-cluster {match['name']} is given twice: keep one")
        address = _parsed(f"--remote-cluster {text!r}: the address", match["address"], parse_remote_address)
        remote_name = _parsed(f"--remote-cluster {text!r}: the name", match["name"], parse_cluster_name)
        found[remote_name] = RemoteClusterConfig(int(match["version"]), address)
    try:
        checked = _parsed(f"--cluster-name {name!r}", name, parse_cluster_name)
        return ClusterConfig(checked, initial_version, increment, found)
    except InvalidClusters as wrong:
        raise click.UsageError(str(wrong)) from wrong


def _parsed(what: str, text: str, parse: Callable[[Plain], str]) -> str:
    try:
        return parse(text)
    except InvalidValue as wrong:
        raise click.UsageError(f"{what} {wrong}") from wrong


def _name(name: str) -> str:
    try:
        return parse_namespace_name(name)
    except InvalidValue as wrong:
        raise click.UsageError(f"--namespace {name!r} {wrong}") from wrong


def _known(overrides: dict[str, Plain]) -> dict[str, Plain]:
    """Those that are settings here. Scripts for the reference give its own, most of which have no meaning here."""
    known: dict[str, Plain] = {}
    for key, value in overrides.items():
        try:
            SETTINGS.find(key)
        except UnknownSetting as unknown:
            _note(f"--dynamic-config-value {key} has no effect: {unknown}")
        else:
            known[key] = value
    return known


def _note(line: str) -> None:
    click.echo(line, err=True)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the process lives
