"""Static configuration of a process: the addresses on which it listens, its store, how it stops.

    frontend: {listen: 127.0.0.1:7233}
    listen: 127.0.0.1:7240
    store: {sqlite: {file: fairlead.db}}

Every key has a default that works on a laptop, so that no file is needed there. Keys are case-insensitive, with or
without underscores. File names are relative to the folder of the configuration file. All errors are reported at once.
Values that can change while the process runs are dynamic settings.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from fairlead.settings.document import Unreadable, read_document
from fairlead.settings.dynamic.kinds import Choice, Duration, Int, Plain, Texts
from fairlead.settings.dynamic.source import read_file
from fairlead.settings.problem import InvalidSettings, InvalidValue, Problem
from fairlead.settings.static.clusters import NAME_DEFAULT, ClusterConfig, RemoteClusterConfig, read_cluster
from fairlead.settings.static.journal import JournalConfig, JournalPayloads, read_journal
from fairlead.settings.static.namespaces import NamespaceConfig, SearchAttributeType, parse_namespaces
from fairlead.settings.static.section import Section
from fairlead.settings.static.security import SecurityConfig, read_security
from fairlead.settings.static.store import (
    MemoryConfig,
    PostgresConfig,
    SqliteConfig,
    StoreConfig,
    parse_file_name,
    read_store,
)
from fairlead.settings.static.tls import ServerTls, read_server_tls
from fairlead.settings.static.ui import UiConfig, read_ui

__all__ = [
    "DEFAULTS",
    "Address",
    "ClusterConfig",
    "HttpConfig",
    "JournalConfig",
    "JournalPayloads",
    "LogFormat",
    "LogLevel",
    "MemoryConfig",
    "NamespaceConfig",
    "PostgresConfig",
    "RemoteClusterConfig",
    "Role",
    "SearchAttributeType",
    "SecurityConfig",
    "SqliteConfig",
    "StaticConfig",
    "StoreConfig",
    "UiConfig",
    "load_config",
    "parse_address",
    "parse_remote_address",
]

PORT_MAX = 65_535
HOST_CHARACTERS_MAX = 253
SHARDS_MAX = 16_384
# Default numbers of history shards: of a store in a file, which one host uses, and of a database, which many share.
SHARDS_OF_ONE_HOST = 4
SHARDS_OF_MANY_HOSTS = 512

_FORWARDED_HEADERS = Texts(items_max=50, characters_max=100)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


class Address(NamedTuple):
    """Address to listen on; port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_every_interface(self) -> bool:
        """Whether the address stands for all addresses of a machine, so that it can't be called."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False


_FRONTEND_LISTEN = Address("127.0.0.1", 7233)
_LISTEN = Address("127.0.0.1", 7240)
_STORE = SqliteConfig(Path("fairlead.db"))


class Role(StrEnum):
    """The services that a process can run."""

    FRONTEND = "frontend"
    HISTORY = "history"
    MATCHING = "matching"


class LogLevel(StrEnum):
    """Lowest severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Format of log lines: for people, for programs, or chosen by whether the output is a terminal."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Where the HTTP API listens, and the headers that it forwards beyond the usual ones; `*` ends a prefix."""

    listen: Address
    forwarded_headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StaticConfig:
    """The configuration of a process, fixed at its start.

    SDKs connect to `frontend_listen`, other hosts to `listen`. `name` is the address that other hosts use; None: the
    address of `listen`. `hand_over_s` is the time for which a stopping host still answers after it has left the ring;
    `grace_s` is the time that its open calls have after that.
    Without an HTTP API, a web page, a journal or remote clusters, `http`, `ui`, `journal` or `cluster` has no value.
    `history_shards` is fixed by the first start on a store; None means the fixed number, or the default of the store.
    `flags` maps keys that were set by a flag to that flag, for messages: see `spelled`.
    """

    frontend_listen: Address = _FRONTEND_LISTEN
    http: HttpConfig | None = None
    ui: UiConfig | None = None
    listen: Address = _LISTEN
    name: Address | None = None
    roles: frozenset[Role] = frozenset(Role)
    store: StoreConfig = _STORE
    history_shards: int | None = None
    namespaces: tuple[NamespaceConfig, ...] = (NamespaceConfig("default"),)
    dynamic_file: Path | None = None
    dynamic_poll_interval_s: float = 10.0
    metrics_listen: Address | None = None
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.AUTO
    hand_over_s: float = 2.0
    grace_s: float = 30.0
    journal: JournalConfig | None = None
    cluster: ClusterConfig | None = None
    security: SecurityConfig = field(default_factory=SecurityConfig)
    metrics_tls: ServerTls = field(default_factory=ServerTls)
    flags: Mapping[str, str] = field(default_factory=dict)

    def spelled(self, key: str) -> str:
        """Flag that set a key such as `frontend.listen`, or the key itself, for messages."""
        return self.flags.get(key, key)

    @property
    def cluster_name(self) -> str:
        """Name of this cluster in namespaces and in the journal's folder."""
        return NAME_DEFAULT if self.cluster is None else self.cluster.name

    @property
    def shards_at_first(self) -> int:
        """Number of shards for a new store."""
        if self.history_shards is not None:
            return self.history_shards
        return SHARDS_OF_MANY_HOSTS if isinstance(self.store, PostgresConfig) else SHARDS_OF_ONE_HOST


DEFAULTS = StaticConfig()


def load_config(file: Path, environment: Mapping[str, str]) -> StaticConfig:
    """Read a configuration file; raise `InvalidSettings` with all its errors."""
    content, problems = read_file(file)
    if content is None:
        raise InvalidSettings(str(file), problems)
    try:
        root = read_document(content)
    except Unreadable as wrong:
        raise InvalidSettings(str(file), [wrong.problem]) from wrong
    found: list[Problem] = []
    config = _read(Section(root, "", found), file.parent, environment)
    if found:
        raise InvalidSettings(str(file), sorted(found, key=lambda problem: problem.line or 0))
    return config


def parse_address(raw: Plain) -> Address:
    """Read HOST:PORT; an IPv6 address is in brackets, as in [::1]:7240."""
    if isinstance(raw, str):
        host, _, port = raw.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        if _is_ipv6(host[1:-1]) if is_bracketed else _is_host(host):
            if port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= PORT_MAX:
                return Address(host[1:-1] if is_bracketed else host, int(port))
            raise InvalidValue(f"has no port from 0 to {PORT_MAX} after its last colon")
    raise InvalidValue("is not an address: write it as HOST:PORT, an IPv6 address in brackets, as in [::1]:PORT")


def _read(root: Section, folder: Path, environment: Mapping[str, str]) -> StaticConfig:
    frontend, history, dynamic, metrics, log, stop, journal = sections = [
        root.section(key) for key in ("frontend", "history", "dynamicConfig", "metrics", "log", "stop", "journal")
    ]
    dynamic_file = dynamic.value("file", parse_file_name, None)
    config = StaticConfig(
        frontend_listen=frontend.value("listen", parse_address, DEFAULTS.frontend_listen),
        http=_read_http(frontend.section("http")),
        ui=read_ui(root.section("ui"), folder, parse_address),
        listen=root.value("listen", parse_address, DEFAULTS.listen),
        name=root.value("name", _parse_name, None),
        roles=root.value("roles", _parse_roles, DEFAULTS.roles),
        store=read_store(root.section("store"), folder, environment),
        history_shards=history.value("shards", Int(1, SHARDS_MAX).parse, None),
        namespaces=root.value("namespaces", parse_namespaces, DEFAULTS.namespaces),
        dynamic_file=folder / dynamic_file if dynamic_file else None,
        dynamic_poll_interval_s=dynamic.value(
            "pollInterval", Duration(1.0, 3600.0).parse, DEFAULTS.dynamic_poll_interval_s
        ),
        metrics_listen=metrics.value("listen", parse_address, None),
        log_level=log.value("level", Choice(LogLevel).parse, DEFAULTS.log_level),
        log_format=log.value("format", Choice(LogFormat).parse, DEFAULTS.log_format),
        hand_over_s=stop.value("handOver", Duration(0.0, 600.0).parse, DEFAULTS.hand_over_s),
        grace_s=stop.value("grace", Duration(0.0, 3600.0).parse, DEFAULTS.grace_s),
        journal=read_journal(journal, folder),
        cluster=read_cluster(root.section("cluster"), parse_remote_address, folder),
        security=read_security(root, folder, environment),
        metrics_tls=read_server_tls(metrics.section("tls"), folder),
    )
    if config.listen.is_every_interface and not root.given("name"):
        root.complain_of(
            "listen",
            f": {config.listen} is every address of this machine, so other hosts can't call it: "
            "give `name`, the HOST:PORT by which they reach it",
        )
    _check_security(root, config)
    for section in (*sections, root):
        section.close()
    return config


def _read_http(http: Section) -> HttpConfig | None:
    listen = http.value("listen", parse_address, None)
    none: tuple[str, ...] = ()
    headers = http.value("forwardedHeaders", _FORWARDED_HEADERS.parse, none)
    if listen is None and headers:
        http.complain_of("forwardedHeaders", " is given without listen: give the address of the HTTP API, too")
    http.close()
    return None if listen is None else HttpConfig(listen, headers)


def _check_security(root: Section, config: StaticConfig) -> None:
    """Report a configuration with which hosts could not call each other, or anybody could call them."""
    security = config.security
    if security.authorization.is_on and isinstance(config.store, PostgresConfig) and not security.guards_hosts:
        root.section("global").complain_here(
            "has an authorizer, but hosts can't prove that they belong to the cluster: give internode.secretFile, or "
            "tls.internode.server with requireClientAuth"
        )


def _parse_name(raw: Plain) -> Address:
    name = parse_address(raw)
    if name.port == 0 or name.is_every_interface:
        raise InvalidValue("is not an address that other hosts can call: give HOST:PORT as they reach it")
    return name


def parse_remote_address(raw: Plain) -> str:
    """Read HOST:PORT of another cluster's frontend."""
    return str(_parse_name(raw))


def _parse_roles(raw: Plain) -> frozenset[Role]:
    if not isinstance(raw, list) or not raw:
        raise InvalidValue("is not a list of roles: write roles: [frontend, history, matching]")
    roles = frozenset(Choice(Role).parse(item) for item in raw)
    if Role.HISTORY in roles and Role.MATCHING not in roles:
        raise InvalidValue("has history without matching, but they go together: write roles: [history, matching]")
    if roles == {Role.FRONTEND, Role.MATCHING}:
        raise InvalidValue("has frontend and matching without history: add history, or write roles: [frontend]")
    return roles


def _is_host(text: str) -> bool:
    return len(text) <= HOST_CHARACTERS_MAX and _HOST.fullmatch(text) is not None


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
