"""Properties of the PostgreSQL store only: several hosts on one database, lost connections, server restarts."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import TypeVar

import psycopg
import pytest

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import PartitionConfig, TaskType
from fairlead.storage.migrations import load_migrations
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.postgres.appends import APPENDS_WAITING_MAX, GROUP_TASKS_MAX
from fairlead.storage.postgres.connections import Unstorable
from fairlead.storage.tasks import (
    LeaseLost,
    Levels,
    LevelTaken,
    Member,
    OutcomeUnknown,
    QueueId,
    SchemaTooNew,
    StoredTask,
    StoreUnavailable,
)
from tests.patience import step, until
from tests.storage.postgres_cluster import private_cluster

QUEUE = QueueId("namespace", "queue", TaskType.WORKFLOW)
PRIORITY = 3

Raw = psycopg.AsyncConnection[tuple[object, ...]]
OpenStore = Callable[..., Awaitable[PostgresStore]]
Response = TypeVar("Response")


@pytest.fixture
async def open_store(postgres_dsn: str) -> AsyncIterator[OpenStore]:
    """Opens another store on the test's database; each stands for one host."""
    stores: list[PostgresStore] = []

    async def open_one(**options: object) -> PostgresStore:
        stores.append(await PostgresStore.open(postgres_dsn, application_name=f"host{len(stores)}", **options))  # type: ignore[arg-type]
        return stores[-1]

    yield open_one
    for store in stores:
        await store.close()


@asynccontextmanager
async def raw_connection(dsn: str) -> AsyncIterator[Raw]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def locked_queue(dsn: str) -> AsyncIterator[Raw]:
    """A transaction that locks every queue's row, like a write in flight."""
    async with raw_connection(dsn) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM queues FOR UPDATE")
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


def task(number: int) -> StoredTask:
    return StoredTask(Level(number * 7, number), f"key{number % 5}", 1.5, b"payload %d" % number)


def levels_of(*tasks: StoredTask) -> Levels:
    return Levels(LEVEL_ZERO, max(task.level for task in tasks))


async def append(store: PostgresStore, range_id: int, *numbers: int) -> None:
    tasks = [task(number) for number in numbers]
    await store.append(QUEUE, range_id, PRIORITY, tasks, levels_of(*tasks))


async def stored_numbers(store: PostgresStore) -> set[int]:
    rows = await store.read(QUEUE, PRIORITY, after=LEVEL_ZERO, limit=1_000_000)
    assert rows == sorted(rows)
    assert rows == [task(row.level.task_id) for row in rows]
    return {row.level.task_id for row in rows}


@pytest.mark.parametrize("seed", range(4))
async def test_the_new_owner_sees_an_append_in_flight_at_its_takeover_or_the_append_is_refused(
    open_store: OpenStore, seed: int
) -> None:
    """FB-17: a write takes effect before the takeover, or it fails."""
    chance = random.Random(seed)
    old, new = await open_store(), await open_store()
    numbers = count(1)
    acknowledged: set[int] = set()
    refused: set[int] = set()

    async def write_until_refused(store: PostgresStore, range_id: int) -> None:
        for _ in range(2000):
            wanted = [next(numbers) for _ in range(chance.randint(1, 4))]
            await asyncio.sleep(chance.random() * 0.002)
            try:
                await append(store, range_id, *wanted)
            except LeaseLost:
                refused.update(wanted)
                return
            acknowledged.update(wanted)
        raise AssertionError(f"range id {range_id} was never refused")

    lease = await old.take_lease(QUEUE)
    for _ in range(20):
        writers = [asyncio.create_task(write_until_refused(old, lease.range_id)) for _ in range(chance.randint(1, 12))]
        await asyncio.sleep(chance.random() * 0.02)
        taken = await new.take_lease(QUEUE)
        seen = await stored_numbers(new)
        await asyncio.gather(*writers)
        # Every append that was acknowledged to the old owner, before or after the takeover, was visible to the new one.
        assert seen == acknowledged
        assert await stored_numbers(new) == seen
        assert not refused & seen
        assert taken.range_id == lease.range_id + 1
        assert taken.levels == ({PRIORITY: Levels(LEVEL_ZERO, task(max(seen)).level)} if seen else {})
        old, new, lease = new, old, taken


@pytest.mark.parametrize("seed", range(8))
async def test_no_write_of_any_kind_takes_effect_after_a_takeover(open_store: OpenStore, seed: int) -> None:
    """FL-42: deletes are fenced too, so that a stale owner can't delete tasks of the new one."""
    chance = random.Random(seed)
    old, new = await open_store(), await open_store()
    lease = await old.take_lease(QUEUE)
    await append(old, lease.range_id, *range(1, 51))
    stale = lease.range_id
    config = PartitionConfig(version=7, read=3, write=2)
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: append(old, stale, 1000),
        lambda: old.delete_through(QUEUE, stale, PRIORITY, through=Level(10**6, 10**6), limit=1000),
        lambda: old.save_levels(QUEUE, stale, {PRIORITY: Levels(Level(10**6, 1), Level(10**6, 2))}),
        lambda: old.save_config(QUEUE, stale, config),
        lambda: old.renew_lease(QUEUE, stale),
    ]
    chance.shuffle(attempts)

    async def attempt(write: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(chance.random() * 0.01)
        await write()

    started = [asyncio.create_task(attempt(write)) for write in attempts]
    # The takeover comes at a random moment between the writes.
    await asyncio.sleep(chance.random() * 0.01)
    taken = await new.take_lease(QUEUE)
    before = (await stored_numbers(new), await new.load_config(QUEUE), await new.count(QUEUE, taken.range_id))
    outcomes = await asyncio.gather(*started, return_exceptions=True)
    after = (await stored_numbers(new), await new.load_config(QUEUE), await new.count(QUEUE, taken.range_id))
    assert after == before
    assert all(outcome is None or isinstance(outcome, int | LeaseLost) for outcome in outcomes)
    assert (await new.take_lease(QUEUE)).levels == taken.levels


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_takeover_waits_for_the_write_in_flight_and_sees_its_result(
    postgres_dsn: str, open_store: OpenStore, is_committed: bool
) -> None:
    """FB-17: the new owner sees every write that took effect before its takeover."""
    old, new = await open_store(), await open_store()
    lease = await old.take_lease(QUEUE)
    await append(old, lease.range_id, 1)
    async with raw_connection(postgres_dsn) as connection:
        await connection.execute("BEGIN")
        await connection.execute("SELECT number FROM queues WHERE range_id = %s FOR UPDATE", (lease.range_id,))
        taking = asyncio.create_task(new.take_lease(QUEUE))
        await waiting_backend(postgres_dsn)
        # The new owner's statement has begun: later writes are not in its snapshot.
        await connection.execute("UPDATE queue_levels SET max_pass = 14, max_id = 2")
        await connection.execute("INSERT INTO tasks SELECT number, 3, 14, 2, 'key2', 1.5, 'payload 2' FROM queues")
        await connection.execute("UPDATE queues SET config_version = 9, config_read = 2, config_write = 1")
        assert not taking.done()
        await connection.execute("COMMIT" if is_committed else "ROLLBACK")
        taken = await taking
    assert taken.levels == {PRIORITY: Levels(LEVEL_ZERO, task(2 if is_committed else 1).level)}
    assert taken.config == (PartitionConfig(version=9, read=2, write=1) if is_committed else None)
    assert await stored_numbers(new) == ({1, 2} if is_committed else {1})


async def test_a_write_that_waited_for_a_takeover_is_refused(postgres_dsn: str, open_store: OpenStore) -> None:
    old = await open_store()
    lease = await old.take_lease(QUEUE)
    await append(old, lease.range_id, 1)
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: append(old, lease.range_id, 2),
        lambda: old.delete_through(QUEUE, lease.range_id, PRIORITY, through=task(1).level, limit=10),
        lambda: old.save_levels(QUEUE, lease.range_id, {PRIORITY: levels_of(task(9))}),
        lambda: old.save_config(QUEUE, lease.range_id, PartitionConfig(version=1, read=1, write=1)),
        lambda: old.renew_lease(QUEUE, lease.range_id),
    ]
    async with locked_queue(postgres_dsn) as takeover:
        waiting = [asyncio.ensure_future(write()) for write in writes]
        await waiting_backend(postgres_dsn)
        await takeover.execute("UPDATE queues SET range_id = range_id + 1")
        assert not any(write.done() for write in waiting)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LeaseLost] * len(writes)
    assert await stored_numbers(old) == {1}
    assert (await old.take_lease(QUEUE)).levels == {PRIORITY: levels_of(task(1))}
    assert await old.load_config(QUEUE) is None


async def test_a_connection_lost_during_an_append_leaves_its_outcome_unknown(
    postgres_dsn: str, open_store: OpenStore
) -> None:
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn) as holder:
        appending = asyncio.create_task(append(store, lease.range_id, 1, 2))
        await holder.execute("SELECT pg_terminate_backend(%s)", (await waiting_backend(postgres_dsn),))
        with pytest.raises(OutcomeUnknown):
            await appending
    renewed = await store.renew_lease(QUEUE, lease.range_id)
    assert await stored_numbers(store) == set()
    await append(store, renewed, 3)
    assert await stored_numbers(store) == {3}


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_renewal_each_lost_append_is_stored_completely_or_never(
    postgres_dsn: str, open_store: OpenStore, seed: int
) -> None:
    """FB-17: a write with a superseded range id never becomes visible."""
    chance = random.Random(seed)
    store = await open_store(connections_max=4)
    range_id = (await store.take_lease(QUEUE)).range_id
    numbers = count(1)
    acknowledged: set[int] = set()
    unknown: list[set[int]] = []
    async with raw_connection(postgres_dsn) as killer:
        for _ in range(15):

            async def append_several(range_id: int) -> None:
                wanted = [next(numbers) for _ in range(20)]
                await asyncio.sleep(chance.random() * 0.005)
                try:
                    await append(store, range_id, *wanted)
                except OutcomeUnknown:
                    unknown.append(set(wanted))
                else:
                    acknowledged.update(wanted)

            appends = [asyncio.create_task(append_several(range_id)) for _ in range(5)]
            await asyncio.sleep(chance.random() * 0.01)
            await killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'host0' AND datname = current_database()"
            )
            await asyncio.gather(*appends)
            range_id = (await retried(lambda: store.take_lease(QUEUE))).range_id
            seen = await retried(lambda: stored_numbers(store))
            assert acknowledged <= seen
            assert all(rows <= seen or not rows & seen for rows in unknown)
            assert seen <= acknowledged.union(*unknown)
            if chance.random() < 0.2:
                # A write that is still on its way would come now.
                await asyncio.sleep(0.02)
            assert await stored_numbers(store) == seen


async def retried(ask: Callable[[], Awaitable[Response]]) -> Response:
    """The store's response once it has a working connection."""
    deadline_s = time.monotonic() + 20
    while True:
        try:
            return await ask()
        except (StoreUnavailable, OutcomeUnknown):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.05)


async def test_a_connection_that_was_closed_while_idle_is_not_used_again(
    postgres_dsn: str, open_store: OpenStore
) -> None:
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    # Use several connections at once, so that several can be lost.
    await asyncio.gather(*(store.members(now_s=0.0) for _ in range(50)))
    async with raw_connection(postgres_dsn) as killer:
        terminated = await killer.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'host0' AND datname = current_database()"
        )
        assert len(await terminated.fetchall()) > 1
    await append(store, lease.range_id, 1)
    assert await stored_numbers(store) == {1}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_a_store_recovers_by_itself_after_a_restart_of_the_server(how: signal.Signals) -> None:
    """FL-50: committed writes survive a shutdown and a crash of the database server."""
    with private_cluster() as cluster:
        store = await PostgresStore.open(cluster.create_database())
        lease = await store.take_lease(QUEUE)
        numbers = count(1)
        acknowledged: set[int] = set()
        unknown: set[int] = set()
        is_over = asyncio.Event()

        async def keep_appending() -> None:
            while not is_over.is_set():
                number = next(numbers)
                try:
                    await append(store, lease.range_id, number)
                except OutcomeUnknown:
                    unknown.add(number)
                except StoreUnavailable:
                    continue
                else:
                    acknowledged.add(number)

        appending = [asyncio.create_task(keep_appending()) for _ in range(20)]
        await until(lambda: bool(acknowledged))
        await asyncio.to_thread(cluster.stop, how)
        before = set(acknowledged)
        assert before
        with pytest.raises(StoreUnavailable):
            await store.members(now_s=0.0)
        await asyncio.to_thread(cluster.start)
        started_s = time.monotonic()
        await retried(lambda: store.members(now_s=0.0))
        recovered_s = time.monotonic() - started_s
        await until(lambda: acknowledged > before)
        is_over.set()
        await asyncio.gather(*appending)
        seen = await stored_numbers(store)
        await store.close()
    assert recovered_s < 10
    assert acknowledged > before
    assert acknowledged <= seen <= acknowledged | unknown


async def test_a_server_that_stops_responding_leaves_the_outcome_unknown(
    postgres_dsn: str, open_store: OpenStore
) -> None:
    store = await open_store(statement_s_max=0.5)
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn):
        appending = asyncio.create_task(append(store, lease.range_id, 1))
        silent = await waiting_backend(postgres_dsn)
        os.kill(silent, signal.SIGSTOP)
    try:
        with pytest.raises(OutcomeUnknown, match="no response"):
            await appending
        # The other connections still work.
        assert await store.members(now_s=0.0) == []
    finally:
        os.kill(silent, signal.SIGCONT)
    renewed = await store.renew_lease(QUEUE, lease.range_id)
    seen = await stored_numbers(store)
    assert seen in ({1}, set())
    await append(store, renewed, 2)
    assert await stored_numbers(store) == seen | {2}


async def test_a_statement_that_times_out_changes_nothing(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store(statement_s_max=0.2)
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn):
        with pytest.raises(StoreUnavailable, match="nothing was changed"):
            await append(store, lease.range_id, 1)
    assert await stored_numbers(store) == set()


async def test_an_unreachable_server_raises_unavailable(postgres_dsn: str) -> None:
    with pytest.raises(StoreUnavailable, match="is it running"):
        await PostgresStore.open("host=127.0.0.1 port=1 dbname=none")


async def test_waiting_appends_to_one_queue_are_joined_into_one_transaction(
    postgres_dsn: str, open_store: OpenStore
) -> None:
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn):
        first = asyncio.create_task(append(store, lease.range_id, 1))
        await waiting_backend(postgres_dsn)
        others = [asyncio.create_task(append(store, lease.range_id, number)) for number in range(2, 2002)]
        await step()
    await asyncio.gather(first, *others)
    async with raw_connection(postgres_dsn) as connection:
        found = await connection.execute("SELECT count(*) FROM tasks GROUP BY xmin ORDER BY min(task_id)")
        sizes = [int(str(size)) for (size,) in await found.fetchall()]
    assert sizes == [1, GROUP_TASKS_MAX, GROUP_TASKS_MAX]
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: levels_of(task(2001))}


async def test_different_queues_do_not_wait_for_each_other(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    other = QUEUE._replace(name="other")
    async with locked_queue(postgres_dsn):
        waiting = asyncio.create_task(append(store, lease.range_id, 1))
        await waiting_backend(postgres_dsn)
        other_lease = await store.take_lease(other)
        await store.append(other, other_lease.range_id, PRIORITY, [task(1)], levels_of(task(1)))
        assert not waiting.done()
    await waiting


async def test_only_the_invalid_one_of_joined_appends_fails(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store()
    stale = (await store.take_lease(QUEUE)).range_id
    current = await store.renew_lease(QUEUE, stale)
    await append(store, current, 1)
    too_high = StoredTask(Level(2**63, 1), "", 1.0, b"")
    no_text = task(7)._replace(fairness_key="\ud800")
    async with locked_queue(postgres_dsn):
        first = asyncio.create_task(append(store, current, 2))
        await waiting_backend(postgres_dsn)
        joined = [
            append(store, current, 3, 1),
            append(store, stale, 4),
            store.append(QUEUE, current, PRIORITY, [too_high], levels_of(task(5))),
            store.append(QUEUE, current, PRIORITY, [no_text], levels_of(no_text)),
            append(store, current, 5),
            append(store, current, 6, 6),
            store.append(QUEUE, current, PRIORITY, [], levels_of(task(8))),
        ]
        outcomes = asyncio.gather(*joined, return_exceptions=True)
        await step()
    await first
    expected = [LevelTaken, LeaseLost, Unstorable, Unstorable, type(None), LevelTaken, type(None)]
    assert [type(outcome) for outcome in await outcomes] == expected
    assert await stored_numbers(store) == {1, 2, 5}
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: levels_of(task(8))}


async def test_appends_of_two_leases_are_not_joined(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store()
    stale = (await store.take_lease(QUEUE)).range_id
    current = await store.renew_lease(QUEUE, stale)
    range_ids = [current, stale, stale, current, stale]
    appends = [append(store, range_id, number) for number, range_id in enumerate(range_ids, start=1)]
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), LeaseLost, LeaseLost, type(None), LeaseLost]
    assert await stored_numbers(store) == {1, 4}


async def test_cancelling_one_caller_does_not_affect_the_others(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn):
        cancelled = asyncio.create_task(append(store, lease.range_id, 1))
        await waiting_backend(postgres_dsn)
        others = [asyncio.create_task(append(store, lease.range_id, number)) for number in (2, 3)]
        await step()
        cancelled.cancel()
        others[0].cancel()
        await asyncio.wait([cancelled, others[0]])
    await others[1]
    assert await stored_numbers(store) == {1, 2, 3}


async def test_appends_above_the_queue_limit_are_refused_and_the_others_stored(
    postgres_dsn: str, open_store: OpenStore
) -> None:
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn):
        first = asyncio.create_task(append(store, lease.range_id, 1))
        await waiting_backend(postgres_dsn)
        numbers = range(2, 2 + APPENDS_WAITING_MAX)
        waiting = [asyncio.create_task(append(store, lease.range_id, number)) for number in numbers]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="nothing was changed"):
            await append(store, lease.range_id, 0)
    await asyncio.gather(first, *waiting)
    assert await stored_numbers(store) == {1, *numbers}


async def test_closing_finishes_what_was_begun(postgres_dsn: str, open_store: OpenStore) -> None:
    store, other = await open_store(), await open_store()
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn):
        begun = [asyncio.create_task(append(store, lease.range_id, number)) for number in range(1, 11)]
        saving = asyncio.create_task(store.save_levels(QUEUE, lease.range_id, {1: levels_of(task(1))}))
        await waiting_backend(postgres_dsn)
        closing = asyncio.create_task(store.close())
        # Only time can show that the store waits: the database holds its transaction.
        await asyncio.sleep(0.05)
        assert not closing.done()
    await closing
    await asyncio.gather(*begun, saving)
    assert await stored_numbers(other) == set(range(1, 11))
    for refused in (append(store, lease.range_id, 11), store.members(now_s=0.0)):
        with pytest.raises(StoreUnavailable):
            await refused


async def test_close_waits_for_writes_of_other_kinds_too(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    async with locked_queue(postgres_dsn):
        saving = asyncio.create_task(store.save_levels(QUEUE, lease.range_id, {1: levels_of(task(1))}))
        await waiting_backend(postgres_dsn)
        closing = asyncio.create_task(store.close())
        # Only time can show that the store waits: the database holds its transaction.
        await asyncio.sleep(0.05)
        assert not closing.done()
    await closing
    assert saving.done()
    await saving


async def test_a_transaction_that_loses_a_deadlock_is_retried(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store()
    await store.heartbeat(Member("silent", expires_s=0.0))
    async with raw_connection(postgres_dsn) as other:
        # Makes the store's session detect the deadlock, after the server's one second, and lose.
        await other.execute("SET deadlock_timeout = '30s'")
        async with other.transaction():
            await other.execute("DELETE FROM members WHERE host = 'silent'")
            beating = asyncio.create_task(store.heartbeat(Member("alive", expires_s=100_000.0)))
            await waiting_backend(postgres_dsn)
            await other.execute("INSERT INTO members VALUES ('alive', 1)")
        await beating
    assert await store.members(now_s=0.0) == [Member("alive", 100_000.0)]


async def test_the_session_settings_do_not_depend_on_the_servers_defaults(
    postgres_dsn: str, open_store: OpenStore
) -> None:
    async with raw_connection(postgres_dsn) as connection:
        for setting in ("synchronous_commit = off", "default_transaction_isolation = serializable"):
            database = connection.info.dbname
            await connection.execute(f"ALTER DATABASE {database} SET {setting}".encode())
    store = await open_store(statement_s_max=3.0)
    names = ["synchronous_commit", "default_transaction_isolation", "statement_timeout", "application_name"]
    rows = [await store._connections.read("SELECT current_setting(%(name)s)", {"name": name}) for name in names]
    assert [row for (row,) in rows] == [("on",), ("read committed",), ("3s",), ("host0",)]


async def test_hosts_that_start_at_the_same_time_create_one_schema(postgres_dsn: str, open_store: OpenStore) -> None:
    stores = await asyncio.gather(*(open_store() for _ in range(5)))
    leases = await asyncio.gather(*(store.take_lease(QUEUE) for store in stores))
    assert sorted(lease.range_id for lease in leases) == [1, 2, 3, 4, 5]


async def test_a_newer_schema_is_refused_and_not_changed(postgres_dsn: str, open_store: OpenStore) -> None:
    await open_store()
    async with raw_connection(postgres_dsn) as connection:
        await connection.execute(
            "INSERT INTO schema_migrations SELECT n, 'later' "
            "FROM generate_series((SELECT max(version) + 1 FROM schema_migrations), 99) n"
        )
        await connection.execute("DROP TABLE tasks")
        with pytest.raises(SchemaTooNew, match="99"):
            await open_store()
        found = await connection.execute("SELECT to_regclass('tasks'), (SELECT count(*) FROM schema_migrations)")
        assert await found.fetchone() == (None, 99)


async def test_a_root_finds_partitions_stored_by_an_older_release(postgres_dsn: str, open_store: OpenStore) -> None:
    store = await open_store()
    queue = QUEUE._replace(name="größe/[x]")
    for number in (1, 12):
        await store.take_lease(queue._replace(name=f"/_sys/{queue.name}/{number}"))
    await store.close()
    async with await psycopg.AsyncConnection.connect(postgres_dsn, autocommit=True) as connection:
        rows = await (
            await connection.execute("SELECT digest, namespace_id, name, type, range_id FROM queues")
        ).fetchall()
        await connection.execute("DROP SCHEMA public CASCADE")
        await connection.execute("CREATE SCHEMA public")
        await connection.execute("CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        for migration in load_migrations("postgres")[:4]:
            await connection.execute(migration.sql.encode())
            recorded = (migration.version, migration.name)
            await connection.execute("INSERT INTO schema_migrations (version, name) VALUES (%s, %s)", recorded)
        for row in rows:
            insert = "INSERT INTO queues (digest, namespace_id, name, type, range_id) VALUES (%s, %s, %s, %s, %s)"
            await connection.execute(insert, row)
    migrated = await open_store()
    assert await migrated.list_partitions(queue) == {1: False, 12: False}
    assert await migrated.list_partitions(QUEUE) == {}


async def test_names_longer_than_an_index_entry_are_stored_and_listed_in_order(open_store: OpenStore) -> None:
    """PostgreSQL limits an index entry to 2,704 bytes; a name has up to 1,000 characters of up to 4 bytes."""
    store = await open_store()
    chance = random.Random(1)
    names = ["".join(chr(chance.randrange(0x10000, 0x10FFFF)) for _ in range(1000)) for _ in range(5)]
    queues = [QueueId("namespace", name, TaskType.ACTIVITY) for name in [*names, "Z", "a", "\uffff", "\U00010000"]]
    for queue in queues:
        assert (await store.take_lease(queue)).range_id == 1
    assert await store.list_queues(None, after=None, limit=100) == sorted(queues)
    assert await store.list_queues("namespace", after=sorted(queues)[3], limit=2) == sorted(queues)[4:6]


async def test_a_name_that_is_not_valid_text_is_refused_but_a_fairness_key_may_hold_any_character(
    open_store: OpenStore,
) -> None:
    store = await open_store()
    for wrong in ("\0", "\ud800"):
        for refused in (
            store.take_lease(QueueId(wrong, "queue", TaskType.WORKFLOW)),
            store.load_config(QueueId("namespace", wrong, TaskType.WORKFLOW)),
            store.heartbeat(Member(wrong, 1.0)),
            store.list_queues(wrong, after=None, limit=1),
        ):
            with pytest.raises(Unstorable):
                await refused
    lease = await store.take_lease(QUEUE)
    odd = task(1)._replace(fairness_key="a\0b", payload=b"\0\xff")
    await store.append(QUEUE, lease.range_id, PRIORITY, [odd], levels_of(odd))
    assert await store.read(QUEUE, PRIORITY, after=LEVEL_ZERO, limit=2) == [odd]
    assert [key.key for key in await store.stored_keys(QUEUE, PRIORITY, after=LEVEL_ZERO)] == ["a\0b"]


async def test_the_row_of_a_queue_with_tasks_can_not_be_deleted_by_hand(
    postgres_dsn: str, open_store: OpenStore
) -> None:
    """Without the row, the tasks would be lost: they are found by the row's number."""
    store = await open_store()
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, 1, 2)
    async with raw_connection(postgres_dsn) as connection:
        with pytest.raises(psycopg.errors.RestrictViolation, match="holds tasks"):
            await connection.execute("DELETE FROM queues")
        assert await stored_numbers(store) == {1, 2}
        await connection.execute("DELETE FROM tasks")
        deleted = await connection.execute("DELETE FROM queues")
        assert deleted.rowcount == 1
