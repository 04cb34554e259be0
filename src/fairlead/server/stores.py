"""Which store a process uses, and what is said where it can't be opened."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from fairlead.core.errors import FixRequest
from fairlead.settings.static import MemoryConfig, PostgresConfig, SqliteConfig, StoreConfig
from fairlead.storage.contract import StoreUnavailable, TaskStore
from fairlead.storage.failures import follow_pool, reason_of
from fairlead.storage.memory import MemoryStore
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.sqlite.reading import SqliteReading
from fairlead.storage.store import Store

if TYPE_CHECKING:
    # Whoever only asks for help does not wait for these.
    from fairlead.history.exporting import ExportedStore
    from fairlead.server.bootstrap import ReadsMetadata

    class ReadHistory(ExportedStore, ReadsMetadata, Protocol):
        """The workflows of a store that is only read."""


class CannotOpenStore(FixRequest):
    """A store is configured that can't be used so, or not by this installation."""


class Reading(Protocol):
    """A store that is only read, and how to let go of it."""

    @property
    def history(self) -> ReadHistory:
        """The workflows."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


async def open_store(config: StoreConfig) -> Store:
    """Open the store that is configured, with the schema of this release."""
    if isinstance(config, SqliteConfig):
        return await SqliteStore.open(config.file)
    if isinstance(config, MemoryConfig):
        return MemoryStore()
    _check_postgres(config)
    from fairlead.storage.postgres import PostgresStore  # noqa: PLC0415 - needs the driver

    with _with_reason():
        return await PostgresStore.open(config.dsn)


async def open_reading(config: StoreConfig) -> Reading:
    """Open the store that is configured to read from it, beside the servers that have it open, if any."""
    if isinstance(config, SqliteConfig):
        return await SqliteReading.open(config.file)
    if isinstance(config, MemoryConfig):
        raise CannotOpenStore("a store in memory can only be read by the server that has it: configure another one")
    _check_postgres(config)
    from fairlead.storage.postgres.reading import PostgresReading  # noqa: PLC0415 - needs the driver

    with _with_reason():
        return await PostgresReading.open(config.dsn)


def _check_postgres(config: PostgresConfig) -> None:
    """Refuse what can't be connected to by what it says, or without the driver."""
    try:
        # Not everybody has its driver installed.
        import psycopg  # noqa: PLC0415
    except ImportError as missing:
        raise CannotOpenStore("the PostgreSQL store needs psycopg: pip install 'fairlead[postgres]'") from missing
    try:
        psycopg.conninfo.conninfo_to_dict(config.dsn)
    except psycopg.ProgrammingError:
        # Its message, and so that of its cause, would quote what may be a password.
        raise CannotOpenStore(
            "what store.postgres gives says not how to connect: "
            'write it like "host=10.0.0.5 dbname=fairlead user=fairlead" or "postgresql://fairlead@10.0.0.5/fairlead"'
        ) from None
    follow_pool()


@contextmanager
def _with_reason() -> Iterator[None]:
    """A store that can't be reached is refused with the reason that its driver gave."""
    try:
        yield
    except StoreUnavailable as failure:
        said, reason = str(failure), reason_of(failure)
        raise StoreUnavailable(said if reason in said else f"{said} It says: {reason}") from failure


def damage(config: StoreConfig, failure: BaseException) -> CannotOpenStore | None:
    """The refusal of a file that is no database or no whole one; None if that is not what failed."""
    if not isinstance(config, SqliteConfig):
        return None
    cause: BaseException | None = failure
    # The very class, and none of those derived from it: a disk that is full, or a file that may not be read, is whole.
    while cause is not None and type(cause) is not sqlite3.DatabaseError:
        cause = cause.__cause__
    if cause is None:
        return None
    return CannotOpenStore(
        f"{config.file} is damaged, or no database: SQLite says {str(cause)!r}; restore it from a backup, or move it "
        f"and {config.file.name}-wal away to begin with an empty one"
    )


async def forget_members(store: TaskStore) -> None:
    """Only one process has the store open: whoever else is said to be alive was killed, or this host before."""
    for member in await store.members(now_s=time.time()):
        await store.leave(member.host)
