"""Runs the server of `fairlead server start-dev`: its configuration from flags, and what it prints."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple, TextIO

import click

from fairlead.cli.server_runner import run_server
from fairlead.cli.start_dev import DEFAULT_NAMESPACE
from fairlead.core.errors import FairleadError
from fairlead.core.versions import InvalidClusters
from fairlead.server.addresses import check_free
from fairlead.server.process import Server
from fairlead.settings import SETTINGS, InvalidValue, Plain, SettingWithoutEffect, UnknownSetting, parse_overrides
from fairlead.settings.dynamic.registry import shortened
from fairlead.settings.static.clusters import parse_cluster_name
from fairlead.settings.static.config import (
    Address,
    ClusterConfig,
    HttpConfig,
    JournalConfig,
    JournalPayloads,
    LogFormat,
    LogLevel,
    MemoryConfig,
    NamespaceConfig,
    RemoteClusterConfig,
    SecurityConfig,
    SqliteConfig,
    StaticConfig,
    UiConfig,
    parse_remote_address,
)
from fairlead.settings.static.namespaces import parse_namespace_name, parse_search_attributes
from fairlead.settings.static.ui import parse_codec_endpoint, parse_public_path
from fairlead.telemetry import configure_logs
from fairlead.ui.cache import fetched_pages

# Maximum number of settings without effect that are printed by name; of the others, only the number is printed.
UNKNOWN_NAMED_MAX = 20
# Maximum length of a key that is compared with the names of settings: longer keys would take too long.
KEY_CHARACTERS_MAX = 100
GRACE_S = 5.0
# The port of the web page is that for SDKs plus this, as in Temporal's development server.
UI_PORT_ABOVE = 1_000
PORT_MAX = 65_535
_NEVER = "never"
# Names of the log levels in Temporal's CLI.
_LEVELS = {
    "debug": LogLevel.DEBUG,
    "info": LogLevel.INFO,
    "warn": LogLevel.WARNING,
    "error": LogLevel.ERROR,
    _NEVER: LogLevel.ERROR,
}
_FORMATS = {"text": LogFormat.CONSOLE, "pretty": LogFormat.CONSOLE, "json": LogFormat.JSON}

# Keys of the configuration file, with the flag of this command that sets each.
_FLAGS = {
    "frontend.listen": "--port",
    "frontend.listen.host": "--ip",
    "frontend.http.listen": "--http-port",
    "frontend.http.listen.host": "--ip",
    "ui.listen": "--ui-port",
    "ui.listen.host": "--ui-ip",
    "metrics.listen": "--metrics-port",
    "metrics.listen.host": "--ip",
    "journal.folder": "--journal",
}
# Similarity (0 to 1) from which an unknown key is taken for a misspelling of a setting.
_LIKENESS_MIN = 0.9

_REMOTE = re.compile(r"(?P<name>[^=]+)=(?P<version>[0-9]{1,7})@(?P<address>.+)", re.ASCII)


class UiFlags(NamedTuple):
    """Flags of the web page; None if a flag is not given."""

    port: int | None
    ip: str | None
    asset_path: Path | None
    codec_endpoint: str | None
    public_path: str | None
    lake: Path | None = None


def run_dev(
    *,
    port: int,
    ip: str,
    db_filename: Path | None,
    namespaces: Sequence[str],
    attributes: Sequence[str],
    values: Sequence[str],
    journal: Path | None,
    journal_payloads: str,
    cluster_name: str | None,
    initial_version: int,
    increment: int,
    remotes: Sequence[str],
    http_port: int,
    metrics_port: int,
    log_level: str,
    log_format: str,
    log_config: bool,
    ui: UiFlags | None,
    is_insecure: bool,
    stop_with_input: bool,
    without_effect: Mapping[str, str],
) -> None:
    """Run the server that the flags describe; `without_effect` maps flags that change nothing to the reason."""
    config = StaticConfig(
        frontend_listen=Address(ip, port),
        http=HttpConfig(Address(ip, http_port)),
        ui=None if ui is None else parse_ui(ui, ip=ip, port=port),
        # Any free port: only `fairlead admin` uses it.
        listen=Address("127.0.0.1", 0),
        store=MemoryConfig() if db_filename is None else SqliteConfig(db_filename),
        namespaces=parse_namespaces(namespaces, attributes),
        metrics_listen=Address(ip, metrics_port),
        journal=None if journal is None else JournalConfig(journal, JournalPayloads(journal_payloads)),
        cluster=parse_cluster(cluster_name, initial_version, increment, remotes),
        log_level=_LEVELS[log_level],
        log_format=_FORMATS[log_format],
        grace_s=GRACE_S,
        security=SecurityConfig(is_insecure=is_insecure),
        flags=_FLAGS,
    )
    overrides = _known(parse_overrides(values))
    for reason in dict.fromkeys(without_effect.values()):
        flags = [flag for flag, its_reason in without_effect.items() if its_reason == reason]
        _note(f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect: {reason}")
    if log_config:
        for field in fields(config):
            _note(f"{field.name}: {getattr(config, field.name)}")
    configure_logs(config.log_level, config.log_format, stream=_nowhere() if log_level == _NEVER else None)
    run_server(config, lambda: Server(config, overrides=overrides), banner, stops_with_input=stop_with_input)


def banner(config: StaticConfig, server: Server) -> str:
    """The addresses and settings that are printed at the start, with `Ready` on the last line."""
    store = f"SQLite file {config.store.file}" if isinstance(config.store, SqliteConfig) else "in memory"
    lines = {
        "Server": server.frontend_address,
        **({"Cluster": config.cluster_name} if config.cluster else {}),
        "Namespaces": ", ".join(namespace.name for namespace in config.namespaces),
        "Persistence": store,
        **({} if server.ui_address is None else _web_lines(config, server.ui_address)),
        "HTTP API": f"http://{server.http_address}",
        "Metrics": f"http://{server.metrics_address}/metrics",
        "Admin": f"fairlead admin --address {server.address} ...",
    }
    reported = "\n".join(f"{what + ':':13}{value}" for what, value in lines.items())
    return f"\n{reported}\n\nReady. Ctrl-C stops it."


def _web_lines(config: StaticConfig, address: str) -> dict[str, str]:
    ui = config.ui
    base = f"http://{address}{'' if ui is None else ui.public_path}"
    hint = "" if ui is None or ui.asset_path or fetched_pages() else " (`fairlead ui fetch` gets Temporal's pages)"
    return {"Console": f"{base}/console/", "Web UI": f"{base}{hint}"}


def parse_ui(flags: UiFlags, *, ip: str, port: int) -> UiConfig:
    """Make the configuration of the web page; `ip` and `port` are those for SDKs."""
    host = flags.ip or ip
    if flags.asset_path is not None and not (flags.asset_path / "index.html").is_file():
        raise click.UsageError(
            f"--ui-asset-path {flags.asset_path}: there is no index.html; give a folder of built pages, "
            "or none after `fairlead ui fetch`"
        )
    return UiConfig(
        host,
        _default_ui_port(host, port) if flags.port is None else flags.port,
        flags.asset_path,
        _parsed("--ui-public-path", flags.public_path or "", parse_public_path),
        _parsed("--ui-codec-endpoint", flags.codec_endpoint, parse_codec_endpoint) if flags.codec_endpoint else "",
        flags.lake,
    )


def _default_ui_port(host: str, port: int) -> int:
    """The port of Temporal's development server, if it is free; else any free port, which the banner shows."""
    wanted = port + UI_PORT_ABOVE
    if port == 0 or wanted > PORT_MAX:
        return 0
    try:
        check_free(Address(host, wanted), key="--ui-port")
    except FairleadError:
        return 0
    return wanted


def parse_namespaces(names: Sequence[str], attributes: Sequence[str]) -> tuple[NamespaceConfig, ...]:
    """Make the default namespace and the named ones; each gets all search attributes, given as KEY=TYPE."""
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
    """Make the configuration of the named cluster; `remotes` are given as NAME=VERSION@HOST:PORT."""
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
    """Return the overrides that are settings of this server; print the names of the others, which are for Temporal's
    server.
    """
    known: dict[str, Plain] = {}
    unknown: list[str] = []
    for key, value in overrides.items():
        try:
            SETTINGS.find(key)
        except SettingWithoutEffect:
            unknown.append(key)
        except UnknownSetting:
            unknown.append(key + _suggestion(key))
        else:
            known[key] = value
    if unknown:
        verb = "has" if len(unknown) == 1 else "have"
        names = ", ".join(shortened(key).strip("'") for key in unknown[:UNKNOWN_NAMED_MAX])
        more = len(unknown) - UNKNOWN_NAMED_MAX
        names += f" and {more} more" if more > 0 else ""
        _note(f"--dynamic-config-value {names} {verb} no effect here: see `fairlead config list` and docs/settings.md")
    return known


def _suggestion(key: str) -> str:
    spellings = {spelling.lower(): spelling for setting in SETTINGS for spelling in setting.spellings}
    if len(key) > KEY_CHARACTERS_MAX:
        return ""
    nearest = get_close_matches(key.lower(), spellings, n=1, cutoff=_LIKENESS_MIN)
    return f" (did you mean {spellings[nearest[0]]}?)" if nearest else ""


def _note(line: str) -> None:
    click.echo(line, err=True)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the process lives
