# ruff: noqa: D102 - the contract documents each method
import asyncio
from collections.abc import Sequence
from functools import partial

from fairlead.storage.commit import BadCommit, Commit, check_commit
from fairlead.storage.history import TASKS_COMPLETED_MAX, RunKey, ShardLease, StoredNamespace, TaskKey
from fairlead.storage.predicates import Predicate
from fairlead.storage.sqlite.group_commit import GroupCommit
from fairlead.storage.sqlite.history_clusterwide import ClusterwideTables
from fairlead.storage.sqlite.history_reader import SqliteHistoryReader
from fairlead.storage.sqlite.history_tables import CommitChange, HistoryTables
from fairlead.storage.sqlite.readers import Readers
from fairlead.storage.sqlite.slots import SlotRows, SqliteSlots
from fairlead.storage.visibility import LATEST_FIRST, Cursor, Field, Group, Order, VisibilityRow
from fairlead.storage.visibility_order import Sort


class SqliteHistory(SqliteHistoryReader, SqliteSlots):
    """A `HistoryStore` in the file of a `SqliteStore`: its writes share the transactions of the task queues."""

    def __init__(
        self,
        changes: GroupCommit,
        tables: HistoryTables,
        clusterwide: ClusterwideTables,
        slots: SlotRows,
        readers: Readers,
    ) -> None:
        super().__init__(readers)
        self._changes = changes
        self._tables = tables
        self._clusterwide = clusterwide
        self._slots = slots

    async def take_shard(self, shard_id: int) -> ShardLease:
        return await self._changes.run(partial(self._tables.take_shard, shard_id))

    async def renew_shard(self, shard_id: int, range_id: int) -> int:
        return await self._changes.run(partial(self._tables.renew_shard, shard_id, range_id))

    async def commit(self, shard_id: int, range_id: int, commit: Commit) -> None:
        size_bytes = check_commit(commit)
        await self._changes.run(CommitChange(self._tables.commit, shard_id, range_id, commit), size_bytes=size_bytes)

    def begin_commit(self, shard_id: int, range_id: int, commit: Commit) -> "asyncio.Future[None]":
        size_bytes = check_commit(commit)
        return self._changes.begin(CommitChange(self._tables.commit, shard_id, range_id, commit), size_bytes=size_bytes)

    async def complete_tasks(
        self,
        shard_id: int,
        range_id: int,
        queue: str,
        through: TaskKey | None = None,
        *,
        singles: Sequence[TaskKey] = (),
        limit: int = TASKS_COMPLETED_MAX,
    ) -> int:
        if len(singles) > TASKS_COMPLETED_MAX:
            raise BadCommit(f"{len(singles)} single tasks to complete, the limit is {TASKS_COMPLETED_MAX}")
        complete = partial(
            self._tables.complete_tasks, shard_id, range_id, queue, through, singles=singles, limit=limit
        )
        return await self._changes.run(complete)

    async def delete_run(
        self, shard_id: int, range_id: int, key: RunKey, *, branches: Sequence[tuple[str, str]] = ()
    ) -> None:
        await self._changes.run(partial(self._tables.delete_run, shard_id, range_id, key, branches))

    async def create_namespace(self, namespace_id: str, name: str, payload: bytes, version: int = 1) -> None:
        new = StoredNamespace(namespace_id, name, payload, version)
        await self._changes.run(partial(self._clusterwide.create_namespace, new))

    async def update_namespace(self, namespace_id: str, payload: bytes, *, expected_version: int) -> int:
        change = partial(
            self._clusterwide.change_namespace, namespace_id, payload=payload, expected_version=expected_version
        )
        return await self._changes.run(change)

    async def rename_namespace(self, namespace_id: str, name: str, *, expected_version: int) -> int:
        change = partial(self._clusterwide.change_namespace, namespace_id, name=name, expected_version=expected_version)
        return await self._changes.run(change)

    async def delete_namespace(self, namespace_id: str, *, expected_version: int) -> None:
        delete = partial(self._clusterwide.delete_namespace, namespace_id, expected_version=expected_version)
        await self._changes.run(delete)

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        write = partial(self._clusterwide.write_metadata, key, payload, expected_version=expected_version)
        return await self._changes.run(write)

    async def delete_metadata(self, key: str, *, expected_version: int) -> None:
        await self._changes.run(partial(self._clusterwide.delete_metadata, key, expected_version=expected_version))

    async def list_visibility(
        self,
        namespace_id: str,
        where: Predicate | None = None,
        *,
        order: Order | Sort = LATEST_FIRST,
        after: Cursor | None = None,
        limit: int,
    ) -> list[VisibilityRow]:
        await self._move_logged()
        return await super().list_visibility(namespace_id, where, order=order, after=after, limit=limit)

    async def count_visibility(
        self, namespace_id: str, where: Predicate | None = None, *, group_by: Field | None = None
    ) -> list[Group]:
        await self._move_logged()
        return await super().count_visibility(namespace_id, where, group_by=group_by)

    async def _move_logged(self) -> None:
        """Let readers of the file find the visibility rows of all acknowledged commits."""
        log = self._tables.visibility
        if log.has_rows:
            await self._changes.run(log.move)
