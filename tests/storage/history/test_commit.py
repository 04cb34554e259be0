"""Commits on every store: one transaction, fenced by the range id, conditional, all or nothing."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus

from fairlead.storage import commit as commit_limits
from fairlead.storage.commit import Absent, Ancestor, BadCommit, BranchWrite, Commit, IsRun, NotOpen
from fairlead.storage.history import (
    OPEN_STATUSES,
    BadSearch,
    HistoryStore,
    LeaseLost,
    ListedRun,
    ShardLease,
    StoredRun,
    TaskKey,
    VisibilityDelete,
)
from fairlead.storage.history_conflicts import CurrentConflict, ForkBroken, RunConflict, TaskBelowLevel
from tests.storage.history.writes import (
    COMPLETED,
    NAMESPACE,
    SHARD,
    WORKFLOW,
    assert_whole_or_absent,
    batch,
    current,
    everything,
    key,
    read_all,
    row,
    run,
    task,
)

Write = Callable[[HistoryStore, int], Awaitable[object]]


def test_the_statuses_of_open_runs_are_those_of_temporals_api() -> None:
    names = {WorkflowExecutionStatus.Name(number) for number in OPEN_STATUSES}  # type: ignore[arg-type]
    assert names == {"WORKFLOW_EXECUTION_STATUS_RUNNING", "WORKFLOW_EXECUTION_STATUS_PAUSED"}


# --- leases


async def test_each_takeover_raises_the_range_id_and_returns_the_completed_levels(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    assert lease == ShardLease(1, {})
    await store.complete_tasks(SHARD, lease.range_id, "transfer", TaskKey(0, 7))
    await store.complete_tasks(SHARD, lease.range_id, "timer", TaskKey(500, 3))
    assert await store.renew_shard(SHARD, lease.range_id) == 2
    assert await store.take_shard(SHARD) == (3, {"transfer": TaskKey(0, 7), "timer": TaskKey(500, 3)})
    assert await store.take_shard(SHARD + 1) == ShardLease(1, {})


FENCED: dict[str, Write] = {
    "renew_shard": lambda store, range_id: store.renew_shard(SHARD, range_id),
    "commit of nothing": lambda store, range_id: store.commit(SHARD, range_id, Commit()),
    "run": lambda store, range_id: store.commit(SHARD, range_id, Commit(runs=[run("run-2")])),
    "changed run": lambda store, range_id: store.commit(SHARD, range_id, Commit(runs=[run(expected=1)])),
    "batch": lambda store, range_id: store.commit(SHARD, range_id, Commit(batches=[batch(3, 4)])),
    "branch": lambda store, range_id: store.commit(
        SHARD, range_id, Commit(branches=[BranchWrite("tree", "fork", (Ancestor("main", 3),))])
    ),
    "current": lambda store, range_id: store.commit(
        SHARD, range_id, Commit(current=[current("run-2", IsRun("run-1"))])
    ),
    "task": lambda store, range_id: store.commit(SHARD, range_id, Commit(tasks=[task(9)])),
    "visibility": lambda store, range_id: store.commit(SHARD, range_id, Commit(visibility=[row("run-2")])),
    "visibility deleted": lambda store, range_id: store.commit(
        SHARD, range_id, Commit(visibility=[VisibilityDelete(NAMESPACE, "run-1")])
    ),
    "complete": lambda store, range_id: store.complete_tasks(SHARD, range_id, "transfer", TaskKey(0, 1)),
    "complete one": lambda store, range_id: store.complete_tasks(SHARD, range_id, "transfer", singles=[TaskKey(0, 1)]),
    "delete_run": lambda store, range_id: store.delete_run(SHARD, range_id, key(), branches=[("tree", "main")]),
}


async def what_is_there(store: HistoryStore) -> list[object]:
    return [
        await store.list_runs(SHARD, after=None, limit=10),
        await store.read_current(SHARD, NAMESPACE, WORKFLOW),
        await read_all(store),
        await read_all(store, "fork"),
        await store.read_tasks(SHARD, "transfer", after=TaskKey(0, 0), until_ns=None, limit=10),
        await store.list_visibility(NAMESPACE, limit=10),
    ]


@pytest.mark.parametrize("name", FENCED)
async def test_writes_of_the_old_owner_fail_after_a_takeover(store: HistoryStore, name: str) -> None:
    """FL-42: every write is conditional on the range id, deletes included."""
    lease = await store.take_shard(SHARD)
    first = Commit(
        runs=[run()],
        batches=[batch(1, 2)],
        current=[current("run-1", Absent())],
        tasks=[task(1)],
        visibility=[row()],
    )
    await store.commit(SHARD, lease.range_id, first)
    before = await what_is_there(store)
    assert all(part for place, part in enumerate(before) if place != 3)
    await store.take_shard(SHARD)
    for stale in (lease.range_id, lease.range_id + 2):
        with pytest.raises(LeaseLost):
            await FENCED[name](store, stale)
    assert await what_is_there(store) == before
    assert (await store.take_shard(SHARD)).levels == {}
    # With the new owner's range id, the same write succeeds.
    await FENCED[name](store, lease.range_id + 2)


async def test_a_write_to_a_shard_without_an_owner_fails(store: HistoryStore) -> None:
    for range_id in (0, 1):
        with pytest.raises(LeaseLost):
            await store.commit(SHARD, range_id, everything(1))
    assert not await assert_whole_or_absent(store, 1)


async def test_a_takeover_of_one_shard_does_not_fence_another(store: HistoryStore) -> None:
    one, other = await store.take_shard(1), await store.take_shard(2)
    await store.take_shard(1)
    await store.commit(2, other.range_id, everything(1))
    with pytest.raises(LeaseLost):
        await store.commit(1, one.range_id, everything(2))
    assert await store.read_run(1, NAMESPACE, "order 1", "run-1") is None
    assert await assert_whole_or_absent(store, 1, shard_id=2)


# --- runs


async def test_a_run_is_read_as_it_was_written(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    assert await store.read_run(SHARD, *key()) is None
    await store.commit(SHARD, lease.range_id, Commit(runs=[run(state=b"\0\xff")]))
    assert await store.read_run(SHARD, *key()) == StoredRun(*key(), b"\0\xff", 1, 3, 1, 17)
    changed = run(expected=1, state=b"", next_event_id=9, status=COMPLETED)
    await store.commit(SHARD, lease.range_id, Commit(runs=[changed]))
    assert await store.read_run(SHARD, *key()) == StoredRun(*key(), b"", 2, 9, 2, 17)


async def test_ids_may_be_as_long_as_temporal_allows(store: HistoryStore) -> None:
    """FL-76: 1,000 bytes, not characters."""
    lease = await store.take_shard(SHARD)
    chance = random.Random(1)
    workflow_id = "".join(chr(chance.randrange(0x10000, 0x10FFFF)) for _ in range(250))
    step = Commit(
        runs=[run(workflow_id=workflow_id)],
        current=[current("run-1", Absent(), workflow_id=workflow_id)],
        visibility=[row(workflow_id=workflow_id)],
    )
    await store.commit(SHARD, lease.range_id, step)
    assert await store.read_run(SHARD, *key(workflow_id=workflow_id)) is not None
    assert await store.read_current(SHARD, NAMESPACE, workflow_id) is not None
    assert [one.workflow_id for one in await store.list_visibility(NAMESPACE, limit=2)] == [workflow_id]


@pytest.mark.parametrize("expected", [None, 1, 3])
async def test_a_commit_to_a_changed_run_fails_with_a_conflict_that_holds_the_stored_run(
    store: HistoryStore, expected: int | None
) -> None:
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, Commit(runs=[run()]))
    await store.commit(SHARD, lease.range_id, Commit(runs=[run(expected=1, state=b"second")]))
    with pytest.raises(RunConflict, match=r"expected|already") as raised:
        await store.commit(SHARD, lease.range_id, Commit(runs=[run(expected=expected, state=b"lost")]))
    assert raised.value.present == StoredRun(*key(), b"second", 2, 3, 1, 17)
    assert await store.read_run(SHARD, *key()) == raised.value.present


async def test_a_commit_to_a_missing_run_fails_with_a_conflict_that_holds_no_run(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    with pytest.raises(RunConflict) as raised:
        await store.commit(SHARD, lease.range_id, Commit(runs=[run(expected=1)]))
    assert raised.value.present is None


async def test_only_one_of_many_concurrent_writes_to_one_version_of_a_run_succeeds(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    for expected in (None, 1):
        writes = [run(expected=expected, state=b"%d" % number) for number in range(20)]
        outcomes = await asyncio.gather(
            *(store.commit(SHARD, lease.range_id, Commit(runs=[write])) for write in writes), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType"] + ["RunConflict"] * 19
        found = await store.read_run(SHARD, *key())
        assert found is not None
        assert found.db_version == (expected or 0) + 1
        assert found.state == writes[outcomes.index(None)].state


async def test_runs_are_listed_by_their_keys(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    keys = sorted((workflow_id, run_id) for workflow_id in ("a", "é", "b b", "Z") for run_id in ("1", "2"))
    writes = [run(run_id, workflow_id=workflow_id) for workflow_id, run_id in reversed(keys)]
    await store.commit(SHARD, lease.range_id, Commit(runs=writes))
    found: list[ListedRun] = []
    while page := await store.list_runs(SHARD, after=key(found[-1][2], found[-1][1]) if found else None, limit=3):
        found += page
    assert [one[1:3] for one in found] == keys
    assert found[0] == ListedRun(NAMESPACE, "Z", "1", 1, 3, 1, 17)
    assert await store.list_runs(SHARD + 1, after=None, limit=3) == []


# --- the current run


async def test_the_current_run_is_written_only_if_it_is_still_the_expected_one(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)

    async def write(run_id: str, condition: Absent | IsRun | NotOpen, status: int = 1) -> None:
        await store.commit(SHARD, lease.range_id, Commit(current=[current(run_id, condition, status=status)]))

    async def refused(run_id: str, condition: Absent | IsRun | NotOpen) -> str | None:
        with pytest.raises(CurrentConflict) as conflict:
            await write(run_id, condition)
        assert await store.read_current(SHARD, NAMESPACE, WORKFLOW) == conflict.value.present
        return conflict.value.present and conflict.value.present.run_id

    assert await refused("a", IsRun("a")) is None
    await write("a", Absent())
    assert await refused("b", Absent()) == "a"
    assert await refused("b", IsRun("c")) == "a"
    assert await refused("b", NotOpen()) == "a"
    await write("a", IsRun("a"), status=8)
    assert await refused("b", NotOpen()) == "a"
    await write("a", IsRun("a"), status=COMPLETED)
    assert await refused("b", Absent()) == "a"
    await write("b", NotOpen())
    found = await store.read_current(SHARD, NAMESPACE, WORKFLOW)
    assert found == (NAMESPACE, WORKFLOW, "b", "request of b", 1, 17)
    assert found is not None
    assert not found.is_closed
    other = Commit(current=[current("x", NotOpen(), workflow_id="another")])
    await store.commit(SHARD, lease.range_id, other)


async def test_only_one_of_many_concurrent_starts_of_a_workflow_succeeds(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    commits = [
        Commit(runs=[run(f"run-{number}")], current=[current(f"run-{number}", Absent())]) for number in range(20)
    ]
    outcomes = await asyncio.gather(
        *(store.commit(SHARD, lease.range_id, commit) for commit in commits), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CurrentConflict"] * 19 + ["NoneType"]
    found = await store.read_current(SHARD, NAMESPACE, WORKFLOW)
    assert found is not None
    assert [one.run_id for one in await store.list_runs(SHARD, after=None, limit=30)] == [found.run_id]


# --- all or nothing


async def test_a_commit_with_a_refused_part_changes_nothing(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, everything(1))
    await store.complete_tasks(SHARD, lease.range_id, "transfer", TaskKey(0, 3))
    good = everything(2)
    bad: list[tuple[type[Exception], Commit]] = [
        (RunConflict, good._replace(runs=[*good.runs, run("run-1", workflow_id="order 1")])),
        (CurrentConflict, good._replace(current=[*good.current, current("x", Absent(), workflow_id="order 1")])),
        (TaskBelowLevel, good._replace(tasks=[*good.tasks, task(3)])),
        (ForkBroken, good._replace(branches=[BranchWrite("run-1", "fork", (Ancestor("main", 4),))])),
        (ForkBroken, good._replace(branches=[BranchWrite("run-1", "fork", (Ancestor("nobody", 3),))])),
        (BadCommit, good._replace(runs=[*good.runs, *good.runs])),
        (BadSearch, good._replace(visibility=[row("run-2", search_attributes={'a"b': 1})])),
    ]
    for error, commit in bad:
        with pytest.raises(error):
            await store.commit(SHARD, lease.range_id, commit)
        assert not await assert_whole_or_absent(store, 2)
        assert [one.run_id for one in await store.list_visibility(NAMESPACE, limit=10)] == ["run-1"]
    await store.commit(SHARD, lease.range_id, good)
    assert await assert_whole_or_absent(store, 2)


async def test_a_refused_commit_does_not_affect_concurrent_commits(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, everything(7))
    outcomes = await asyncio.gather(
        *(store.commit(SHARD, lease.range_id, everything(number)) for number in range(1, 41)),
        store.commit(SHARD, lease.range_id, Commit(runs=[run("run-8", workflow_id="order 8", expected=5)])),
        store.commit(SHARD, lease.range_id + 1, everything(50)),
        return_exceptions=True,
    )
    wrong = {place + 1: type(outcome) for place, outcome in enumerate(outcomes) if outcome is not None}
    assert wrong == {7: CurrentConflict, 41: RunConflict, 42: LeaseLost}
    for number in range(1, 41):
        assert await assert_whole_or_absent(store, number)
    assert not await assert_whole_or_absent(store, 50)


async def test_a_repeated_commit_is_refused_by_its_versions(store: HistoryStore) -> None:
    """After an unknown outcome, the owner renews its lease, reads, and writes again: nothing is written twice."""
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, everything(1))
    range_id = await store.renew_shard(SHARD, lease.range_id)
    with pytest.raises(LeaseLost):
        await store.commit(SHARD, lease.range_id, everything(1))
    again = everything(1)._replace(current=[])
    with pytest.raises(RunConflict) as raised:
        await store.commit(SHARD, range_id, again)
    assert raised.value.present is not None
    assert raised.value.present.state == b"state 1"
    # Parts without a condition may be written repeatedly.
    for transaction_id in (0, 1, 2):
        batches = [write._replace(transaction_id=transaction_id) for write in again.batches]
        await store.commit(SHARD, range_id, again._replace(runs=[], batches=batches))
    assert [found[:2] for found in await read_all(store, tree="run-1")] == [(1, 2), (3, 5)]
    assert len(await store.read_tasks(SHARD, "transfer", after=TaskKey(0, 0), until_ns=None, limit=10)) == 1
    assert await assert_whole_or_absent(store, 1)


async def test_two_runs_are_changed_in_one_commit(store: HistoryStore) -> None:
    """Continue-as-new closes the old run and creates the new one in one commit."""
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, Commit(runs=[run()], current=[current("run-1", Absent())]))
    step = Commit(
        runs=[run(expected=1, status=6), run("run-2")],
        batches=[batch(3, 3), batch(1, 2, tree="run-2")],
        current=[current("run-2", IsRun("run-1"))],
    )
    await store.commit(SHARD, lease.range_id, step)
    listed = await store.list_runs(SHARD, after=None, limit=10)
    assert [(one.run_id, one.db_version, one.status) for one in listed] == [("run-1", 2, 6), ("run-2", 1, 1)]
    found = await store.read_current(SHARD, NAMESPACE, WORKFLOW)
    assert found is not None
    assert found.run_id == "run-2"


@pytest.mark.parametrize(
    "commit",
    [
        Commit(runs=[run(), run(expected=3)]),
        Commit(batches=[batch(1, 2), batch(1, 3)]),
        Commit(branches=[BranchWrite("t", "b", ()), BranchWrite("t", "b", ())]),
        Commit(current=[current("a", Absent()), current("b", NotOpen())]),
        Commit(tasks=[task(1), task(1, payload=b"another")]),
        Commit(visibility=[row(), VisibilityDelete(NAMESPACE, "run-1")]),
    ],
)
async def test_a_commit_that_writes_the_same_row_twice_is_refused(store: HistoryStore, commit: Commit) -> None:
    lease = await store.take_shard(SHARD)
    with pytest.raises(BadCommit, match=r"same .* twice: 2 writes of 1"):
        await store.commit(SHARD, lease.range_id, commit)


async def test_a_commit_above_its_bounds_is_refused(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await store.take_shard(SHARD)
    monkeypatch.setattr(commit_limits, "COMMIT_ROWS_MAX", 6)
    with pytest.raises(BadCommit, match="7 rows, the limit is 6"):
        await store.commit(SHARD, lease.range_id, everything(1))
    monkeypatch.setattr(commit_limits, "COMMIT_ROWS_MAX", 7)
    monkeypatch.setattr(commit_limits, "COMMIT_BYTES_MAX", 10)
    with pytest.raises(BadCommit, match="bytes, the limit is 10"):
        await store.commit(SHARD, lease.range_id, everything(1))
    monkeypatch.setattr(commit_limits, "COMMIT_BYTES_MAX", 1000)
    await store.commit(SHARD, lease.range_id, everything(1))
