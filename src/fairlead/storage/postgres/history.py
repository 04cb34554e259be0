# ruff: noqa: D102 - the contract documents each method
import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from psycopg import errors

from fairlead.aio.cancellation import Uncancellable
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.storage.commit import Ancestor, BadCommit, Commit, segments_of
from fairlead.storage.history import (
    BATCHES_A_PAGE_MAX,
    TASK_KEY_ZERO,
    TASKS_COMPLETED_MAX,
    CurrentRun,
    ListedRun,
    RunKey,
    ShardLease,
    StoredBatch,
    StoredHistoryTask,
    StoredMetadata,
    StoredNamespace,
    StoredRun,
    TaskKey,
)
from fairlead.storage.history_conflicts import (
    current_conflict,
    fork_broken,
    metadata_conflict,
    namespace_conflict,
    namespace_taken,
    run_conflict,
    shard_lost,
    task_below_level,
)
from fairlead.storage.postgres import history_statements as statements
from fairlead.storage.postgres.connections import Connections
from fairlead.storage.postgres.current_lookups import CurrentLookups
from fairlead.storage.postgres.group_commit import GroupCommit
from fairlead.storage.postgres.history_search import Query
from fairlead.storage.postgres.history_writes import (
    DELETED_IN_BATCH_MAX,
    HistoryBatches,
    Refused,
    commit_write,
    completion_write,
)
from fairlead.storage.postgres.pipeline import Row
from fairlead.storage.postgres.slots import PostgresSlots
from fairlead.storage.predicates import Predicate
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable
from fairlead.storage.visibility import (
    INT64_MAX,
    LATEST_FIRST,
    Cursor,
    Field,
    Group,
    Order,
    VisibilityRow,
    decode_attributes,
    decode_value,
)
from fairlead.storage.visibility_order import Sort


class PostgresHistory(PostgresSlots):
    """A `HistoryStore` on the connections of a `PostgresStore`: the lock on the shard's row is the fence.

    Many methods, because the contract of a history store has one for each operation.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._writes = GroupCommit(HistoryBatches(), connections)
        self._currents = CurrentLookups(connections)

    async def close(self) -> None:
        """Reject new requests, wait for the requests that have begun, and disconnect."""
        await self._writes.close()
        await self._currents.close()

    async def take_shard(self, shard_id: int) -> ShardLease:
        ((range_id,),) = await self._connections.write(statements.TAKE_SHARD, {"shard_id": shard_id})
        # A separate statement: it begins when no write with the old range id can follow any more.
        try:
            levels = await self._connections.read(statements.LOAD_LEVELS, {"shard_id": shard_id})
        except StoreUnavailable as failed:
            raise OutcomeUnknown(f"shard {shard_id} was taken, but its levels could not be read: take it again") from (
                failed
            )
        return ShardLease(range_id, {queue: TaskKey(fire_at_ns, task_id) for queue, fire_at_ns, task_id in levels})

    async def renew_shard(self, shard_id: int, range_id: int) -> int:
        rows = await self._connections.write(statements.RENEW_SHARD, {"shard_id": shard_id, "range_id": range_id})
        if not rows:
            raise shard_lost(shard_id, range_id)
        return int(rows[0][0])

    async def commit(self, shard_id: int, range_id: int, commit: Commit) -> None:
        write = commit_write(shard_id, range_id, commit)
        write.explain = partial(self._explained, shard_id, commit)
        await self._writes.write(write)

    def begin_commit(self, shard_id: int, range_id: int, commit: Commit) -> "asyncio.Future[int]":
        write = commit_write(shard_id, range_id, commit)
        write.explain = partial(self._explained, shard_id, commit)
        write.outcome = Uncancellable()
        self._writes.begin(write)
        return write.outcome

    async def read_run(self, shard_id: int, namespace_id: str, workflow_id: str, run_id: str) -> StoredRun | None:
        key = {"namespace_id": namespace_id, "workflow_id": workflow_id, "run_id": run_id}
        rows = await self._connections.read(statements.READ_RUN, {"shard_id": shard_id, **key})
        return StoredRun(*rows[0]) if rows else None

    async def read_current(self, shard_id: int, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        return await self._currents.find(shard_id, namespace_id, workflow_id)

    async def list_runs(self, shard_id: int, *, after: RunKey | None, limit: int) -> list[ListedRun]:
        start = (after or RunKey("", "", ""))._asdict()
        rows = await self._connections.read(statements.LIST_RUNS, {"shard_id": shard_id, **start, "limit": limit})
        return [ListedRun(*row) for row in rows]

    async def read_branch(
        self,
        tree_id: str,
        branch_id: str,
        from_event_id: int,
        to_event_id: int,
        *,
        limit_bytes: int,
        reverse: bool = False,
    ) -> list[StoredBatch]:
        found = await self._connections.read(statements.FIND_BRANCH, {"tree_id": tree_id, "branch_id": branch_id})
        encoded, is_deleted = found[0] if found else ("[]", False)
        if is_deleted:
            return []
        segments = segments_of(
            branch_id,
            [Ancestor(**ancestor) for ancestor in msgspec.json.decode(encoded)],
            from_event_id=from_event_id,
            to_event_id=to_event_id,
            reverse=reverse,
        )
        statement = statements.READ_BATCHES_REVERSE if reverse else statements.READ_BATCHES
        page: list[StoredBatch] = []
        left_bytes = limit_bytes
        for segment in segments:
            rows = await self._connections.read(
                statement,
                {
                    "tree_id": tree_id,
                    **segment._asdict(),
                    "limit": BATCHES_A_PAGE_MAX + 1 - len(page),
                    "limit_bytes": left_bytes,
                },
            )
            for row in rows:
                batch = StoredBatch(*row)
                left_bytes -= len(batch.payload)
                if page and (left_bytes < 0 or len(page) >= BATCHES_A_PAGE_MAX):
                    return page
                page.append(batch)
            if left_bytes < 0:
                break
        return page

    async def read_tasks(
        self, shard_id: int, queue: str, *, after: TaskKey, until_ns: int | None, limit: int
    ) -> list[StoredHistoryTask]:
        until = {"until_ns": INT64_MAX if until_ns is None else until_ns, "limit": limit}
        rows = await self._connections.read(
            statements.READ_TASKS, {"shard_id": shard_id, "queue": queue, **after._asdict(), **until}
        )
        return [StoredHistoryTask(TaskKey(fire_at_ns, task_id), payload) for fire_at_ns, task_id, payload in rows]

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
        deleted = 0
        if through is not None and not singles:
            deleted = await self._writes.write(completion_write(shard_id, range_id, queue, through, limit=limit))
            if deleted < min(limit, DELETED_IN_BATCH_MAX) or deleted >= limit:
                return deleted
        rows = await self._connections.write(
            statements.COMPLETE_TASKS,
            {
                "shard_id": shard_id,
                "range_id": range_id,
                "queue": queue,
                "fire_at_ns": None if through is None else through.fire_at_ns,
                "task_id": None if through is None else through.task_id,
                "single_fire_at_ns": [key.fire_at_ns for key in singles],
                "single_task_ids": [key.task_id for key in singles],
                "limit": limit - deleted,
            },
        )
        if not rows:
            raise shard_lost(shard_id, range_id)
        return deleted + int(rows[0][0])

    async def delete_run(
        self, shard_id: int, range_id: int, key: RunKey, *, branches: Sequence[tuple[str, str]] = ()
    ) -> None:
        ((is_owner,),) = await self._connections.write(
            statements.DELETE_RUN,
            {
                "shard_id": shard_id,
                "range_id": range_id,
                **key._asdict(),
                "trees": [tree_id for tree_id, _ in branches],
                "branches": [branch_id for _, branch_id in branches],
            },
        )
        if not is_owner:
            raise shard_lost(shard_id, range_id)

    async def create_namespace(self, namespace_id: str, name: str, payload: bytes, version: int = 1) -> None:
        new = StoredNamespace(namespace_id, name, payload, version)
        if not await self._connections.write(statements.CREATE_NAMESPACE, new._asdict()):
            present = await self.read_namespace(namespace_id=namespace_id) or await self.read_namespace(name=name)
            raise namespace_taken(present or new)

    async def update_namespace(self, namespace_id: str, payload: bytes, *, expected_version: int) -> int:
        return await self._change_namespace(namespace_id, name=None, payload=payload, expected_version=expected_version)

    async def rename_namespace(self, namespace_id: str, name: str, *, expected_version: int) -> int:
        try:
            return await self._change_namespace(
                namespace_id, name=name, payload=None, expected_version=expected_version
            )
        except errors.UniqueViolation as refused:
            present = await self.read_namespace(name=name)
            raise namespace_taken(present or StoredNamespace("", name, b"", 0)) from refused

    async def delete_namespace(self, namespace_id: str, *, expected_version: int) -> None:
        parameters = {"namespace_id": namespace_id, "expected_version": expected_version}
        if not await self._connections.write(statements.DELETE_NAMESPACE, parameters):
            present = await self.read_namespace(namespace_id=namespace_id)
            raise namespace_conflict(namespace_id, present, expected_version=expected_version)

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        if namespace_id is not None:
            rows = await self._connections.read(statements.READ_NAMESPACE, {"namespace_id": namespace_id})
        elif name is not None:
            rows = await self._connections.read(statements.READ_NAMESPACE_BY_NAME, {"name": name})
        else:
            raise FixRequest("read_namespace needs namespace_id or name")
        return StoredNamespace(*rows[0]) if rows else None

    async def list_namespaces(self, *, after: str | None, limit: int) -> list[StoredNamespace]:
        rows = await self._connections.read(statements.LIST_NAMESPACES, {"after": after or "", "limit": limit})
        return [StoredNamespace(*row) for row in rows]

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        rows = await self._connections.read(statements.READ_METADATA, {"key": key})
        return StoredMetadata(*rows[0]) if rows else None

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        parameters = {"key": key, "payload": payload}
        if expected_version == 0:
            rows = await self._connections.write(statements.CREATE_METADATA, parameters)
        else:
            rows = await self._connections.write(
                statements.UPDATE_METADATA, {**parameters, "expected_version": expected_version}
            )
        if not rows:
            raise metadata_conflict(key, await self.read_metadata(key), expected_version=expected_version)
        return int(rows[0][0])

    async def delete_metadata(self, key: str, *, expected_version: int) -> None:
        parameters = {"key": key, "expected_version": expected_version}
        if not await self._connections.write(statements.DELETE_METADATA, parameters):
            raise metadata_conflict(key, await self.read_metadata(key), expected_version=expected_version)

    async def list_metadata(self, *, prefix: str, after: str | None, limit: int) -> list[StoredMetadata]:
        parameters = {"prefix": prefix, "after": after or "", "limit": limit}
        rows = await self._connections.read(statements.LIST_METADATA, parameters)
        return [StoredMetadata(*row) for row in rows]

    async def list_visibility(
        self,
        namespace_id: str,
        where: Predicate | None = None,
        *,
        order: Order | Sort = LATEST_FIRST,
        after: Cursor | None = None,
        limit: int,
    ) -> list[VisibilityRow]:
        query = Query(namespace_id, where)
        statement = query.list_rows(order=order, after=after, limit=limit)
        return [_visibility_row(row) for row in await self._connections.search(statement, query.parameters)]

    async def count_visibility(
        self, namespace_id: str, where: Predicate | None = None, *, group_by: Field | None = None
    ) -> list[Group]:
        query = Query(namespace_id, where)
        statement = query.count_rows(group_by=group_by)
        return [_group(row) for row in await self._connections.search(statement, query.parameters)]

    async def _change_namespace(
        self, namespace_id: str, *, name: str | None, payload: bytes | None, expected_version: int
    ) -> int:
        changed = {"namespace_id": namespace_id, "name": name, "payload": payload, "expected_version": expected_version}
        rows = await self._connections.write(statements.CHANGE_NAMESPACE, changed)
        if not rows:
            present = await self.read_namespace(namespace_id=namespace_id)
            raise namespace_conflict(namespace_id, present, expected_version=expected_version)
        return int(rows[0][0])

    async def _explained(self, shard_id: int, commit: Commit, rejection: Exception) -> Exception:
        if not isinstance(rejection, Refused):
            return rejection
        return await self._refusal(shard_id, commit, rejection.outcome, rejection.place)

    async def _refusal(self, shard_id: int, commit: Commit, outcome: str, place: int) -> FairleadError:
        """The error for a rejected commit. It shows the present state, which is read after the rejection."""
        if outcome == "current":
            current = commit.current[place]
            return current_conflict(
                current, await self.read_current(shard_id, current.namespace_id, current.workflow_id)
            )
        if outcome == "run":
            run = commit.runs[place]
            return run_conflict(run, await self.read_run(shard_id, *RunKey.of(run)))
        if outcome == "task":
            task = commit.tasks[place]
            parameters = {"shard_id": shard_id, "queue": task.queue}
            rows = await self._connections.read(statements.LOAD_LEVEL, parameters)
            return task_below_level(task, TaskKey(*rows[0]) if rows else TASK_KEY_ZERO)
        branch = commit.branches[place]
        return fork_broken(branch, branch.ancestors[-1])


def _visibility_row(row: Row) -> VisibilityRow:
    *columns, attributes = row
    return VisibilityRow._make([*columns, decode_attributes(attributes)])


def _group(row: Row) -> Group:
    encoded, rows = row
    value = None if encoded is None else msgspec.json.decode(encoded)
    return Group(None if value is None else decode_value(value), rows)
