# ruff: noqa: D102 - the contract documents each method
import sqlite3
from collections.abc import Sequence

import msgspec

from fairlead.core.errors import FixRequest
from fairlead.storage.commit import Segment, segments_of
from fairlead.storage.history import (
    BATCHES_A_PAGE_MAX,
    CurrentRun,
    ListedRun,
    RunKey,
    StoredBatch,
    StoredHistoryTask,
    StoredMetadata,
    StoredNamespace,
    StoredRun,
    TaskKey,
)
from fairlead.storage.predicates import Predicate
from fairlead.storage.sqlite import history_search
from fairlead.storage.sqlite import history_statements as statements
from fairlead.storage.sqlite.history_tables import ancestors_of
from fairlead.storage.sqlite.readers import Readers, Row
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


class SqliteHistoryReader:
    """The reads of a `HistoryStore`: they don't wait for commits, and need no write access."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def read_run(self, shard_id: int, namespace_id: str, workflow_id: str, run_id: str) -> StoredRun | None:
        row_key = (shard_id, namespace_id, workflow_id, run_id)
        found = await self._readers.rows(statements.READ_RUN, row_key, lambda row: StoredRun(*row))
        return found[0] if found else None

    async def read_current(self, shard_id: int, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        row_key = (shard_id, namespace_id, workflow_id)
        found = await self._readers.rows(statements.READ_CURRENT, row_key, lambda row: CurrentRun(*row))
        return found[0] if found else None

    async def list_runs(self, shard_id: int, *, after: RunKey | None, limit: int) -> list[ListedRun]:
        values = (shard_id, *(after or ("", "", "")), limit)
        return await self._readers.rows(statements.LIST_RUNS, values, lambda row: ListedRun(*row))

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
        def read(reader: sqlite3.Connection) -> list[StoredBatch]:
            # Read in one transaction, so that concurrent deletes have no effect.
            reader.execute("BEGIN")
            try:
                found = reader.execute(statements.FIND_BRANCH, (tree_id, branch_id)).fetchone()
                if found is None:
                    return []
                segments = segments_of(
                    branch_id,
                    ancestors_of(found[1]),
                    from_event_id=from_event_id,
                    to_event_id=to_event_id,
                    reverse=reverse,
                )
                return _read_segments(reader, tree_id, segments, limit_bytes=limit_bytes, reverse=reverse)
            finally:
                reader.execute("COMMIT")

        return await self._readers.run(read)

    async def read_tasks(
        self, shard_id: int, queue: str, *, after: TaskKey, until_ns: int | None, limit: int
    ) -> list[StoredHistoryTask]:
        values = (shard_id, queue, *after, INT64_MAX if until_ns is None else until_ns, limit)
        return await self._readers.rows(
            statements.READ_TASKS, values, lambda row: StoredHistoryTask(TaskKey(row[0], row[1]), row[2])
        )

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        statement = statements.READ_NAMESPACE_BY_NAME if namespace_id is None else statements.READ_NAMESPACE
        wanted = name if namespace_id is None else namespace_id
        if wanted is None:
            raise FixRequest("read_namespace needs namespace_id or name")
        found = await self._readers.rows(statement, (wanted,), lambda row: StoredNamespace(*row))
        return found[0] if found else None

    async def list_namespaces(self, *, after: str | None, limit: int) -> list[StoredNamespace]:
        return await self._readers.rows(
            statements.LIST_NAMESPACES, (after or "", limit), lambda row: StoredNamespace(*row)
        )

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        found = await self._readers.rows(statements.READ_METADATA, (key,), lambda row: StoredMetadata(*row))
        return found[0] if found else None

    async def list_metadata(self, *, prefix: str, after: str | None, limit: int) -> list[StoredMetadata]:
        values = (after or "", prefix, len(prefix), prefix, limit)
        return await self._readers.rows(statements.LIST_METADATA, values, lambda row: StoredMetadata(*row))

    async def list_visibility(
        self,
        namespace_id: str,
        where: Predicate | None = None,
        *,
        order: Order | Sort = LATEST_FIRST,
        after: Cursor | None = None,
        limit: int,
    ) -> list[VisibilityRow]:
        statement = history_search.list_statement(namespace_id, where, order=order, after=after, limit=limit)
        return await self._readers.rows(*statement, _visibility_row)

    async def count_visibility(
        self, namespace_id: str, where: Predicate | None = None, *, group_by: Field | None = None
    ) -> list[Group]:
        statement = history_search.count_statement(namespace_id, where, group_by=group_by)
        return await self._readers.rows(*statement, _group)


def _read_segments(
    reader: sqlite3.Connection, tree_id: str, segments: Sequence[Segment], *, limit_bytes: int, reverse: bool
) -> list[StoredBatch]:
    statement = statements.READ_BATCHES_REVERSE if reverse else statements.READ_BATCHES
    page: list[StoredBatch] = []
    size_bytes = 0
    for segment in segments:
        number = reader.execute(statements.BRANCH_NUMBER, (tree_id, segment.branch_id)).fetchone()
        if number is None:
            continue
        rows = reader.execute(statement, (*number, segment.from_event_id, segment.to_event_id))
        # Fetch row by row, so that SQLite reads no row after the end of the page.
        for row in rows:
            size_bytes += len(row[-1])
            if page and (size_bytes > limit_bytes or len(page) >= BATCHES_A_PAGE_MAX):
                rows.close()
                return page
            page.append(StoredBatch(*row))
    return page


def _visibility_row(row: Row) -> VisibilityRow:
    *columns, attributes = row
    return VisibilityRow._make([*columns, decode_attributes(attributes)])


def _group(row: Row) -> Group:
    encoded, rows = row
    value = None if encoded is None else msgspec.json.decode(encoded)
    return Group(None if value is None else decode_value(value), rows)
