"""Read-only access to a SQLite store, even while a server uses it."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self
from urllib.parse import quote

from fairlead.storage.migrations import load_migrations, pending
from fairlead.storage.sqlite import statements
from fairlead.storage.sqlite.file import CannotOpen
from fairlead.storage.sqlite.history_reader import SqliteHistoryReader
from fairlead.storage.sqlite.readers import Readers


class SqliteReadOnly:
    """The history of a store, read-only: does not lock, create or migrate the file.

    While a server uses the file, lists lack the visibility rows that are still in the log.
    """

    def __init__(self, connection: sqlite3.Connection, threads: ThreadPoolExecutor) -> None:
        """Call `open` instead of this constructor."""
        self._connection = connection
        self._readers = Readers([connection], threads)
        self.history = SqliteHistoryReader(self._readers)

    @classmethod
    async def open(cls, file: Path) -> Self:
        """Open the file; raises `CannotOpen` or `SchemaTooNew` if it is missing or not a store of this release."""
        connection = await asyncio.to_thread(_connect, file)
        return cls(connection, ThreadPoolExecutor(1, thread_name_prefix="sqlite-reader"))

    async def close(self) -> None:
        """Close the file."""
        await self._readers.close()
        self._connection.close()


def _connect(file: Path) -> sqlite3.Connection:
    if not file.is_file():
        raise CannotOpen(f"{file}: there is no such file")
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(file.absolute()))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as refused:
        raise CannotOpen(f"{file} can't be opened: {refused}") from refused
    try:
        _check(connection, file)
    except sqlite3.Error as refused:
        connection.close()
        raise CannotOpen(f"{file} can't be read as a store: {refused}") from refused
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, file: Path) -> None:
    """Reject a file that is not a store, or that has another schema than this release."""
    if not connection.execute(statements.HAS_MIGRATIONS_TABLE).fetchone()[0]:
        raise CannotOpen(f"{file} is not a store: no server was ever started with it")
    applied = [version for (version,) in connection.execute(statements.APPLIED_MIGRATIONS)]
    if steps := pending(load_migrations("sqlite"), applied=applied, database=str(file)):
        raise CannotOpen(
            f"{file} has schema version {len(applied)}, this release reads {steps[-1].version}: "
            "start a server of this release with it to migrate it"
        )
