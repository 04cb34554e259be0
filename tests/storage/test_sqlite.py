"""What only the SQLite store has: one file of one process, group commit, and disks that fail."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import TaskType
from fairlead.storage.contract import (
    Lease,
    Levels,
    LevelTaken,
    Member,
    OutcomeUnknown,
    QueueId,
    StoredTask,
    StoreUnavailable,
)
from fairlead.storage.sqlite import CannotOpen, SqliteStore, group_commit, statements, tables
from fairlead.storage.sqlite.file import DatabaseFile

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
    """No file of this process can grow beyond the size that the log has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{file}-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# --- group commit


async def test_a_thousand_appends_in_flight_cost_a_few_commits(tmp_path: Path) -> None:
    """Design, 'Stores': one file, WAL, group commit, one writer thread."""
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


async def test_a_batch_is_bounded_by_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "BATCH_CHANGES_MAX", 10)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    before = store.commits
    await asyncio.gather(*(append(store, lease.range_id, task(number)) for number in range(1, 101)))
    assert store.commits - before >= 10
    await store.close()


async def test_a_batch_is_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "BATCH_BYTES_MAX", 1000)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    before = store.commits
    await asyncio.gather(*(append(store, lease.range_id, task(number, bytes(100))) for number in range(1, 101)))
    assert store.commits - before >= 10
    assert len(await stored_ids(store)) == 100
    await store.close()


async def test_callers_wait_for_room_and_none_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "CHANGES_WAITING_MAX", 5)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    before = store.commits
    await asyncio.gather(*(append(store, lease.range_id, task(number)) for number in range(1, 101)))
    # No more than five can wait, so no commit can be of more than five.
    assert store.commits - before >= 20
    assert len(await stored_ids(store)) == 100
    await store.close()


async def test_those_who_wait_for_room_are_refused_when_the_store_closes(
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


async def test_a_cancelled_caller_disturbs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "CHANGES_WAITING_MAX", 20)
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    # Twenty have been handed to the writer when they are cancelled, ten wait for room.
    appends = [asyncio.ensure_future(append(store, lease.range_id, task(number))) for number in range(1, 41)]
    await asyncio.sleep(0)
    for cancelled in appends[:30]:
        cancelled.cancel()
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert outcomes[30:] == [None] * 10
        # The room of the cancelled is free again.
        await asyncio.gather(*(append(store, lease.range_id, task(number)) for number in range(101, 201)))
    assert set(await stored_ids(store)) >= {*range(31, 41), *range(101, 201)}
    await store.close()


async def test_something_that_cant_be_stored_spoils_no_other_append(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)

    def one(number: int) -> StoredTask:
        # Neither is a number that SQLite has, nor can half of a surrogate pair be written in UTF-8.
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


async def test_a_level_taken_shows_when_a_delete_of_the_same_batch_looks(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(5))
    before = store.commits
    _, taken, appended, deleted = await asyncio.gather(
        # Keeps the writer busy while the others come, so that they share a transaction.
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
    # The first by itself; and when their transaction was undone, the two that were right, each by itself.
    assert store.commits - before == 3
    await store.close()


async def test_more_queues_than_are_remembered_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Seed 003: a write that 'timed out' may take effect later, unless we can prevent it from succeeding."""
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
        # Reads go on.
        assert await stored_ids(store) == [1]
    renewed = await store.renew_lease(QUEUE, lease.range_id)
    await append(store, renewed, task(4))
    assert await stored_ids(store) == [1, 4]
    assert await store.count(QUEUE, renewed) == 2
    await store.close()
    reopened = await SqliteStore.open(file)
    assert await stored_ids(reopened) == [1, 4]
    # What was remembered of the lost transaction was forgotten with it.
    assert (await reopened.take_lease(QUEUE)).levels == {PRIORITY: Levels(LEVEL_ZERO, Level(1, 4))}
    await reopened.close()


async def test_a_lease_that_was_not_committed_was_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    with full_disk(file), pytest.raises(OutcomeUnknown):
        await store.take_lease(QUEUE)
    await append(store, lease.range_id, task(1))
    assert (await store.take_lease(QUEUE)).range_id == lease.range_id + 1
    await store.close()


async def test_a_transaction_that_fails_before_its_commit_has_changed_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    store = await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    # More than the writer keeps in memory, so that SQLite has to write it before the commit.
    large = bytes(80 * 1024 * 1024)
    with full_disk(file), pytest.raises(StoreUnavailable, match="disk I/O error; nothing was changed"):
        await append(store, lease.range_id, task(1, large))
    # Nothing of it is left to be written with what comes next.
    await store.heartbeat(Member("host", 1.0))
    assert await store.count(QUEUE, lease.range_id) == 0
    assert (await store.take_lease(QUEUE)).levels == {}
    await append(store, lease.range_id + 1, task(2))
    assert await stored_ids(store) == [2]
    await store.close()


# --- one file, one process


async def test_what_is_stored_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    file = tmp_path / "tasks #1%20?.db"
    for number in range(1, 4):
        store = await SqliteStore.open(file)
        lease = await store.take_lease(QUEUE)
        assert lease.range_id == number
        await append(store, lease.range_id, task(number))
        await store.close()
    # The log was copied into the file: that is all there is, beside its lock.
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, f"{file.name}.lock"]  # noqa: ASYNC240
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (3,)
    connection.close()


async def test_a_file_that_is_open_is_not_opened_again(tmp_path: Path) -> None:
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


async def test_another_process_is_refused_while_the_file_is_open(tmp_path: Path) -> None:
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


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    file.write_bytes(b"not a database at all" * 100)
    with pytest.raises(CannotOpen, match="not a database"):
        await SqliteStore.open(file)
    assert file.read_bytes() == b"not a database at all" * 100


async def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE tasks (something TEXT)")
    connection.close()
    before = file.read_bytes()
    with pytest.raises(CannotOpen, match="a database of something else"):
        await SqliteStore.open(file)
    assert file.read_bytes() == before


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FixRequest, match=r"missing/tasks\.db can't be opened"):
        await SqliteStore.open(tmp_path / "missing" / "tasks.db")


async def test_a_cancelled_opening_leaves_the_file_free(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    opening = asyncio.ensure_future(SqliteStore.open(file))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    store = await SqliteStore.open(file)
    await store.close()


async def test_reads_under_way_are_finished_when_the_store_closes(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "tasks.db")
    lease = await store.take_lease(QUEUE)
    await append(store, lease.range_id, *(task(number) for number in range(1, 20_001)))
    reads = [asyncio.ensure_future(stored_ids(store)) for _ in range(10)]
    await asyncio.sleep(0)
    await store.close()
    assert [len(found) for found in await asyncio.gather(*reads)] == [20_000] * 10


@pytest.mark.parametrize("statement", ["READ_TASKS", "LAST_TO_DELETE", "DELETE_TASKS"])
async def test_backlogs_are_found_by_their_place_not_searched(tmp_path: Path, statement: str) -> None:
    file = DatabaseFile(tmp_path / "tasks.db", readers=0)
    sql = getattr(statements, statement)
    plan = file.writer.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * sql.count("?")).fetchall()
    details = " | ".join(row[-1] for row in plan)
    assert "SEARCH tasks USING PRIMARY KEY (queue=? AND priority=? AND (pass,id)" in details
    assert "SCAN" not in details
    assert "TEMP B-TREE" not in details
    file.close()
