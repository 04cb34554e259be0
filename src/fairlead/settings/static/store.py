"""Section `store` of the static configuration: the kind of store, and its file or connection."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.settings.dynamic.kinds import Plain
from fairlead.settings.problem import InvalidValue
from fairlead.settings.static.section import Section

FILE_NAME_CHARACTERS_MAX = 4_096
SECRET_CHARACTERS_MAX = 16_384

_DSN_WITH_PASSWORD = re.compile(r"\bpassword\s*=|://[^/?#]*:[^/?#]*@", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SqliteConfig:
    """A store in one file, which one process at a time can open."""

    file: Path


@dataclass(frozen=True, slots=True)
class PostgresConfig:
    """A database that many hosts share. The connection string may contain a password, so it is never shown."""

    dsn: str = field(repr=False)
    # The file that has the connection string; None if it was given in another way.
    dsn_file: Path | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """A store in memory, lost when the process ends."""


StoreConfig = SqliteConfig | PostgresConfig | MemoryConfig


def read_store(store: Section, folder: Path, environment: Mapping[str, str]) -> StoreConfig:
    """Read the section `store`; file names are relative to `folder`."""
    kinds = store.given("sqlite", "postgres", "memory")
    if len(kinds) > 1:
        store.complain_of(kinds[1], f" is a second store, beside {kinds[0]}: keep one")
    sqlite, postgres, memory = (store.section(kind) for kind in ("sqlite", "postgres", "memory"))
    file = sqlite.value("file", parse_file_name, "fairlead.db")
    found: StoreConfig = SqliteConfig(folder / file)
    if "postgres" in kinds:
        found = _read_postgres(store, postgres, folder, environment)
    elif "memory" in kinds:
        found = MemoryConfig()
    for section in (sqlite, postgres, memory, store):
        section.close()
    return found


def _read_postgres(store: Section, postgres: Section, folder: Path, environment: Mapping[str, str]) -> PostgresConfig:
    files: list[Path] = []
    ways = postgres.given("dsn", "dsnEnv", "dsnFile")
    if len(ways) > 1:
        postgres.complain_of(ways[1], f" is given beside {ways[0]}: keep one")
    elif not ways:
        store.complain_of("postgres", " has no dsn: give dsn, dsnEnv (a variable's name) or dsnFile (a file's name)")

    def from_environment(raw: Plain) -> str:
        if not isinstance(raw, str) or not raw:
            raise InvalidValue("is not the name of an environment variable")
        if not environment.get(raw):
            raise InvalidValue("is not set in the environment: set it to the connection string")
        return environment[raw]

    def from_file(raw: Plain) -> str:
        file = folder / parse_file_name(raw)
        files.append(file)
        try:
            with file.open(encoding="utf-8") as opened:
                text = opened.read(SECRET_CHARACTERS_MAX + 1).strip()
        except (OSError, UnicodeDecodeError) as refused:
            reason = refused.strerror if isinstance(refused, OSError) else "it is not UTF-8 text"
            raise InvalidValue(f"can't be read: {reason}") from refused
        if not 0 < len(text) <= SECRET_CHARACTERS_MAX:
            raise InvalidValue("is empty or too long: it must hold only the connection string of PostgreSQL")
        return text

    dsn = (
        postgres.value("dsn", _parse_dsn, "", is_secret=True)
        or postgres.value("dsnEnv", from_environment, "")
        or postgres.value("dsnFile", from_file, "")
    )
    return PostgresConfig(dsn, files[0] if files else None)


def _parse_dsn(raw: Plain) -> str:
    if not isinstance(raw, str) or not raw:
        raise InvalidValue('is not a connection string: write it like "host=10.0.0.5 dbname=fairlead"')
    if _DSN_WITH_PASSWORD.search(raw):
        raise InvalidValue(
            "has a password in it, which does not belong in this file: "
            "use dsnEnv or dsnFile, or leave the password to PGPASSWORD or ~/.pgpass"
        )
    return raw


def parse_file_name(raw: Plain) -> str:
    """Read the name of a file."""
    if not isinstance(raw, str) or not 0 < len(raw) <= FILE_NAME_CHARACTERS_MAX or "\0" in raw:
        raise InvalidValue("is not a file name")
    return raw
