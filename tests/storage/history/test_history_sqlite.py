"""Properties of the SQLite store only: one file for tasks and histories, group commit, and failing disks."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlead.core.fairness import Level
from fairlead.core.partitions import TaskType
from fairlead.storage.commit import Absent, Commit, IsRun
from fairlead.storage.history import (
    LATEST_FIRST,
    Column,
    Compare,
    LeaseLost,
    Operator,
    OutcomeUnknown,
    StoreUnavailable,
    TaskKey,
)
from fairlead.storage.history_conflicts import RunConflict
from fairlead.storage.sqlite import SqliteStore, history_search, history_statements, history_tables
from fairlead.storage.sqlite.file import DatabaseFile
from fairlead.storage.tasks import Levels, QueueId, StoredTask
from tests.storage.history.writes import (
    NAMESPACE,
    SHARD,
    WORKFLOW,
    assert_whole_or_absent,
    batch,
    current,
    everything,
    key,
    read_all,
    run,
    task,
)

QUEUE = QueueId("namespace", "orders", TaskType.WORKFLOW)


@contextmanager
def full_disk(file: Path) -> Iterator[None]:
    """Limit the size of all files of this process to the current size of the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(f"{file}-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_concurrent_commits_and_task_writes_share_a_few_transactions(tmp_path: Path) -> None:
    """FL-49: writes that wait together share a commit."""
    store = await SqliteStore.open(tmp_path / "one.db")
    shard = await store.history.take_shard(SHARD)
    queue = await store.take_lease(QUEUE)

    async def append(number: int) -> None:
        level = Level(number, 1)
        await store.append(QUEUE, queue.range_id, 3, [StoredTask(level, "", 1.0, b"")], Levels(Level(0, 0), level))

    before = store.commits
    await asyncio.gather(
        *(store.history.commit(SHARD, shard.range_id, everything(number)) for number in range(1, 501)),
        *(append(number) for number in range(1, 501)),
    )
    assert store.commits - before <= 20
    for number in (1, 250, 500):
        assert await assert_whole_or_absent(store.history, number)
    assert await store.count(QUEUE, queue.range_id) == 500
    await store.close()


class _HashedWorkflowId(str):
    """A workflow id that counts how often any of them is hashed."""

    __slots__ = ()
    hashes = 0

    def __hash__(self) -> int:
        _HashedWorkflowId.hashes += 1
        return super().__hash__()


async def test_a_commit_costs_no_more_when_many_current_runs_are_cached(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    range_id = (await store.history.take_shard(SHARD)).range_id

    async def hashes_of_start(number: int) -> int:
        before = _HashedWorkflowId.hashes
        write = current(f"run-{number}", Absent(), workflow_id=_HashedWorkflowId(f"order {number}"))
        await store.history.commit(SHARD, range_id, Commit(current=[write]))
        return _HashedWorkflowId.hashes - before

    first = await hashes_of_start(0)
    for number in range(1, 50):
        await hashes_of_start(number)
    assert await hashes_of_start(50) == first > 0
    await store.close()


async def test_two_commits_of_one_run_in_one_transaction_are_applied_in_order(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    history = store.history
    range_id = (await history.take_shard(SHARD)).range_id
    before = store.commits
    await asyncio.gather(
        # Keeps the writer busy until the other writes are queued, so that they share a transaction.
        history.commit(SHARD, range_id, Commit(runs=[run("large", state=bytes(30_000_000))])),
        history.commit(SHARD, range_id, Commit(runs=[run()], current=[current("run-1", Absent())])),
        history.commit(SHARD, range_id, Commit(runs=[run(expected=1)], batches=[batch(1, 2)], tasks=[task(1)])),
        history.commit(SHARD, range_id, Commit(current=[current("run-2", IsRun("run-1"))])),
        history.complete_tasks(SHARD, range_id, "transfer", TaskKey(0, 1)),
        history.commit(SHARD, range_id, Commit(runs=[run(expected=2, state=b"last")], tasks=[task(2)])),
    )
    assert store.commits - before <= 3
    found = await history.read_run(SHARD, *key())
    assert found is not None
    assert (found.db_version, found.state) == (3, b"last")
    pointer = await history.read_current(SHARD, NAMESPACE, WORKFLOW)
    assert pointer is not None
    assert pointer.run_id == "run-2"
    left = await history.read_tasks(SHARD, "transfer", after=TaskKey(0, 0), until_ns=None, limit=10)
    assert [one.key.task_id for one in left] == [2]
    await store.close()


async def test_a_run_can_be_deleted_in_the_transaction_that_changed_it(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    history = store.history
    range_id = (await history.take_shard(SHARD)).range_id
    outcomes = await asyncio.gather(
        history.commit(SHARD, range_id, Commit(runs=[run("large", state=bytes(30_000_000))])),
        history.commit(SHARD, range_id, Commit(runs=[run()], batches=[batch(1, 2)])),
        history.delete_run(SHARD, range_id, key(), branches=[("tree", "main")]),
        history.commit(SHARD, range_id, Commit(runs=[run(expected=1)])),
        history.commit(SHARD, range_id, Commit(runs=[run(state=b"again")], batches=[batch(1, 3)])),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [RunConflict, type(None)]
    found = await history.read_run(SHARD, *key())
    assert found is not None
    assert (found.db_version, found.state) == (1, b"again")
    assert [one.last_event_id for one in await read_all(history)] == [3]
    await store.close()


async def test_creating_a_run_that_exists_but_is_not_cached_fails_no_other_commit_of_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_tables, "REMEMBERED_MAX", 2)
    store = await SqliteStore.open(tmp_path / "one.db")
    history = store.history
    range_id = (await history.take_shard(SHARD)).range_id
    for number in range(10):
        await history.commit(SHARD, range_id, Commit(runs=[run(f"run-{number}")]))
    assert len(history._tables._runs) == 2
    commits = [Commit(runs=[run(f"run-{number}", state=b"new")]) for number in (0, 10, 11, 12)]
    outcomes = await asyncio.gather(
        history.commit(SHARD, range_id, Commit(runs=[run("large", state=bytes(30_000_000))])),
        *(history.commit(SHARD, range_id, commit) for commit in commits),
        # The check also reads the transaction's unwritten changes; none of them may be blamed for the conflict.
        history.delete_run(SHARD, range_id, key("run-1")),
        return_exceptions=True,
    )
    refused = outcomes[1]
    assert isinstance(refused, RunConflict)
    assert refused.present is not None
    assert refused.present.state == b"state"
    assert [outcomes[0], *outcomes[2:]] == [None] * 5
    listed = {one.run_id for one in await history.list_runs(SHARD, after=None, limit=100)}
    assert listed == {"large", *(f"run-{number}" for number in range(13) if number != 1)}
    # Runs that are no longer cached are read again.
    await history.commit(SHARD, range_id, Commit(runs=[run("run-0", expected=1)]))
    await store.close()


async def test_a_failed_commit_leaves_the_outcome_unknown_until_the_shard_is_renewed(tmp_path: Path) -> None:
    file = tmp_path / "one.db"
    store = await SqliteStore.open(file)
    history = store.history
    range_id = (await history.take_shard(SHARD)).range_id
    await history.commit(SHARD, range_id, everything(1))
    with full_disk(file):
        outcomes = await asyncio.gather(
            history.commit(SHARD, range_id, everything(2)),
            history.commit(SHARD, range_id, Commit(runs=[run("run-1", workflow_id="order 1", expected=1)])),
            history.complete_tasks(SHARD, range_id, "transfer", TaskKey(0, 2)),
            history.delete_run(SHARD, range_id, key("run-1", "order 1"), branches=[("run-1", "main")]),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 4
        # Reads still succeed.
        assert await assert_whole_or_absent(history, 1)
    renewed = await history.renew_shard(SHARD, range_id)
    with pytest.raises(LeaseLost):
        await history.commit(SHARD, range_id, everything(2))
    assert await assert_whole_or_absent(history, 1)
    assert not await assert_whole_or_absent(history, 2)
    # The caches hold nothing of the lost transaction.
    await history.commit(SHARD, renewed, everything(2))
    await history.commit(SHARD, renewed, Commit(runs=[run("run-1", workflow_id="order 1", expected=1)]))
    await store.close()
    reopened = await SqliteStore.open(file)
    assert await assert_whole_or_absent(reopened.history, 1)
    assert await assert_whole_or_absent(reopened.history, 2)
    assert (await reopened.history.take_shard(SHARD)).levels == {}
    await reopened.close()


async def test_a_transaction_that_fails_before_its_commit_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "one.db"
    store = await SqliteStore.open(file)
    history = store.history
    range_id = (await history.take_shard(SHARD)).range_id
    # Larger than the writer's cache, so that SQLite writes to the log before the commit.
    large = everything(1)._replace(batches=[batch(1, 2, tree="run-1", payload=bytes(60 * 1024 * 1024))])
    with full_disk(file), pytest.raises(StoreUnavailable, match="nothing was changed"):
        await history.commit(SHARD, range_id, large)
    await history.commit(SHARD, range_id, everything(2))
    assert not await assert_whole_or_absent(history, 1)
    await history.commit(SHARD, range_id, everything(1))
    assert await assert_whole_or_absent(history, 1)
    assert await assert_whole_or_absent(history, 2)
    await store.close()


async def test_a_value_that_can_not_be_stored_fails_no_other_commit(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    history = store.history
    range_id = (await history.take_shard(SHARD)).range_id
    outcomes = await asyncio.gather(
        *(history.commit(SHARD, range_id, everything(number)) for number in range(1, 11)),
        history.commit(SHARD, range_id, Commit(runs=[run("\ud800")])),
        history.commit(SHARD, range_id, Commit(tasks=[task(2**64)])),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes[10:]] == [UnicodeEncodeError, OverflowError]
    assert outcomes[:10] == [None] * 10
    for number in range(1, 11):
        assert await assert_whole_or_absent(history, number)
    await store.close()


async def test_a_closed_store_refuses_writes(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    lease = await store.history.take_shard(SHARD)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.history.commit(SHARD, lease.range_id, everything(1))
    with pytest.raises(StoreUnavailable):
        await store.history.read_run(SHARD, *key())


SEARCHED = ["FIND_RUN", "READ_RUN", "LIST_RUNS", "READ_CURRENT", "READ_BATCHES", "READ_BATCHES_REVERSE", "READ_TASKS"]
SEARCHED += [
    "LAST_TO_DELETE",
    "DELETE_TASK",
    "DELETE_TASKS",
    "HAS_BATCH_TO",
    "FIND_BRANCH",
    "BRANCHES_OF_TREE",
    "READ_METADATA",
]


@pytest.mark.parametrize("name", SEARCHED)
def test_statements_find_rows_by_key_without_a_table_scan(tmp_path: Path, name: str) -> None:
    file = DatabaseFile(tmp_path / "one.db", readers=0)
    sql = getattr(history_statements, name)
    places = 3 if "?3" in sql else sql.count("?")
    plan = [row[-1] for row in file.writer.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * places)]
    assert any("SEARCH" in line for line in plan), plan
    assert not any("SCAN" in line or "TEMP B-TREE" in line for line in plan), plan
    file.close()


def test_many_current_runs_are_each_found_by_their_whole_key(tmp_path: Path) -> None:
    file = DatabaseFile(tmp_path / "one.db", readers=0)
    sql = history_statements.find_currents(4)
    columns = history_statements.CURRENT_KEY_COLUMNS
    plan = [row[-1] for row in file.writer.execute(f"EXPLAIN QUERY PLAN {sql}", [1] * columns * 4)]
    (search,) = [line for line in plan if line.startswith("SEARCH")]
    assert search.endswith("(shard_id=? AND namespace_id=? AND workflow_id=?)"), plan
    file.close()


@pytest.mark.parametrize("after", [None, (5, 6, "run")])
@pytest.mark.parametrize(
    ("where", "index"),
    [
        (Compare(Column.STATUS, Operator.EQUAL, 1), "visibility_status (namespace_id=? AND status=?"),
        (Compare(Column.STATUS, Operator.UNEQUAL, 1), "visibility_latest (namespace_id=?"),
        (Compare(Column.WORKFLOW_ID, Operator.EQUAL, "x"), "visibility_workflow (namespace_id=? AND workflow_id=?"),
    ],
)
def test_listing_runs_in_the_default_order_needs_no_sort(
    tmp_path: Path, where: Compare, index: str, after: tuple[int, int, str] | None
) -> None:
    file = DatabaseFile(tmp_path / "one.db", readers=0)
    sql, values = history_search.list_statement(NAMESPACE, where, order=LATEST_FIRST, after=after, limit=10)
    plan = " | ".join(row[-1] for row in file.writer.execute(f"EXPLAIN QUERY PLAN {sql}", values))
    assert f"USING INDEX {index}" in plan
    assert "TEMP B-TREE" not in plan
    file.close()
