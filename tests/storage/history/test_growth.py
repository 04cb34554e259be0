"""Queries of visibility read as many rows in a large store as in a small one, and counts follow every change."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead.storage.commit import Commit
from fairlead.storage.history import (
    LATEST_FIRST,
    And,
    Attribute,
    Column,
    Compare,
    Contains,
    Group,
    HistoryStore,
    In,
    Operator,
    Order,
    Predicate,
    VisibilityDelete,
    VisibilityRow,
)
from fairlead.storage.migrations import load_migrations
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.postgres.history_search import Query
from fairlead.storage.postgres.statements import ALLOW_ANY_PLAN
from fairlead.storage.sqlite import SqliteStore, history_search, history_statements
from fairlead.storage.sqlite.file import split_statements
from fairlead.storage.visibility import Cursor, Field, Kind, encode_attributes
from fairlead.storage.visibility_order import Sort, SortKey
from tests.storage.history.hosts import raw_connection
from tests.storage.history.writes import NAMESPACE, SHARD, row

SMALL, LARGE = 1_000, 5_000
RUNNING, COMPLETED, FAILED = 1, 2, 3
PAGE = 20
BY_START = Sort((SortKey(Column.START_TIME_NS, Kind.NUMBER, descending=True),))
BY_START_ASCENDING = Sort((SortKey(Column.START_TIME_NS, Kind.NUMBER, descending=False),))


def equal(field: Field, value: str | int) -> Compare:
    return Compare(field, Operator.EQUAL, value)


# Each finds 10 rows or a page, for any number of rows.
LISTS: dict[str, tuple[Predicate | None, Order | Sort, Cursor | None]] = {
    "one type": (equal(Column.WORKFLOW_TYPE, "Rare"), LATEST_FIRST, None),
    "one status": (equal(Column.STATUS, FAILED), LATEST_FIRST, None),
    "a keyword": (equal(Attribute("Customer"), "c-7"), LATEST_FIRST, None),
    "a number": (equal(Attribute("Batch"), 7), LATEST_FIRST, None),
    "an item of a list": (Contains(Attribute("Tags"), "tag-7"), LATEST_FIRST, None),
    "a keyword that many have": (equal(Attribute("Region"), "eu"), LATEST_FIRST, None),
    "one workflow id, and its type": (
        And((equal(Column.WORKFLOW_TYPE, "Common"), equal(Column.WORKFLOW_ID, "workflow-70"))),
        LATEST_FIRST,
        None,
    ),
    "a common type, and a keyword": (
        And((equal(Column.WORKFLOW_TYPE, "Common"), equal(Attribute("Customer"), "c-7"))),
        LATEST_FIRST,
        None,
    ),
    "two statuses that many have": (In(Column.STATUS, (RUNNING, COMPLETED)), LATEST_FIRST, None),
    "all, by start": (None, BY_START, None),
    "all, by start, a later page": (None, BY_START, (900, "run-900")),
    "all, by start, ascending": (None, BY_START_ASCENDING, None),
    "all, by start, ascending, a later page": (None, BY_START_ASCENDING, (300, "run-300")),
}
COUNTS: dict[str, tuple[Predicate | None, Field | None]] = {
    "all": (None, None),
    "by status": (None, Column.STATUS),
    "one status": (equal(Column.STATUS, COMPLETED), None),
    "one type": (equal(Column.WORKFLOW_TYPE, "Rare"), None),
    "a keyword": (equal(Attribute("Customer"), "c-7"), None),
}


def rows_of(count: int) -> list[VisibilityRow]:
    """Visibility rows: the first 20 have a rare type, half of these have failed; each customer has ten rows."""
    return [
        row(
            f"run-{number}",
            workflow_id=f"workflow-{number}",
            workflow_type="Rare" if number < 20 else "Common",
            status=FAILED if number < 10 else RUNNING if number % 2 else COMPLETED,
            start_time_ns=number,
            close_time_ns=None if number % 2 and number >= 10 else number,
            search_attributes={
                "Customer": f"c-{number // 10}",
                "Batch": number // 10,
                "Tags": ("all", f"tag-{number // 10}"),
                "Region": "eu" if number % 2 else "us",
            },
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def sqlite_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[sqlite3.Connection]]:
    """A small and a large file."""
    folder = tmp_path_factory.mktemp("growth")

    async def write(file: Path, count: int) -> None:
        store = await SqliteStore.open(file)
        await _write(store.history, rows_of(count))
        await store.close()

    connections = []
    for count in (SMALL, LARGE):
        asyncio.run(write(folder / f"{count}.db", count))
        connections.append(sqlite3.connect(folder / f"{count}.db"))
    yield connections
    for connection in connections:
        connection.close()


def steps(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> tuple[int, list[Any]]:
    """The number of instructions that SQLite executes for a query, and its rows."""
    executed = 0

    def count() -> int:
        nonlocal executed
        executed += 1
        return 0

    connection.set_progress_handler(count, 1)
    found = connection.execute(sql, values).fetchall()
    connection.set_progress_handler(None, 0)
    return executed, found


@pytest.mark.parametrize("name", LISTS)
def test_a_list_reads_no_more_of_a_large_sqlite_file_than_of_a_small_one(
    sqlite_files: list[sqlite3.Connection], name: str
) -> None:
    where, order, after = LISTS[name]
    sql, values = history_search.list_statement(NAMESPACE, where, order=order, after=after, limit=PAGE)
    (small, found), (large, found_in_large) = (steps(file, sql, values) for file in sqlite_files)
    assert 1 <= len(found) == len(found_in_large) <= PAGE
    assert large <= 1.3 * small


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_reads_no_more_of_a_large_sqlite_file_than_of_a_small_one(
    sqlite_files: list[sqlite3.Connection], name: str
) -> None:
    where, group_by = COUNTS[name]
    sql, values = history_search.count_statement(NAMESPACE, where, group_by=group_by)
    (small, _), (large, _) = (steps(file, sql, values) for file in sqlite_files)
    assert large <= 1.3 * small


# Changes of a row with search attributes, as functions of its latest values.
CHANGES: dict[str, Callable[[VisibilityRow], VisibilityRow]] = {
    "close": lambda row: row._replace(status=COMPLETED, close_time_ns=10**9),
    "other attributes": lambda row: row._replace(search_attributes={"Region": "eu", "Tags": ("all", "all", "new")}),
    "no attributes": lambda row: row._replace(search_attributes={}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_attributes_reads_no_more_of_a_large_sqlite_file_than_of_a_small_one(
    sqlite_files: list[sqlite3.Connection], name: str
) -> None:
    changed = CHANGES[name](rows_of(SMALL)[500])
    values = [0, *changed[:-1], encode_attributes(changed.search_attributes)]
    small, large = (_steps_of_move(file, values) for file in sqlite_files)
    assert large <= 1.3 * small


def test_a_delete_reads_no_more_of_a_large_sqlite_file_than_of_a_small_one(
    sqlite_files: list[sqlite3.Connection],
) -> None:
    values = [1, NAMESPACE, rows_of(SMALL)[500].run_id, *history_statements.LOGGED_DELETE]
    small, large = (_steps_of_move(file, values) for file in sqlite_files)
    assert large <= 1.3 * small


def _steps_of_move(connection: sqlite3.Connection, values: Sequence[Any]) -> int:
    """The number of instructions that move one row out of the log."""
    connection.execute(history_statements.log_visibility(1), values)
    logged = connection.total_changes
    moves = (history_statements.DELETE_LOGGED_DELETES, history_statements.MOVE_LOGGED)
    executed = sum(steps(connection, sql, ())[0] for sql in moves)
    assert connection.total_changes > logged
    connection.rollback()
    return executed


async def test_the_items_of_lists_follow_inserts_changes_and_deletes(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)

    async def found(tag: str, *changes: VisibilityRow | VisibilityDelete) -> int:
        await store.commit(SHARD, lease.range_id, Commit(visibility=changes))
        (group,) = await store.count_visibility(NAMESPACE, Contains(Attribute("Tags"), tag))
        return group.rows

    plain = row("run-1", search_attributes={})
    assert await found("a", plain) == 0
    assert await found("a", plain._replace(search_attributes={"Tags": ("a", "b", "a"), "Number": 1})) == 1
    assert await found("b", plain._replace(search_attributes={"Tags": ("a", "b", "a"), "Number": 2})) == 1
    closed = plain._replace(search_attributes={"Tags": ("b", "b", "c")}, close_time_ns=5_000, status=COMPLETED)
    assert await found("a", closed) == 0
    assert await found("b") == await found("c") == 1
    assert await found("b", VisibilityDelete(NAMESPACE, "run-1")) == 0


async def test_a_query_reads_few_rows_of_a_large_table_of_postgresql(postgres_dsn: str) -> None:
    store = await PostgresStore.open(postgres_dsn)
    await _write(store.history, rows_of(LARGE))
    read: dict[str, int] = {}
    async with raw_connection(postgres_dsn) as connection:
        # VACUUM first: until then, every query also reads the index's list of new values.
        await connection.execute("VACUUM ANALYZE visibility")
        await connection.execute(ALLOW_ANY_PLAN)
        for name, (where, order, after) in LISTS.items():
            query = Query(NAMESPACE, where)
            statement = query.list_rows(order=order, after=after, limit=PAGE)
            read[f"list: {name}"] = await _rows_read(connection, statement, query)
        for name, (where, group_by) in COUNTS.items():
            query = Query(NAMESPACE, where)
            read[f"count: {name}"] = await _rows_read(connection, query.count_rows(group_by=group_by), query)
    await store.close()
    # Rows of one page, plus neighbors that have the same sort keys or fail another condition.
    assert {name: rows for name, rows in read.items() if rows > 5 * PAGE} == {}


async def _rows_read(connection: Any, statement: bytes, query: Query) -> int:
    """The number of rows that the scans of a query's plan read, with those that a condition removed."""
    explained = await connection.execute(b"EXPLAIN (ANALYZE, FORMAT JSON) " + statement, query.parameters)
    (found,) = await explained.fetchone()
    plans, read = [(found if isinstance(found, list) else json.loads(found))[0]["Plan"]], 0
    while plans:
        plan = plans.pop()
        plans += plan.get("Plans", [])
        if "Scan" in plan["Node Type"]:
            removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
            read += (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    return int(read)


async def _write(history: HistoryStore, rows: Sequence[VisibilityRow]) -> None:
    lease = await history.take_shard(SHARD)
    for begin in range(0, len(rows), 1_000):
        await history.commit(SHARD, lease.range_id, Commit(visibility=rows[begin : begin + 1_000]))


async def test_counts_by_status_follow_inserts_changes_and_deletes(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)

    async def commit(*changes: VisibilityRow | VisibilityDelete) -> list[Group]:
        await store.commit(SHARD, lease.range_id, Commit(visibility=changes))
        return await store.count_visibility(NAMESPACE, group_by=Column.STATUS)

    assert await store.count_visibility(NAMESPACE) == [Group(None, 0)]
    first, second, third = (row(f"run-{number}", status=RUNNING) for number in range(3))
    assert await commit(first, second, third) == [Group(RUNNING, 3)]
    assert await commit(first._replace(status=COMPLETED), second) == [Group(RUNNING, 2), Group(COMPLETED, 1)]
    assert sorted(await commit(VisibilityDelete(NAMESPACE, second.run_id))) == [Group(RUNNING, 1), Group(COMPLETED, 1)]
    assert await store.count_visibility(NAMESPACE) == [Group(None, 2)]
    assert await store.count_visibility(NAMESPACE, equal(Column.STATUS, COMPLETED)) == [Group(None, 1)]
    assert await commit(VisibilityDelete(NAMESPACE, first.run_id), third._replace(status=FAILED)) == [Group(FAILED, 1)]


async def test_a_list_by_attribute_follows_changes_and_deletes(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    customer = Attribute("Customer")

    async def found(value: str) -> list[str]:
        return [one.run_id for one in await store.list_visibility(NAMESPACE, equal(customer, value), limit=10)]

    old = row("old", start_time_ns=1, search_attributes={"Customer": "a", "Tags": ("x", "x", "y")})
    new = row("new", start_time_ns=2, search_attributes={"Customer": "a"})
    await store.commit(SHARD, lease.range_id, Commit(visibility=[old, new]))
    assert await found("a") == ["new", "old"]
    # A closed run is listed after the open ones.
    await store.commit(SHARD, lease.range_id, Commit(visibility=[new._replace(close_time_ns=3, status=COMPLETED)]))
    assert await found("a") == ["old", "new"]
    changed = old._replace(search_attributes={"Customer": "b", "Tags": ("y",)})
    await store.commit(SHARD, lease.range_id, Commit(visibility=[changed]))
    assert (await found("a"), await found("b")) == (["new"], ["old"])
    tagged = [
        [one.run_id for one in await store.list_visibility(NAMESPACE, Contains(Attribute("Tags"), tag), limit=10)]
        for tag in ("x", "y")
    ]
    assert tagged == [[], ["old"]]
    await store.commit(SHARD, lease.range_id, Commit(visibility=[VisibilityDelete(NAMESPACE, "old")]))
    assert await found("b") == []


def test_a_file_of_an_older_release_gets_its_values_and_counts() -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    *older, newest = [step for step in load_migrations("sqlite") if step.version <= 6]
    for step in older:
        for statement in split_statements(step.sql):
            database.execute(statement)
    for number in range(3):
        database.execute(
            "INSERT INTO visibility (namespace_id, run_id, workflow_id, workflow_type, status, start_time_ns,"
            " execution_time_ns, task_queue, memo, search_attributes) VALUES ('n', ?, 'w', 't', ?, 1, 1, 'q', x'', ?)",
            (f"run-{number}", 1 + number % 2, json.dumps({"Customer": f"c-{number}", "Tags": ["a", "a"]})),
        )
    for statement in split_statements(newest.sql):
        database.execute(statement)
    counts = database.execute("SELECT status, rows FROM visibility_counts ORDER BY status").fetchall()
    values = database.execute("SELECT attribute, attribute_value, of_run_id FROM visibility_values").fetchall()
    database.close()
    assert counts == [(1, 2), (2, 1)]
    assert values == [
        *(("Customer", f"c-{number}", f"run-{number}") for number in range(3)),
        *(("Tags", "a", f"run-{number}") for number in range(3)),
    ]
