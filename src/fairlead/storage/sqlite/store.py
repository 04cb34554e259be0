# ruff: noqa: D102 - the contract documents each method
import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from fairlead.core.fairness import Level, StoredKey
from fairlead.core.partitions import RESERVED_PREFIX, PartitionConfig, TaskType
from fairlead.storage.sqlite import statements
from fairlead.storage.sqlite.file import DatabaseFile
from fairlead.storage.sqlite.group_commit import GroupCommit
from fairlead.storage.sqlite.history import SqliteHistory
from fairlead.storage.sqlite.history_clusterwide import ClusterwideTables
from fairlead.storage.sqlite.history_tables import HistoryTables
from fairlead.storage.sqlite.readers import Readers, Row
from fairlead.storage.sqlite.slots import SlotRows
from fairlead.storage.sqlite.tables import Tables, config_of, lease_lost
from fairlead.storage.tasks import Lease, Levels, Member, QueueId, StoredTask, partitions_of

READERS = 2


class SqliteStore:
    """A `TaskStore` in one file. Acknowledged writes are fsynced; a thousand concurrent writes share a few fsyncs.

    Reads have their own connections: they don't wait for commits, and see all changes acknowledged before. Only lists
    and counts of runs wait for a commit, if the log of visibility rows is not empty. A store belongs to the event loop
    in which it was opened; one process at a time uses its file.
    """

    def __init__(self, file: DatabaseFile, threads: ThreadPoolExecutor) -> None:
        """Use `open`, which runs blocking calls in a thread."""
        self._readers = Readers(file.readers, threads)
        self._tables = Tables(file.writer)
        history = HistoryTables(file.writer)
        tables = _AllTables(self._tables, history)
        self._changes = GroupCommit(tables, on_end=partial(_end, tables, file))
        # The history store, in the same file and the same transactions.
        self.history = SqliteHistory(
            self._changes,
            history,
            ClusterwideTables(file.writer),
            SlotRows(file.writer, history.owned),
            self._readers,
        )

    @classmethod
    async def open(cls, file: Path) -> Self:
        """Open or create the file, with the schema of this release; raises `CannotOpen` or `SchemaTooNew`."""
        threads = ThreadPoolExecutor(READERS, thread_name_prefix="sqlite-reader")
        opening = threads.submit(DatabaseFile, file, readers=READERS)
        try:
            return cls(await asyncio.wrap_future(opening), threads)
        except BaseException:
            threads.shutdown()
            # If the caller was cancelled, close the file here: no other code will.
            if not opening.cancelled() and opening.exception() is None:
                opening.result().close()
            raise

    @property
    def commits(self) -> int:
        """Number of transactions committed since the store was opened."""
        return self._changes.commits

    async def take_lease(self, queue: QueueId) -> Lease:
        return await self._changes.run(partial(self._tables.take_lease, queue))

    async def renew_lease(self, queue: QueueId, range_id: int) -> int:
        return await self._changes.run(partial(self._tables.renew_lease, queue, range_id))

    async def append(
        self, queue: QueueId, range_id: int, priority: int, tasks: Sequence[StoredTask], levels: Levels
    ) -> None:
        size_bytes = sum([len(task.payload) for task in tasks])
        make = partial(self._tables.append, queue, range_id, priority, tasks, levels)
        await self._changes.run(make, size_bytes=size_bytes)

    async def read(self, queue: QueueId, priority: int, *, after: Level, limit: int) -> list[StoredTask]:
        return await self._readers.rows(statements.READ_TASKS, (*queue, priority, *after, limit), _task)

    async def stored_keys(self, queue: QueueId, priority: int, *, after: Level) -> list[StoredKey]:
        def find(reader: sqlite3.Connection) -> list[StoredKey]:
            found: dict[str, tuple[int, int, float]] = {}
            for key, pass_number, weight in reader.execute(statements.READ_KEYS, (*queue, priority, *after)):
                known = found.get(key)
                found[key] = (pass_number if known is None else known[0], pass_number, weight)
            return [StoredKey(key, *passes) for key, passes in found.items()]

        return await self._readers.run(find)

    async def delete_through(self, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int) -> int:
        return await self._changes.run(partial(self._tables.delete_through, queue, range_id, priority, through, limit))

    async def save_levels(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        await self._changes.run(partial(self._tables.save_levels, queue, range_id, levels))

    async def save_config(self, queue: QueueId, range_id: int, config: PartitionConfig) -> None:
        await self._changes.run(partial(self._tables.save_config, queue, range_id, config))

    async def load_config(self, queue: QueueId) -> PartitionConfig | None:
        found = await self._readers.rows(statements.LOAD_CONFIG, queue, config_of)
        return found[0] if found else None

    async def save_rules(self, queue: QueueId, range_id: int, config: PartitionConfig, rules: bytes) -> None:
        make = partial(self._tables.save_rules, queue, range_id, config, rules)
        await self._changes.run(make, size_bytes=len(rules))

    async def load_rules(self, queue: QueueId) -> bytes | None:
        found: list[bytes | None] = await self._readers.rows(statements.LOAD_RULES, queue, lambda row: row[0])
        return found[0] if found else None

    async def count(self, queue: QueueId, range_id: int) -> int:
        found = await self._readers.rows(statements.COUNT_TASKS, queue, tuple[int, int])
        owner_range_id, tasks = found[0] if found else (None, 0)
        if owner_range_id != range_id:
            raise lease_lost(queue, range_id, owner_range_id)
        return tasks

    async def list_partitions(self, root: QueueId) -> dict[int, bool]:
        parameters = (root.namespace_id, RESERVED_PREFIX + root.name, root.type)
        return partitions_of(root, await self._readers.rows(statements.LIST_PARTITIONS, parameters, tuple[str, int]))

    async def list_queues(self, namespace_id: str | None, *, after: QueueId | None, limit: int) -> list[QueueId]:
        start = after or ("", "", 0)
        if namespace_id is None:
            return await self._readers.rows(statements.LIST_QUEUES, (*start, limit), _queue)
        return await self._readers.rows(statements.LIST_QUEUES_OF_NAMESPACE, (namespace_id, *start, limit), _queue)

    async def heartbeat(self, member: Member, *, now_s: float = 0.0) -> list[Member]:
        return await self._changes.run(partial(self._tables.heartbeat, member, now_s))

    async def leave(self, host: str) -> None:
        await self._changes.run(partial(self._tables.leave, host))

    async def members(self, *, now_s: float) -> list[Member]:
        return await self._readers.rows(statements.LIVE_MEMBERS, (now_s,), lambda row: Member(*row))

    async def close(self) -> None:
        await self._readers.close()
        await self._changes.close()


class _AllTables:
    """The shared transactions of the task queues and of history."""

    def __init__(self, queues: Tables, history: HistoryTables) -> None:
        self._queues = queues
        self._history = history

    def begin(self) -> None:
        self._queues.begin()

    def read_ahead(self, changes: Sequence[Callable[[], object]]) -> None:
        self._history.read_ahead(changes)

    def flush(self) -> None:
        self._queues.flush()
        self._history.flush()

    def commit(self) -> None:
        self._queues.commit()
        self._history.committed()

    def roll_back(self) -> None:
        self._history.forget()
        self._queues.roll_back()

    def move_logged(self) -> None:
        """Move the visibility rows out of their log, in a transaction."""
        self.begin()
        self._history.visibility.move()
        self.commit()


def _end(tables: _AllTables, file: DatabaseFile) -> None:
    # If it fails, the rows stay in the log, and the next process moves them.
    with suppress(sqlite3.Error):
        tables.move_logged()
    file.close()


def _task(row: Row) -> StoredTask:
    pass_number, task_id, key, weight, payload, created_s = row
    return StoredTask(Level(pass_number, task_id), key, weight, payload, created_s)


def _queue(row: Row) -> QueueId:
    namespace_id, name, type_number = row
    return QueueId(namespace_id, name, TaskType(type_number))
