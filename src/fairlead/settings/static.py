"""What a process is told once, at its start: where it listens, which store it uses, how it stops.

    frontend: {listen: 127.0.0.1:7233}
    listen: 127.0.0.1:7240
    store: {sqlite: {file: fairlead.db}}

Every key has a default that works on a laptop, so that no file is needed there. Keys may be in any case of letters,
with or without underscores. Names of files are taken from the folder of the configuration file. All that is wrong is
told at once. What may change while the process runs is a dynamic setting, and not here.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from fairlead.settings.document import Unreadable, read_document
from fairlead.settings.kinds import Bool, Choice, Duration, Int, Plain
from fairlead.settings.problem import InvalidSettings, InvalidValue, Problem
from fairlead.settings.section import Section
from fairlead.settings.source import read_file
from fairlead.settings.static_clusters import NAME_DEFAULT, ClusterConfig, RemoteClusterConfig, read_cluster
from fairlead.settings.static_namespaces import NamespaceConfig, SearchAttributeType, parse_namespaces
from fairlead.settings.static_store import (
    MemoryConfig,
    PostgresConfig,
    SqliteConfig,
    StoreConfig,
    parse_file_name,
    read_store,
)

__all__ = [
    "DEFAULTS",
    "Address",
    "ClusterConfig",
    "JournalConfig",
    "LogFormat",
    "LogLevel",
    "MemoryConfig",
    "NamespaceConfig",
    "PostgresConfig",
    "RemoteClusterConfig",
    "Role",
    "SearchAttributeType",
    "SqliteConfig",
    "StaticConfig",
    "StoreConfig",
    "load_config",
    "parse_address",
    "parse_remote_address",
]

PORT_MAX = 65_535
HOST_CHARACTERS_MAX = 253
SHARDS_MAX = 16_384
# How many parts the workflows are divided into, where nobody says it: a file has one owner, a database many.
SHARDS_OF_ONE_HOST = 4
SHARDS_OF_MANY_HOSTS = 512

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


class Address(NamedTuple):
    """Where something listens; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_every_interface(self) -> bool:
        """Whether it stands for all addresses of a machine, so that nobody can call it."""
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
    """How much is logged: this, and what is worse."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a line of the log is written: for people, for programs, or as fits where it goes."""

    AUTO = "auto"
    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Where a process writes down what it does; `has_payloads`: events with all that is in them."""

    folder: Path
    has_payloads: bool = False


@dataclass(frozen=True, slots=True)
class StaticConfig:
    """All that a process is told at its start.

    `frontend_listen` is where SDKs connect, `listen` where the other hosts do. `name` is what these call this one by;
    None: the address that it listens at. `hand_over_s` is how long a host that stops goes on answering when it has left
    the ring, `grace_s` how long after that what it began may take.
    `journal` is None where none is kept, `cluster` where this one shares no namespaces with others.
    `history_shards` is fixed by the first start on a store; None: what was fixed, or else what suits the store.
    """

    frontend_listen: Address = _FRONTEND_LISTEN
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

    @property
    def cluster_name(self) -> str:
        """What namespaces, and the folder of the journal, know this cluster by."""
        return NAME_DEFAULT if self.cluster is None else self.cluster.name

    @property
    def shards_at_first(self) -> int:
        """How many shards a store gets that has none yet."""
        if self.history_shards is not None:
            return self.history_shards
        return SHARDS_OF_MANY_HOSTS if isinstance(self.store, PostgresConfig) else SHARDS_OF_ONE_HOST


DEFAULTS = StaticConfig()


def load_config(file: Path, environment: Mapping[str, str]) -> StaticConfig:
    """Read a configuration file; raise `InvalidSettings` with all that is wrong with it."""
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
    raise InvalidValue("is no address: write it as HOST:PORT, an IPv6 address in brackets, as in [::1]:PORT")


def _read(root: Section, folder: Path, environment: Mapping[str, str]) -> StaticConfig:
    frontend, history, dynamic, metrics, log, stop, journal = sections = [
        root.section(key) for key in ("frontend", "history", "dynamicConfig", "metrics", "log", "stop", "journal")
    ]
    dynamic_file = dynamic.value("file", parse_file_name, None)
    config = StaticConfig(
        frontend_listen=frontend.value("listen", parse_address, DEFAULTS.frontend_listen),
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
        journal=_read_journal(journal, folder),
        cluster=read_cluster(root.section("cluster"), parse_remote_address),
    )
    if config.listen.is_every_interface and not root.given("name"):
        root.complain_of(
            "listen",
            f": {config.listen} is every address of this machine, and none that other hosts can call: "
            "give `name`, the HOST:PORT by which they reach it",
        )
    for section in (*sections, root):
        section.close()
    return config


def _read_journal(journal: Section, folder: Path) -> JournalConfig | None:
    name = journal.value("folder", parse_file_name, None)
    has_payloads = journal.value("payloads", Bool().parse, default=False)
    if name is None:
        if journal.given("payloads"):
            journal.complain_of("payloads", " has no effect without journal.folder: give that as well")
        return None
    return JournalConfig(folder / name, has_payloads)


def _parse_name(raw: Plain) -> Address:
    name = parse_address(raw)
    if name.port == 0 or name.is_every_interface:
        raise InvalidValue("is no address that other hosts can call: give HOST:PORT as they reach it")
    return name


def parse_remote_address(raw: Plain) -> str:
    """Read HOST:PORT at which another cluster's frontend is."""
    return str(_parse_name(raw))


def _parse_roles(raw: Plain) -> frozenset[Role]:
    if not isinstance(raw, list) or not raw:
        raise InvalidValue("is no list of roles: write roles: [frontend, history, matching]")
    roles = frozenset(Choice(Role).parse(item) for item in raw)
    if Role.HISTORY in roles and Role.MATCHING not in roles:
        raise InvalidValue("has history without matching, which go together: write roles: [history, matching]")
    if roles == {Role.FRONTEND, Role.MATCHING}:
        raise InvalidValue("has no history beside matching: add it, or write roles: [frontend]")
    return roles


def _is_host(text: str) -> bool:
    return len(text) <= HOST_CHARACTERS_MAX and _HOST.fullmatch(text) is not None


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
