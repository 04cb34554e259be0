"""Properties of the SQLite store only: one file for one process, group commit, and failing disks."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.fairness.ids import BLOCK_SIZE
from fairlead.core.partitions import TaskType
from fairlead.storage.sqlite import CannotOpen, SqliteStore, group_commit, statements, tables
from fairlead.storage.sqlite.file import DatabaseFile
from fairlead.storage.tasks import (
    Lease,
    LeaseLost,
    Levels,
    LevelTaken,
    Member,
    OutcomeUnknown,
    QueueId,
    StoredTask,
    StoreUnavailable,
)

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
PRIORITY = 3


def task(task_id: int, payload: bytes = b"x") -> StoredTask:
    return StoredTask(Level(1, task_id), "tenant", 1.0, payload)


async def append(store: SqliteStore, range_id: int, *tasks: StoredTask) -> None:
    await store.append(QUEUE, range_id, PRIORITY, tasks, Levels(LEVEL_ZERO, tasks[-1].level))


async def stored_ids(store: SqliteStore) -> list[int]:
    return [found.level.task_id for found in await store.read(QUEUE, PRIORITY, after=LEVEL_ZERO, limit=100_000)]


@contextmanager
def full_disk(file: Path) -> Iterator[None]:
    """Limit the size of all files of this process to the current size of the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{file}-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- group commit


async def test_a_thousand_concurrent_appends_need_only_a_few_commits(tmp_path: Path) -> None:
    """FL-49: writes that wait together share a commit."""
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    before = store.commits
    await asyncio.gather(*(append(store, lease.range_id, task(number)) for number in range(1, 1001)))
    assert store.commits - before <= 20
    assert await stored_ids(store) == list(range(1, 1001))
    await store.close()


async def test_commits_are_fsynced(tmp_path: Path) -> None:
    """In WAL mode only FULL (2) syncs the log at every commit."""
    file = DatabaseFile(tmp_path / "tasks.db", readers=1)
    assert file.writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert file.writer.execute("PRAGMA synchronous").fetchone() == (2,)
    file.close()


async def test_the_number_of_changes_in_a_transaction_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "BATCH_CHANGES_MAX", 10)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    before = store.commits
    await asyncio.gather(*(append(store, lease.range_id, task(number)) for number in range(1, 101)))
    assert store.commits - before >= 10
    await store.close()


async def test_the_number_of_bytes_in_a_transaction_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "BATCH_BYTES_MAX", 1000)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    before = store.commits
    await asyncio.gather(*(append(store, lease.range_id, task(number, bytes(100))) for number in range(1, 101)))
    assert store.commits - before >= 10
    assert len(await stored_ids(store)) == 100
    await store.close()


async def test_callers_wait_while_the_write_queue_is_full_and_no_write_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "CHANGES_WAITING_MAX", 5)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    before = store.commits
    await asyncio.gather(*(append(store, lease.range_id, task(number)) for number in range(1, 101)))
    # At most five can wait, so no commit holds more than five.
    assert store.commits - before >= 20
    assert len(await stored_ids(store)) == 100
    await store.close()


async def test_callers_that_wait_for_the_full_write_queue_fail_when_the_store_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "CHANGES_WAITING_MAX", 5)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    appends = [asyncio.ensure_future(append(store, lease.range_id, task(number))) for number in range(1, 101)]
    await asyncio.sleep(0)
    await store.close()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    acknowledged = [number for number, outcome in enumerate(outcomes, start=1) if outcome is None]
    assert {type(outcome) for outcome in outcomes} == {type(None), StoreUnavailable}
    reopened = await SqliteStore.open(tmp_path / "tasks.db")
    assert await stored_ids(reopened) == acknowledged
    await reopened.close()


async def test_cancelled_callers_do_not_affect_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "CHANGES_WAITING_MAX", 20)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    # When they are cancelled, twenty are queued for the writer and ten wait for space in the queue.
    appends = [asyncio.ensure_future(append(store, lease.range_id, task(number))) for number in range(1, 41)]
    await asyncio.sleep(0)
    for cancelled in appends[:30]:
        cancelled.cancel()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert outcomes[30:] == [None] * 10
        # The space of the cancelled ones is free again.
        await asyncio.gather(*(append(store, lease.range_id, task(number)) for number in range(101, 201)))
    assert set(await stored_ids(store)) >= {*range(31, 41), *range(101, 201)}
    await store.close()


async def test_a_value_that_can_not_be_stored_fails_no_other_append(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)

    def one(number: int) -> StoredTask:
        # SQLite can't store such a number, and half of a surrogate pair can't be encoded in UTF-8.
        if number == 7:
            return task(2**70)
        return task(number)._replace(fairness_key="\ud800" if number == 8 else "tenant")

    outcomes = await asyncio.gather(
        *(append(store, lease.range_id, one(number)) for number in range(1, 21)), return_exceptions=True
    )
    assert [number for number, outcome in enumerate(outcomes, start=1) if outcome is not None] == [7, 8]
    assert [type(outcomes[6]), type(outcomes[7])] == [OverflowError, UnicodeEncodeError]
    assert await stored_ids(store) == [number for number in range(1, 21) if number not in {7, 8}]
    assert await store.count(QUEUE, lease.range_id) == 18
    await store.close()


async def test_an_append_at_an_existing_level_is_refused_although_a_delete_shares_its_transaction(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(5))
    before = store.commits
    _, taken, appended, deleted = await asyncio.gather(
        # Keeps the writer busy until the other writes are queued, so that they share a transaction.
        append(store, lease.range_id, task(4, bytes(20_000_000))),
        append(store, lease.range_id, task(5, b"another")),
        append(store, lease.range_id, task(6)),
        store.delete_through(QUEUE, lease.range_id, PRIORITY, through=Level(1, 6), limit=2),
        return_exceptions=True,
    )
    assert isinstance(taken, LevelTaken)
    assert appended is None
    assert deleted == 2
    assert await stored_ids(store) == [6]
    # The first commits alone; after the shared transaction is rolled back, the two valid ones commit one by one.
    assert store.commits - before == 3
    await store.close()


async def test_queues_that_no_longer_fit_in_the_cache_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "QUEUES_REMEMBERED_MAX", 3)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    queues = [QUEUE._replace(name=f"orders-{number}") for number in range(10)]
    for range_id in (1, 2, 3):
        for queue in queues:
            lease = await store.take_lease(queue)
            expected = {PRIORITY: Levels(LEVEL_ZERO, task(range_id - 1).level)} if range_id > 1 else {}
            assert lease == Lease(range_id, expected, None)
            level = task(range_id).level
            await store.append(queue, range_id, PRIORITY, [task(range_id)], Levels(LEVEL_ZERO, level))
            assert await store.count(queue, range_id) == range_id
            assert len(store._tables._queues) <= 3
    await store.close()


# --- disks that fail


async def test_a_failed_commit_leaves_the_outcome_unknown_until_the_lease_is_renewed(tmp_path: Path) -> None:
    """FB-16: a write that timed out may take effect later, until the lease is renewed."""
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(1))
    with full_disk(file):
        outcomes = await asyncio.gather(
            *(append(store, lease.range_id, task(number)) for number in (2, 3)),
            store.save_levels(QUEUE, lease.range_id, {PRIORITY: Levels(Level(1, 1), Level(9, 9))}),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 3
        assert "disk I/O error" in str(outcomes[0])
        # Reads still succeed.
        assert await stored_ids(store) == [1]
    renewed = await store.renew_lease(QUEUE, lease.range_id)
    await append(store, renewed, task(4))
    assert await stored_ids(store) == [1, 4]
    assert await store.count(QUEUE, renewed) == 2
    await store.close()
    reopened = await SqliteStore.open(file)
    assert await stored_ids(reopened) == [1, 4]
    # The caches hold nothing of the lost transaction.
    assert (await reopened.take_lease(QUEUE)).levels == {PRIORITY: Levels(LEVEL_ZERO, Level(1, 4))}
    await reopened.close()


async def test_a_lease_whose_commit_failed_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    with full_disk(file), pytest.raises(OutcomeUnknown):
        await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(1))
    assert (await store.take_lease(QUEUE)).range_id == lease.range_id + 1
    await store.close()


async def test_a_transaction_that_fails_before_its_commit_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    # Larger than the writer's cache, so that SQLite writes to the log before the commit.
    large = bytes(80 * 1024 * 1024)
    with full_disk(file), pytest.raises(StoreUnavailable, match="disk I/O error; nothing was changed"):
        await append(store, lease.range_id, task(1, large))
    # The next transaction writes nothing of the failed one.
    await store.heartbeat(Member("host", 1.0))
    assert await store.count(QUEUE, lease.range_id) == 0
    assert (await store.take_lease(QUEUE)).levels == {}
    await append(store, lease.range_id + 1, task(2))
    assert await stored_ids(store) == [2]
    await store.close()


# --- one file, one process


async def test_stored_tasks_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "tasks #1%20?.db"
    for number in range(1, 4):
        store = await SqliteStore.open(file)
        lease = await store.take_lease(QUEUE)
        assert lease.range_id == number
        await append(store, lease.range_id, task(number))
        await store.close()
    # The log was copied into the file: only the file and its lock are left.
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, f"{file.name}.lock"]  # noqa: ASYNC240
    with closing(sqlite3.connect(file)) as connection, connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (3,)
    connection.close()


async def test_the_tasks_of_a_queue_whose_row_was_lost_are_still_read(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    await store.take_lease(QUEUE)
    range_id = await store.renew_lease(QUEUE, 1)
    first_id = BLOCK_SIZE + 1
    await append(store, range_id, task(first_id), task(first_id + 1))
    await store.close()
    with sqlite3.connect(file) as connection:
        assert connection.execute("DELETE FROM queues WHERE name = ?", (QUEUE.name,)).rowcount == 1
    connection.close()

    store = await SqliteStore.open(file)
    other = QUEUE._replace(name="others")
    assert (await store.take_lease(other)).levels == {}
    lease = await store.take_lease(QUEUE)
    assert lease.levels == {PRIORITY: Levels(LEVEL_ZERO, Level(1, first_id + 1))}
    # The new lease's ids are above the stored ones.
    assert lease.range_id == range_id + 1
    assert await stored_ids(store) == [first_id, first_id + 1]
    assert await store.count(QUEUE, lease.range_id) == 2
    assert await store.count(other, 1) == 0
    await store.close()


async def test_an_owner_loses_its_lease_when_another_program_deletes_the_row(tmp_path: Path) -> None:
    """The next owner finds the tasks; without its row, reads of the queue are empty."""
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(1), task(2))
    with closing(sqlite3.connect(file)) as other, other:
        assert other.execute("DELETE FROM queues").rowcount == 1
    assert await stored_ids(store) == []
    with pytest.raises(LeaseLost):
        await append(store, lease.range_id, task(3))
    lease = await store.take_lease(QUEUE)
    assert await stored_ids(store) == [1, 2]
    await append(store, lease.range_id, task(BLOCK_SIZE * lease.range_id))
    await store.close()


async def test_queues_with_the_same_hash_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "hash64", lambda _: 7)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    other = QUEUE._replace(name="others")
    await append(store, (await store.take_lease(QUEUE)).range_id, task(1))
    assert (await store.take_lease(other)).levels == {}
    assert (await store.take_lease(QUEUE)).levels == {PRIORITY: Levels(LEVEL_ZERO, Level(1, 1))}
    assert await store.count(other, 1) == 0
    await store.close()


async def test_a_file_that_this_process_has_open_can_not_be_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    with pytest.raises(CannotOpen, match=f"open already, in process {os.getpid()}"):
        await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(1))
    await store.close()
    again = await SqliteStore.open(file)
    assert await stored_ids(again) == [1]
    await again.close()


async def test_another_process_can_not_open_the_file_while_it_is_open(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    script = (
        "import asyncio, pathlib, sys; from fairlead.storage.sqlite import SqliteStore; "
        "asyncio.run(SqliteStore.open(pathlib.Path(sys.argv[1])))"
    )
    other = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 1
    assert f"{file} is open already, in process {os.getpid()}: one process owns a SQLite file" in other.stderr
    await store.close()


async def test_a_file_that_is_not_a_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    file.write_bytes(b"not a database at all" * 100)
    with pytest.raises(CannotOpen, match="not a database"):
        await SqliteStore.open(file)
    assert file.read_bytes() == b"not a database at all" * 100


async def test_a_database_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE tasks (something TEXT)")
    connection.close()
    before = file.read_bytes()
    with pytest.raises(CannotOpen, match="another program's database"):
        await SqliteStore.open(file)
    assert file.read_bytes() == before


async def test_a_missing_folder_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(FixRequest, match=r"missing/tasks\.db can't be opened"):
        await SqliteStore.open(tmp_path / "missing" / "tasks.db")


async def test_the_file_is_unlocked_after_a_cancelled_open(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    opening = asyncio.ensure_future(SqliteStore.open(file))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    store = await SqliteStore.open(file)
    await store.close()


async def test_close_finishes_the_reads_under_way(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, *(task(number) for number in range(1, 20_001)))
    reads = [asyncio.ensure_future(stored_ids(store)) for _ in range(10)]
    await asyncio.sleep(0)
    await store.close()
    assert [len(found) for found in await asyncio.gather(*reads)] == [20_000] * 10


@pytest.mark.parametrize("statement", ["READ_TASKS", "LAST_TO_DELETE", "DELETE_TASKS"])
async def test_backlog_statements_find_rows_by_key_without_a_table_scan(tmp_path: Path, statement: str) -> None:
    file = DatabaseFile(tmp_path / "tasks.db", readers=0)
    sql = getattr(statements, statement)
    plan = file.writer.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * sql.count("?")).fetchall()
    details = " | ".join(row[-1] for row in plan)
    assert "SEARCH tasks USING PRIMARY KEY (queue=? AND priority=? AND (pass,id)" in details
    assert "SCAN" not in details
    assert "TEMP B-TREE" not in details
    file.close()
