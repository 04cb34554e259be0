import sqlite3
from collections.abc import Sequence
from typing import Any

from fairlead.storage.sqlite import history_statements as statements
from fairlead.storage.sqlite.many_rows import execute_rows
from fairlead.storage.visibility import VisibilityDelete, VisibilityRow, encode_attributes
from fairlead.telemetry import get_log

# Maximum number of rows in the log, and of bytes of their memos and search attributes.
ROWS_LOGGED_MAX = 1000
BYTES_LOGGED_MAX = 4 * 1024 * 1024

_RowKey = tuple[str, str]

_log = get_log("storage")


class VisibilityLog:
    """The visibility rows of commits, on their way into the table that lists read.

    A commit appends its rows to the table `visibility_log`, which has no indexes. When the log is full, and before each
    list, the last row of each run is moved into the table `visibility`. So a run that starts and ends between two moves
    costs one write of `visibility` instead of three. Only the writer thread calls these methods.
    """

    def __init__(self, writer: sqlite3.Connection) -> None:
        self._writer = writer
        # Whether the log may have rows. Any thread may read this: it is false only if all acknowledged rows are moved.
        self.has_rows = True
        # Number and bytes of the rows in the log; None until they are counted.
        self._rows: int | None = None
        self._size_bytes = 0
        # Rows of this transaction that are not yet in the log, without those that a later row replaces.
        self._new: dict[_RowKey, VisibilityRow | VisibilityDelete] = {}

    def add(self, rows: Sequence[VisibilityRow | VisibilityDelete]) -> None:
        """Add rows of the present transaction."""
        for row in rows:
            self._new[row.namespace_id, row.run_id] = row

    def flush(self) -> None:
        """Append the new rows to the log; move all rows out of the log if it is full."""
        if not self._new:
            return
        values: list[Any] = []
        for row in self._new.values():
            if isinstance(row, VisibilityRow):
                attributes = encode_attributes(row.search_attributes)
                self._size_bytes += len(row.memo) + len(attributes)
                values.append(0)
                values += row[:-1]
                values.append(attributes)
            else:
                values += (1, *row, *statements.LOGGED_DELETE)
        rows = self._count() + len(self._new)
        self.has_rows = True
        execute_rows(self._writer, statements.log_visibility, values, statements.LOG_COLUMNS)
        self._new.clear()
        self._rows = rows
        if rows >= ROWS_LOGGED_MAX or self._size_bytes >= BYTES_LOGGED_MAX:
            self._move()

    def move(self) -> None:
        """Move all rows out of the log, so that lists find them when the transaction is committed."""
        self.flush()
        if self._count():
            self._move()

    def committed(self) -> None:
        """Record that the transaction is committed."""
        self.has_rows = self._rows != 0

    def forget(self) -> None:
        """Forget the rows of this transaction, before a rollback."""
        self._new.clear()
        self._rows = None
        self._size_bytes = 0
        self.has_rows = True

    def _count(self) -> int:
        if self._rows is None:
            self._rows, size_bytes = self._writer.execute(statements.COUNT_LOGGED).fetchone()
            self._size_bytes += size_bytes
        return self._rows or 0

    def _move(self) -> None:
        self._writer.execute(statements.DELETE_LOGGED_DELETES)
        try:
            self._writer.execute(statements.MOVE_LOGGED)
        except sqlite3.IntegrityError:
            self._move_one_by_one()
        self._writer.execute(statements.CLEAR_LOG)
        self._rows = 0
        self._size_bytes = 0

    def _move_one_by_one(self) -> None:
        """Move the rows, and drop those that the table rejects: each of them would make every list fail."""
        for number, namespace_id, run_id in self._writer.execute(statements.LAST_LOGGED).fetchall():
            try:
                self._writer.execute(statements.MOVE_ONE_LOGGED, (number,))
            except sqlite3.IntegrityError as wrong:
                _log.error("visibility row dropped", namespace_id=namespace_id, run_id=run_id, reason=str(wrong))
