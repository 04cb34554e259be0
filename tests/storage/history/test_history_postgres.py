"""Properties of the PostgreSQL store only: several hosts on one database, lost connections, query plans."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import psycopg
import pytest

from fairlead.storage.commit import Commit
from fairlead.storage.history import (
    LATEST_FIRST,
    Attribute,
    Compare,
    Contains,
    HistoryStore,
    LeaseLost,
    Operator,
    OutcomeUnknown,
    Predicate,
    StoreUnavailable,
    TaskKey,
)
from fairlead.storage.history_conflicts import RunConflict, TaskBelowLevel
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.postgres.connections import Unstorable
from fairlead.storage.postgres.history_search import Query
from fairlead.storage.postgres.statements import ALLOW_ANY_PLAN
from tests.storage.history.writes import NAMESPACE, SHARD, assert_whole_or_absent, everything, key, row, run, task

OpenStore = Callable[[], Awaitable[PostgresStore]]
Raw = psycopg.AsyncConnection[tuple[object, ...]]


@pytest.fixture
async def open_store(postgres_dsn: str) -> AsyncIterator[OpenStore]:
    """Opens another store on the test's database; each stands for one host."""
    stores: list[PostgresStore] = []

    async def open_one() -> PostgresStore:
        stores.append(await PostgresStore.open(postgres_dsn, application_name=f"host{len(stores)}"))
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


@asynccontextmanager
async def raw_connection(dsn: str) -> AsyncIterator[Raw]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


async def waiting_backend(dsn: str) -> int:
    """Waits until a statement of a store waits for a lock; returns the process id of its backend."""
    async with raw_connection(dsn) as connection:
        for _ in range(500):
            found = await connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            rows = await found.fetchall()
            if rows:
                return int(str(rows[0][0]))
            await asyncio.sleep(0.01)
    raise AssertionError("no statement came to wait for a lock")


@pytest.mark.parametrize("seed", range(3))
async def test_the_new_owner_sees_a_commit_in_flight_at_its_takeover_or_the_commit_is_refused(
    open_store: OpenStore, seed: int
) -> None:
    """FL-42: a shard has an owner, and its range id fences every write."""
    chance = random.Random(seed)
    old, new = (await open_store()).history, (await open_store()).history
    numbers = count(1)
    acknowledged: set[int] = set()
    refused: set[int] = set()

    async def write_until_refused(store: HistoryStore, range_id: int) -> None:
        for _ in range(2000):
            number = next(numbers)
            await asyncio.sleep(chance.random() * 0.002)
            try:
                await store.commit(SHARD, range_id, everything(number))
            except LeaseLost:
                refused.add(number)
                return
            acknowledged.add(number)
        raise AssertionError(f"range id {range_id} was never refused")

    lease = await old.take_shard(SHARD)
    for _ in range(10):
        writers = [asyncio.create_task(write_until_refused(old, lease.range_id)) for _ in range(8)]
        await asyncio.sleep(chance.random() * 0.03)
        taken = await new.take_shard(SHARD)
        seen = {int(one.run_id[4:]) for one in await new.list_runs(SHARD, after=None, limit=100_000)}
        await asyncio.gather(*writers)
        # Every commit that was acknowledged to the old owner, before or after the takeover, was visible to the new one.
        assert seen == acknowledged
        assert not refused & seen
        assert taken.range_id == lease.range_id + 1
        old, new, lease = new, old, taken
    for number in sorted(acknowledged)[::10]:
        assert await assert_whole_or_absent(new, number)
    for number in refused:
        assert not await assert_whole_or_absent(new, number)


async def test_commits_of_one_shard_do_not_wait_for_each_other(open_store: OpenStore, postgres_dsn: str) -> None:
    store = (await open_store()).history
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, Commit(runs=[run()]))
    async with raw_connection(postgres_dsn) as connection, connection.transaction():
        # Like a commit in flight: holds a share of the shard's lock, and the lock of its own run.
        await connection.execute("SELECT 1 FROM history_shards FOR SHARE")
        await connection.execute("SELECT 1 FROM history_runs FOR UPDATE")
        await asyncio.wait_for(store.commit(SHARD, lease.range_id, everything(2)), 5)
        waiting = asyncio.create_task(store.commit(SHARD, lease.range_id, Commit(runs=[run(expected=1)])))
        await waiting_backend(postgres_dsn)
    await waiting
    found = await store.read_run(SHARD, *key())
    assert found is not None
    assert found.db_version == 2


async def test_a_commit_conflicts_with_another_that_creates_the_same_run_at_the_same_time(
    open_store: OpenStore, postgres_dsn: str
) -> None:
    store = (await open_store()).history
    lease = await store.take_shard(SHARD)
    async with raw_connection(postgres_dsn) as connection, connection.transaction():
        await connection.execute(
            "INSERT INTO history_runs VALUES (%s, %s, %s, %s, 1, 3, 1, 17, 'other')", (SHARD, *key())
        )
        # The commit reads that there is no such run, and finds the other one when it writes.
        waiting = asyncio.create_task(store.commit(SHARD, lease.range_id, Commit(runs=[run()], tasks=[task(1)])))
        await waiting_backend(postgres_dsn)
    with pytest.raises(RunConflict) as raised:
        await waiting
    assert raised.value.present is not None
    assert raised.value.present.state == b"other"
    assert await store.read_tasks(SHARD, "transfer", after=TaskKey(0, 0), until_ns=None, limit=1) == []


async def test_the_ack_level_is_not_raised_past_a_commit_in_flight(open_store: OpenStore, postgres_dsn: str) -> None:
    store = (await open_store()).history
    lease = await store.take_shard(SHARD)
    async with raw_connection(postgres_dsn) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM history_shards FOR SHARE")
        completing = asyncio.create_task(store.complete_tasks(SHARD, lease.range_id, "transfer", TaskKey(0, 9)))
        await waiting_backend(postgres_dsn)
    await completing
    with pytest.raises(TaskBelowLevel):
        await store.commit(SHARD, lease.range_id, Commit(tasks=[task(9)]))


async def test_a_connection_lost_before_the_response_leaves_the_outcome_unknown(
    open_store: OpenStore, postgres_dsn: str
) -> None:
    store = (await open_store()).history
    lease = await store.take_shard(SHARD)
    async with raw_connection(postgres_dsn) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM history_shards FOR UPDATE")
        waiting = asyncio.create_task(store.commit(SHARD, lease.range_id, everything(1)))
        async with raw_connection(postgres_dsn) as other:
            await other.execute("SELECT pg_terminate_backend(%s)", (await waiting_backend(postgres_dsn),))
        with pytest.raises(OutcomeUnknown, match="renew"):
            await waiting
    range_id = await store.renew_shard(SHARD, lease.range_id)
    assert not await assert_whole_or_absent(store, 1)
    await store.commit(SHARD, range_id, everything(1))
    with pytest.raises(RunConflict):
        await store.commit(SHARD, range_id, everything(1)._replace(current=[]))
    assert await assert_whole_or_absent(store, 1)


@pytest.mark.parametrize(
    "commit",
    [
        Commit(runs=[run("a\0b")]),
        Commit(runs=[run("\ud800")]),
        Commit(tasks=[task(2**64)]),
        Commit(visibility=[row(workflow_type="\0")]),
        Commit(runs=[run(workflow_id="".join(map(chr, range(0x10000, 0x10000 + 1000))))]),
    ],
)
async def test_a_value_that_postgresql_can_not_store_is_refused_as_invalid(
    open_store: OpenStore, commit: Commit
) -> None:
    store = (await open_store()).history
    lease = await store.take_shard(SHARD)
    both = everything(1)._replace(**{name: rows for name, rows in commit._asdict().items() if rows})
    with pytest.raises(Unstorable):
        await store.commit(SHARD, lease.range_id, both._replace(current=[]))
    assert await store.list_runs(SHARD, after=None, limit=10) == []
    assert await store.list_visibility(NAMESPACE, limit=10) == []


@pytest.mark.parametrize("where", [Compare(Attribute("A"), Operator.EQUAL, "x 7"), Contains(Attribute("B"), "y 7")])
async def test_a_query_by_search_attribute_uses_its_index(
    open_store: OpenStore, postgres_dsn: str, where: Predicate
) -> None:
    store = (await open_store()).history
    lease = await store.take_shard(SHARD)
    rows = [
        row(f"run-{number}", search_attributes={"A": f"x {number}", "B": ("y", f"y {number}")})
        for number in range(5000)
    ]
    await store.commit(SHARD, lease.range_id, Commit(visibility=rows))
    assert [one.run_id for one in await store.list_visibility(NAMESPACE, where, limit=10)] == ["run-7"]
    async with raw_connection(postgres_dsn) as connection:
        await connection.execute("ANALYZE visibility")
        await connection.execute(ALLOW_ANY_PLAN)
        query = Query(NAMESPACE, where)
        statement = b"EXPLAIN " + query.list_rows(order=LATEST_FIRST, after=None, limit=10)
        plan = " ".join(
            str(line) for (line,) in await (await connection.execute(statement, query.parameters)).fetchall()
        )
    assert "visibility_attributes" in plan


async def test_a_closed_store_refuses_writes(postgres_dsn: str) -> None:
    store = await PostgresStore.open(postgres_dsn)
    lease = await store.history.take_shard(SHARD)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.history.commit(SHARD, lease.range_id, everything(1))
    with pytest.raises(StoreUnavailable):
        await store.history.list_visibility(NAMESPACE, limit=1)
