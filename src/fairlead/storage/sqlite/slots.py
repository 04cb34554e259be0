# ruff: noqa: D102 - the contract documents each method
"""The slots of the history contract in SQLite. All writes run in one thread, so each is atomic."""

import sqlite3
from collections.abc import Callable
from functools import partial

from fairlead.core.concurrency import Full, Slot, SlotLimits
from fairlead.storage.sqlite.group_commit import GroupCommit
from fairlead.storage.sqlite.readers import Readers

_COLUMNS = "token, shard_id, queue_namespace_id, task_queue, fairness_key, namespace_id, workflow_id, run_id, event_id"
TAKE_SLOT = f"INSERT INTO activity_slots ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
HAS_SLOT = "SELECT 1 FROM activity_slots WHERE token = ?"
COUNT_KEY = """
SELECT count(*) FROM activity_slots WHERE queue_namespace_id = ? AND task_queue = ? AND fairness_key = ?
"""
COUNT_QUEUE = "SELECT count(*) FROM activity_slots WHERE queue_namespace_id = ? AND task_queue = ?"
COUNT_BY_KEY = """
SELECT fairness_key, count(*) FROM activity_slots WHERE queue_namespace_id = ? AND task_queue = ? GROUP BY fairness_key
"""
FREE_SLOT = "DELETE FROM activity_slots WHERE token = ?"
LIST_SLOTS = f"SELECT {_COLUMNS} FROM activity_slots WHERE shard_id = ? ORDER BY token"  # noqa: S608

CheckOwned = Callable[[int, int], object]


class SlotRows:
    """Changes of the table of slots, within a transaction of the writer."""

    def __init__(self, writer: sqlite3.Connection, check_owned: CheckOwned) -> None:
        """`check_owned` raises `LeaseLost` unless a shard has a range id."""
        self._writer = writer
        self._check_owned = check_owned

    def take(self, range_id: int, slot: Slot, limits: SlotLimits) -> Full | None:
        """Take a slot, or return the limit that is reached."""
        self._check_owned(slot.shard_id, range_id)
        queue = (slot.queue_namespace_id, slot.task_queue)
        if self._writer.execute(HAS_SLOT, (slot.token,)).fetchone() is not None:
            return None
        if limits.key_max and self._count(COUNT_KEY, *queue, slot.fairness_key) >= limits.key_max:
            return Full.KEY
        if limits.queue_max and self._count(COUNT_QUEUE, *queue) >= limits.queue_max:
            return Full.QUEUE
        self._writer.execute(TAKE_SLOT, slot)
        return None

    def free(self, token: str) -> None:
        """Free a slot."""
        self._writer.execute(FREE_SLOT, (token,))

    def _count(self, statement: str, *values: str) -> int:
        count: int = self._writer.execute(statement, values).fetchone()[0]
        return count


class SqliteSlots:
    """The slots of a `HistoryStore` in the file of a `SqliteStore`."""

    _changes: GroupCommit
    _readers: Readers
    _slots: SlotRows

    async def take_slot(self, range_id: int, slot: Slot, limits: SlotLimits) -> Full | None:
        return await self._changes.run(partial(self._slots.take, range_id, slot, limits))

    async def free_slot(self, token: str) -> None:
        await self._changes.run(partial(self._slots.free, token))

    async def list_slots(self, shard_id: int) -> list[Slot]:
        return await self._readers.rows(LIST_SLOTS, (shard_id,), Slot._make)

    async def count_slots(self, namespace_id: str, task_queue: str) -> dict[str, int]:
        return dict(await self._readers.rows(COUNT_BY_KEY, (namespace_id, task_queue), lambda row: (row[0], row[1])))
