"""Opens the configured store, with a clear error if that fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from fairlead.core.errors import FixRequest
from fairlead.settings.static.config import MemoryConfig, PostgresConfig, SqliteConfig, StoreConfig
from fairlead.storage.failures import damage_of, follow_pool, reason_of
from fairlead.storage.store import Store
from fairlead.storage.tasks import StoreUnavailable, TaskStore

if TYPE_CHECKING:
    # Not imported at run time: they load slowly, and `--help` doesn't need them.
    from fairlead.history.export import ExportedStore
    from fairlead.server.bootstrap import ReadsMetadata

    class ReadHistory(ExportedStore, ReadsMetadata, Protocol):
        """The workflow part of a store opened read-only."""


class CannotOpenStore(FixRequest):
    """The configured store can't be opened, or not by this installation."""


class Reading(Protocol):
    """A store opened read-only."""

    @property
    def history(self) -> ReadHistory:
        """The workflow part of the store."""
        ...

    async def close(self) -> None:
        """Close the store."""
        ...


async def open_store(config: StoreConfig) -> Store:
    """Open the configured store, with the schema of this release; only its module is imported."""
    if isinstance(config, SqliteConfig):
        from fairlead.storage.sqlite import SqliteStore  # noqa: PLC0415

        return await SqliteStore.open(config.file)
    if isinstance(config, MemoryConfig):
        from fairlead.storage.memory.tasks import MemoryStore  # noqa: PLC0415

        return MemoryStore()
    _check_postgres(config)
    from fairlead.storage.postgres import PostgresStore  # noqa: PLC0415 - needs the driver

    with _with_reason():
        return await PostgresStore.open(config.dsn)


async def open_reading(config: StoreConfig) -> Reading:
    """Open the configured store read-only, even while servers have it open."""
    if isinstance(config, SqliteConfig):
        from fairlead.storage.sqlite.read_only import SqliteReadOnly  # noqa: PLC0415 - as above

        return await SqliteReadOnly.open(config.file)
    if isinstance(config, MemoryConfig):
        raise CannotOpenStore("only the server itself can read its store in memory: configure SQLite or PostgreSQL")
    _check_postgres(config)
    from fairlead.storage.postgres.read_only import PostgresReadOnly  # noqa: PLC0415 - needs the driver

    with _with_reason():
        return await PostgresReadOnly.open(config.dsn)


def _check_postgres(config: PostgresConfig) -> None:
    """Raise if the driver is missing or the connection string is malformed."""
    try:
        # The driver is an optional dependency.
        import psycopg  # noqa: PLC0415
    except ImportError as missing:
        raise CannotOpenStore("the PostgreSQL store needs psycopg: pip install 'fairlead[postgres]'") from missing
    try:
        psycopg.conninfo.conninfo_to_dict(config.dsn)
    except psycopg.ProgrammingError:
        # Drop the driver's error, and the cause too: its message may quote a password.
        raise CannotOpenStore(
            "the connection string of store.postgres is malformed: "
            'write it like "host=10.0.0.5 dbname=fairlead user=fairlead" or "postgresql://fairlead@10.0.0.5/fairlead"'
        ) from None
    follow_pool()


@contextmanager
def _with_reason() -> Iterator[None]:
    """Add the driver's reason to StoreUnavailable."""
    try:
        yield
    except StoreUnavailable as failure:
        said, reason = str(failure), reason_of(failure)
        raise StoreUnavailable(said if reason in said else f"{said} The driver says: {reason}") from failure


def damage(config: StoreConfig, failure: BaseException) -> CannotOpenStore | None:
    """Error for a file that is damaged or not a database; None if the failure has another cause."""
    if not isinstance(config, SqliteConfig):
        return None
    cause = damage_of(failure)
    if cause is None:
        return None
    return CannotOpenStore(
        f"{config.file} is damaged or not a database: SQLite says {str(cause)!r}; restore it from a backup, or move it "
        f"and {config.file.name}-wal away to start with an empty one"
    )


async def forget_members(store: TaskStore) -> None:
    """Remove all members: only one process can have this store open, so recorded ones are from killed processes."""
    for member in await store.members(now_s=time.time()):
        await store.leave(member.host)
