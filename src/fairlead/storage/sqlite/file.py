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
# The log is copied into the file when it has grown to this: each time costs two more fsyncs.
_CHECKPOINT_PAGES = 4000


class CannotOpen(FixRequest):
    """The file can't be opened as a store: another process has it, or it is something else."""


class DatabaseFile:
    """One SQLite file with the schema of this release, which nobody else can open for writing meanwhile.

    One process owns the file. The owners of its queues may be many, but all are in that process, which is what lets
    the writer remember the leases and commit for all of them at once. Many hosts need a server: PostgreSQL.
    """

    def __init__(self, file: Path, *, readers: int) -> None:
        """Lock the file, make it if it is not there, and bring its schema up to date.

        The readers are connections that wait for no commit, and see every one that ended before they are asked.
        """
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
        """Let go of the file. The writer comes last: the last connection copies the log into the file."""
        try:
            for reader in self.readers:
                reader.close()
            self.writer.close()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        os.close(self._lock)

    def _take_lock(self) -> int:
        # A file of its own: SQLite's locks on the database are lost when anyone in this process closes it.
        lock_file = f"{self.file}.lock"
        try:
            lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as refused:
            raise CannotOpen(f"{self.file} can't be opened: {lock_file}: {refused.strerror}") from refused
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            owner = os.pread(lock, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise CannotOpen(
                f"{self.file} is open already, in process {owner}: one process owns a SQLite file; "
                "stop that one, or give each its own file, or let many share a PostgreSQL database"
            ) from taken
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        return lock

    def _open_writer(self) -> sqlite3.Connection:
        try:
            writer = _connect(f"file:{quote(str(self.file))}?mode=rwc")
        except sqlite3.Error as refused:
            raise CannotOpen(f"{self.file} can't be opened: {refused}") from refused
        try:
            self._migrate(writer)
            # In WAL mode NORMAL, the usual choice, leaves the log unsynced until the next checkpoint: a commit would
            # survive a crash of the process but not one of the machine. FULL syncs the log at every commit.
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            writer.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
        except sqlite3.Error as refused:
            writer.close()
            raise CannotOpen(f"{self.file} can't be used as a store: {refused}") from refused
        except BaseException:
            writer.close()
            raise
        return writer

    def _migrate(self, writer: sqlite3.Connection) -> None:
        has_table = bool(_value(writer, statements.HAS_MIGRATIONS_TABLE))
        if not has_table and _value(writer, statements.HAS_OTHER_TABLES):
            raise CannotOpen(f"{self.file} is a database of something else: give the store a file of its own")
        applied = [version for (version,) in writer.execute(statements.APPLIED_MIGRATIONS)] if has_table else []
        steps = pending(load_migrations("sqlite"), applied=applied, database=str(self.file))
        # Only now: a file that is refused stays as it is.
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
    """The statements of a script. `sqlite3` would run the whole of it too, but commits what is open before it."""
    found = []
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            found.append(statement)
            statement = ""
    return found


def _connect(uri: str) -> sqlite3.Connection:
    # No implicit transactions; and each connection is used by one thread at a time, though not always by the same.
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _value(connection: sqlite3.Connection, statement: str) -> int:
    (value,) = connection.execute(statement).fetchone()
    return int(value)
