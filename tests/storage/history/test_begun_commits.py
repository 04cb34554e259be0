"""Commits that begin without a coroutine: their futures have the same outcomes, and can't be cancelled."""

import asyncio
from collections.abc import Callable

import pytest

from fairlead.storage.commit import Absent, Commit, IsRun
from fairlead.storage.history import HistoryStore, LeaseLost
from fairlead.storage.history_conflicts import CurrentConflict, RunConflict
from tests.storage.history.writes import NAMESPACE, SHARD, current, key, run

BeginCommit = Callable[[int, int, Commit], "asyncio.Future[object]"]


# The store in memory has no such commits.
in_a_database = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)


def begin_of(store: HistoryStore) -> BeginCommit:
    begin: BeginCommit = store.begin_commit  # type: ignore[attr-defined] # not of every store
    return begin


@in_a_database
async def test_a_begun_commit_is_stored_when_its_future_is_done(store: HistoryStore) -> None:
    begin, lease = begin_of(store), await store.take_shard(SHARD)
    await begin(SHARD, lease.range_id, Commit(runs=[run()]))
    assert await store.read_run(SHARD, *key()) is not None


@in_a_database
async def test_a_begun_commit_fails_with_the_present_state_like_any_commit(store: HistoryStore) -> None:
    begin, lease = begin_of(store), await store.take_shard(SHARD)
    await begin(SHARD, lease.range_id, Commit(runs=[run()], current=[current("a", Absent())]))
    with pytest.raises(CurrentConflict) as conflict:
        await begin(SHARD, lease.range_id, Commit(current=[current("b", IsRun("c"))]))
    assert conflict.value.present is not None
    assert conflict.value.present.run_id == "a"
    with pytest.raises(RunConflict) as raised:
        await begin(SHARD, lease.range_id, Commit(runs=[run(expected=7)]))
    assert raised.value.present == await store.read_run(SHARD, *key())
    with pytest.raises(LeaseLost):
        await begin(SHARD, lease.range_id - 1, Commit(runs=[run(expected=1)]))


@in_a_database
async def test_a_cancelled_caller_of_a_begun_commit_learns_its_outcome(store: HistoryStore) -> None:
    begin, lease = begin_of(store), await store.take_shard(SHARD)
    writing = begin(SHARD, lease.range_id, Commit(runs=[run()]))
    assert not writing.cancel()
    await writing
    assert await store.read_run(SHARD, *key()) is not None


async def test_each_workflow_id_gets_one_run_of_many_concurrent_starts(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    ids = [f"workflow-{number % 40}" for number in range(120)]
    starts = [
        store.commit(
            SHARD, lease.range_id, Commit(current=[current(f"run-{number}", Absent(), workflow_id=workflow_id)])
        )
        for number, workflow_id in enumerate(ids)
    ]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CurrentConflict"] * 80 + ["NoneType"] * 40
    for workflow_id in set(ids):
        found = await store.read_current(SHARD, NAMESPACE, workflow_id)
        assert found is not None
        assert outcomes[int(found.run_id.removeprefix("run-"))] is None
    with pytest.raises(CurrentConflict):
        await store.commit(SHARD, lease.range_id, Commit(current=[current("late", Absent(), workflow_id=ids[0])]))
