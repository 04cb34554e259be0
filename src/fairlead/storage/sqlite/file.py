import fcntl
import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from fairlead.core.errors import FixRequest
from fairlead.storage.migrations import load_migrations, pending
from fairlead.storage.sqlite import statements

_WRITER_CACHE_KIB = 32 * 1024
_READER_CACHE_KIB = 8 * 1024
# Number of pages of the write-ahead log after which it is copied into the file; each copy costs two more fsyncs.
_CHECKPOINT_PAGES = 4000
# Permissions of new files: only the server's own user reads them.
_PRIVATE = 0o600


class CannotOpen(FixRequest):
    """The file can't be opened as a store: another process uses it, or it is not a store."""


class DatabaseFile:
    """A SQLite file with the schema of this release, locked against other writing processes.

    One process uses the file. The owners of all its queues are in that process, so the writer can cache their leases
    and commit for all of them at once. A cluster of several hosts needs PostgreSQL.
    """

    def __init__(self, file: Path, *, readers: int) -> None:
        """Lock the file, create it if it does not exist, and migrate its schema.

        The readers are connections that don't wait for commits; each read sees all earlier commits.
        """
        # The path as configured, for error messages.
        self._given = file
        self.file = file.absolute()
        self.readers: list[sqlite3.Connection] = []
        self._lock = self._take_lock()
        try:
            self.writer = self._open_writer()
            for _ in range(readers):
                reader = _connect(f"file:{quote(str(self.file))}?mode=ro")
                self.readers.append(reader)
                reader.execute(f"PRAGMA cache_size = -{_READER_CACHE_KIB}")
        except BaseException:
            self._unlock()
            raise

    def close(self) -> None:
        """Close the file; the writer last, because the last connection copies the log into the file."""
        try:
            for reader in self.readers:
                reader.close()
            self.writer.close()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        os.close(self._lock)

    def _take_lock(self) -> int:
        if self._given.is_dir():
            raise CannotOpen(f"{self._given} can't be opened: it is a folder; set a file")
        # Lock a separate file: the locks that SQLite has on the database are lost when any code in this process closes
        # the file.
        lock_file = f"{self.file}.lock"
        try:
            lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        except OSError as refused:
            folder = self._given.parent
            if not folder.is_dir():
                raise CannotOpen(
                    f"{self._given} can't be opened: folder {folder} does not exist; create it, or set another file"
                ) from refused
            raise CannotOpen(f"{self._given} can't be opened: {self._given}.lock: {refused.strerror}") from refused
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            owner = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise CannotOpen(
                f"{self._given} is open already, in process {owner}: one process owns a SQLite file; "
                "stop that process, set another file, or use PostgreSQL, which many processes can share"
            ) from taken
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _open_writer(self) -> sqlite3.Connection:
        try:
            # SQLite would create the file with permissions that follow from the umask. Its log files get the
            # permissions of the file.
            os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE))
        except OSError as refused:
            raise CannotOpen(f"{self._given} can't be opened: {refused.strerror}") from refused
        try:
            writer = _connect(f"file:{quote(str(self.file))}?mode=rwc")
        except sqlite3.Error as refused:
            raise CannotOpen(f"{self._given} can't be opened: {refused}") from refused
        try:
            self._migrate(writer)
            # Sync the log at every commit. In WAL mode, the usual NORMAL leaves the log unsynced until the next
            # checkpoint: a commit would survive a crash of the process but not of the machine.
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            writer.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        except sqlite3.Error as refused:
            writer.close()
            raise CannotOpen(f"{self._given} can't be used as a store: {refused}") from refused
        except BaseException:
            writer.close()
            raise
        return writer

    def _migrate(self, writer: sqlite3.Connection) -> None:
        has_table = bool(_value(writer, statements.HAS_MIGRATIONS_TABLE))
        if not has_table and _value(writer, statements.HAS_OTHER_TABLES):
            raise CannotOpen(f"{self._given} is another program's database: use a separate file for the store")
        applied = [version for (version,) in writer.execute(statements.APPLIED_MIGRATIONS)] if has_table else []
        steps = pending(load_migrations("sqlite"), applied=applied, database=str(self._given))
        # Set only after the checks, so that a rejected file stays unchanged.
        writer.execute("PRAGMA journal_mode = WAL")
        for step in steps:
            try:
                writer.execute(statements.BEGIN)
                writer.execute(statements.CREATE_MIGRATIONS_TABLE)
                for statement in split_statements(step.sql):
                    writer.execute(statement)
                writer.execute(statements.RECORD_MIGRATION, (step.version, step.name))
                writer.execute(statements.COMMIT)
            except BaseException:
                if writer.in_transaction:
                    writer.execute(statements.ROLLBACK)
                raise


def split_statements(script: str) -> list[str]:
    """Split a script into statements: `executescript` of `sqlite3` would commit the open transaction first."""
    found = []
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            found.append(statement)
            statement = ""
    return found


def _connect(uri: str) -> sqlite3.Connection:
    # No implicit transactions. Different threads use a connection, but only one at a time.
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _value(connection: sqlite3.Connection, statement: str) -> int:
    (value,) = connection.execute(statement).fetchone()
    return int(value)
