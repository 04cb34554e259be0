"""What a process is told once, at its start: where it listens, which store it uses, how it stops.

    listen: 127.0.0.1:7240
    store: {sqlite: {file: fairlead.db}}

Every key has a default that works on a laptop, so that no file is needed there. Keys may be in any case of letters,
with or without underscores. Names of files are taken from the folder of the configuration file. All that is wrong is
told at once. What may change while the process runs is a dynamic setting, and not here.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from fairlead.settings.document import Unreadable, read_document
from fairlead.settings.kinds import Choice, Duration, Plain
from fairlead.settings.problem import InvalidSettings, InvalidValue, Problem
from fairlead.settings.section import Section
from fairlead.settings.source import read_file

PORT_MAX = 65_535
HOST_CHARACTERS_MAX = 253
FILE_NAME_CHARACTERS_MAX = 4_096
SECRET_CHARACTERS_MAX = 16_384

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_DSN_WITH_PASSWORD = re.compile(r"\bpassword\s*=|://[^/?#]*:[^/?#]*@", re.IGNORECASE)


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


_LISTEN = Address("127.0.0.1", 7240)


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
class SqliteConfig:
    """One file, which one process at a time can have open."""

    file: Path


@dataclass(frozen=True, slots=True)
class PostgresConfig:
    """A database that many hosts share. How to connect to it may have a password in it, so it is never shown."""

    dsn: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Nothing outlives the process."""


StoreConfig = SqliteConfig | PostgresConfig | MemoryConfig


@dataclass(frozen=True, slots=True)
class StaticConfig:
    """All that a process is told at its start.

    `name` is what other hosts call this one by; None: the address that it listens at. `hand_over_s` is how long a host
    that stops goes on answering when it has left the ring, `grace_s` how long after that what it began may take.
    """

    listen: Address = _LISTEN
    name: Address | None = None
    roles: frozenset[Role] = frozenset({Role.MATCHING})
    store: StoreConfig = SqliteConfig(Path("fairlead.db"))
    dynamic_file: Path | None = None
    dynamic_poll_interval_s: float = 10.0
    metrics_listen: Address | None = None
    log_level: LogLevel = LogLevel.INFO
    log_format: LogFormat = LogFormat.AUTO
    hand_over_s: float = 2.0
    grace_s: float = 30.0


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
    raise InvalidValue("is no address: write it like 127.0.0.1:7240, host.example:7240 or [::1]:7240")


def _read(root: Section, folder: Path, environment: Mapping[str, str]) -> StaticConfig:
    dynamic, metrics, log, stop = (root.section(key) for key in ("dynamicConfig", "metrics", "log", "stop"))
    dynamic_file = dynamic.value("file", _parse_file_name, None)
    config = StaticConfig(
        listen=root.value("listen", parse_address, DEFAULTS.listen),
        name=root.value("name", _parse_name, None),
        roles=root.value("roles", _parse_roles, DEFAULTS.roles),
        store=_read_store(root.section("store"), folder, environment),
        dynamic_file=folder / dynamic_file if dynamic_file else None,
        dynamic_poll_interval_s=dynamic.value(
            "pollInterval", Duration(1.0, 3600.0).parse, DEFAULTS.dynamic_poll_interval_s
        ),
        metrics_listen=metrics.value("listen", parse_address, None),
        log_level=log.value("level", Choice(LogLevel).parse, DEFAULTS.log_level),
        log_format=log.value("format", Choice(LogFormat).parse, DEFAULTS.log_format),
        hand_over_s=stop.value("handOver", Duration(0.0, 600.0).parse, DEFAULTS.hand_over_s),
        grace_s=stop.value("grace", Duration(0.0, 3600.0).parse, DEFAULTS.grace_s),
    )
    if config.listen.is_every_interface and not root.given("name"):
        root.complain_of(
            "listen",
            f": {config.listen} is every address of this machine, and none that other hosts can call: "
            "give `name`, the HOST:PORT by which they reach it",
        )
    for section in (dynamic, metrics, log, stop, root):
        section.close()
    return config


def _read_store(store: Section, folder: Path, environment: Mapping[str, str]) -> StoreConfig:
    kinds = store.given("sqlite", "postgres", "memory")
    if len(kinds) > 1:
        store.complain_of(kinds[1], f" is a second store, beside {kinds[0]}: keep one")
    sqlite, postgres, memory = (store.section(kind) for kind in ("sqlite", "postgres", "memory"))
    file = sqlite.value("file", _parse_file_name, "fairlead.db")
    found: StoreConfig = SqliteConfig(folder / file)
    if "postgres" in kinds:
        found = PostgresConfig(_read_dsn(store, postgres, folder, environment))
    elif "memory" in kinds:
        found = MemoryConfig()
    for section in (sqlite, postgres, memory, store):
        section.close()
    return found


def _read_dsn(store: Section, postgres: Section, folder: Path, environment: Mapping[str, str]) -> str:
    ways = postgres.given("dsn", "dsnEnv", "dsnFile")
    if len(ways) > 1:
        postgres.complain_of(ways[1], f" is given beside {ways[0]}: keep one")
    elif not ways:
        store.complain_of("postgres", " has no dsn: give dsn, dsnEnv (a variable's name) or dsnFile (a file's name)")

    def from_environment(raw: Plain) -> str:
        if not isinstance(raw, str) or not raw:
            raise InvalidValue("is no name of an environment variable")
        if not environment.get(raw):
            raise InvalidValue("is not set in the environment: set it to how to connect to it")
        return environment[raw]

    def from_file(raw: Plain) -> str:
        file = folder / _parse_file_name(raw)
        try:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(SECRET_CHARACTERS_MAX + 1).strip()
        except (OSError, UnicodeDecodeError) as refused:
            reason = refused.strerror if isinstance(refused, OSError) else "it is not UTF-8 text"
            raise InvalidValue(f"can't be read: {reason}") from refused
        if not 0 < len(text) <= SECRET_CHARACTERS_MAX:
            raise InvalidValue("is empty or too long: it holds how to connect to PostgreSQL, and nothing else")
        return text

    return (
        postgres.value("dsn", _parse_dsn, "", is_secret=True)
        or postgres.value("dsnEnv", from_environment, "")
        or postgres.value("dsnFile", from_file, "")
    )


def _parse_dsn(raw: Plain) -> str:
    if not isinstance(raw, str) or not raw:
        raise InvalidValue('is no text that says how to connect: write it like "host=10.0.0.5 dbname=fairlead"')
    if _DSN_WITH_PASSWORD.search(raw):
        raise InvalidValue(
            "has a password in it, which does not belong in this file: "
            "use dsnEnv or dsnFile, or leave the password to PGPASSWORD or ~/.pgpass"
        )
    return raw


def _parse_name(raw: Plain) -> Address:
    name = parse_address(raw)
    if name.port == 0 or name.is_every_interface:
        raise InvalidValue("is no address that other hosts can call: give HOST:PORT as they reach it")
    return name


def _parse_roles(raw: Plain) -> frozenset[Role]:
    if not isinstance(raw, list) or not raw:
        raise InvalidValue("is no list of roles: write roles: [matching]")
    roles = frozenset(Choice(Role).parse(item) for item in raw)
    missing = sorted(roles - {Role.MATCHING})
    if missing:
        raise InvalidValue(f"names {' and '.join(missing)}, not in this release: write roles: [matching]")
    return roles


def _parse_file_name(raw: Plain) -> str:
    if not isinstance(raw, str) or not 0 < len(raw) <= FILE_NAME_CHARACTERS_MAX or "\0" in raw:
        raise InvalidValue("is no name of a file")
    return raw


def _is_host(text: str) -> bool:
    return len(text) <= HOST_CHARACTERS_MAX and _HOST.fullmatch(text) is not None


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
