"""Branches of histories on every store: pages in both directions, forks, deletion of events that no branch needs."""

import tracemalloc

import pytest

from fairlead.storage.commit import Absent, Ancestor, BranchWrite, Commit
from fairlead.storage.history import BATCHES_A_PAGE_MAX, HistoryStore, StoredBatch
from fairlead.storage.history_conflicts import ForkBroken
from tests.storage.history.writes import COMPLETED, NAMESPACE, SHARD, WORKFLOW, batch, current, key, read_all, row, run


async def write(store: HistoryStore, range_id: int, *batches: tuple[int, int], branch: str = "main") -> None:
    await store.commit(SHARD, range_id, Commit(batches=[batch(*ends, branch=branch) for ends in batches]))


async def fork(store: HistoryStore, range_id: int, branch: str, *ancestors: tuple[str, int]) -> None:
    fork = BranchWrite("tree", branch, tuple(Ancestor(*ancestor) for ancestor in ancestors))
    await store.commit(SHARD, range_id, Commit(branches=[fork]))


def payloads(batches: list[StoredBatch]) -> list[str]:
    return [found.payload.decode() for found in batches]


async def test_batches_are_read_as_they_were_written(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await write(store, lease.range_id, (3, 5), (1, 2))
    await write(store, lease.range_id, (6, 6))
    await store.commit(SHARD, lease.range_id, Commit(batches=[batch(1, 9, tree="another")]))
    assert await read_all(store) == [
        StoredBatch(1, 2, 17, 1, b"main 1-2"),
        StoredBatch(3, 5, 17, 1, b"main 3-5"),
        StoredBatch(6, 6, 17, 1, b"main 6-6"),
    ]
    assert await read_all(store, reverse=True) == (await read_all(store))[::-1]
    assert await read_all(store, "nobody") == []
    assert await read_all(store, tree="nobody") == []


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (1, 100, [1, 3, 6]),
        (1, 3, [1]),
        (3, 4, [3]),
        (4, 6, [3]),
        (5, 7, [3, 6]),
        (6, 100, [6]),
        (8, 9, []),
        (7, 7, []),
        (2, 3, [1]),
    ],
)
async def test_a_range_finds_the_batches_that_hold_its_events(
    store: HistoryStore, begin: int, end: int, expected: list[int]
) -> None:
    lease = await store.take_shard(SHARD)
    await write(store, lease.range_id, (1, 2), (3, 5), (6, 7))
    for reverse in (False, True):
        found = await store.read_branch("tree", "main", begin, end, limit_bytes=1000, reverse=reverse)
        assert [one.first_event_id for one in found] == (expected[::-1] if reverse else expected)


async def test_a_batch_written_twice_keeps_the_write_with_the_higher_transaction_id(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    for transaction_id, payload in [(5, b"five"), (4, b"four"), (7, b"seven"), (6, b"six"), (7, b"again")]:
        again = batch(1, transaction_id, transaction_id=transaction_id, payload=payload)
        await store.commit(SHARD, lease.range_id, Commit(batches=[again]))
    assert await read_all(store) == [StoredBatch(1, 7, 17, 7, b"seven")]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit_bytes", [0, 1, 8, 15, 16, 17, 31, 1000])
async def test_a_page_has_no_more_bytes_than_asked_for_but_always_one_batch(
    store: HistoryStore, limit_bytes: int, *, reverse: bool
) -> None:
    lease = await store.take_shard(SHARD)
    await write(store, lease.range_id, (1, 1), (2, 2), (3, 3), (4, 4))
    await fork(store, lease.range_id, "fork", ("main", 4))
    await write(store, lease.range_id, (4, 4), (5, 5), branch="fork")
    page = await store.read_branch("tree", "fork", 1, 100, limit_bytes=limit_bytes, reverse=reverse)
    assert len(page) == 1 or sum(len(found.payload) for found in page) <= limit_bytes
    expected = ["main 1-1", "main 2-2", "main 3-3", "fork 4-4", "fork 5-5"]
    assert len(page) == max(1, min(limit_bytes // 8, 5))
    everything = await read_all(store, "fork", limit_bytes=limit_bytes, reverse=reverse)
    assert payloads(everything) == (expected[::-1] if reverse else expected)


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_page_has_no_more_batches_than_its_bound(store: HistoryStore, *, reverse: bool) -> None:
    lease = await store.take_shard(SHARD)
    batches = [batch(number, number) for number in range(1, BATCHES_A_PAGE_MAX + 3)]
    await store.commit(SHARD, lease.range_id, Commit(batches=batches))
    page = await store.read_branch("tree", "main", 1, 10**6, limit_bytes=10**9, reverse=reverse)
    assert len(page) == BATCHES_A_PAGE_MAX
    assert len(await read_all(store, limit_bytes=10**9, reverse=reverse)) == len(batches)


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_fork_begins_with_the_events_of_its_ancestors(store: HistoryStore, *, reverse: bool) -> None:
    """NDC-8: a history is a tree of branches."""
    lease = await store.take_shard(SHARD)
    await write(store, lease.range_id, (1, 2), (3, 4), (5, 6))
    await fork(store, lease.range_id, "left", ("main", 5))
    await write(store, lease.range_id, (5, 7), (8, 9), branch="left")
    await fork(store, lease.range_id, "leaf", ("main", 5), ("left", 8))
    await write(store, lease.range_id, (8, 8), branch="leaf")
    # The ancestors get more events; their descendants don't have them.
    await write(store, lease.range_id, (7, 9))
    await write(store, lease.range_id, (10, 11), branch="left")
    expected = {
        "main": ["main 1-2", "main 3-4", "main 5-6", "main 7-9"],
        "left": ["main 1-2", "main 3-4", "left 5-7", "left 8-9", "left 10-11"],
        "leaf": ["main 1-2", "main 3-4", "left 5-7", "leaf 8-8"],
    }
    for branch, found in expected.items():
        for limit_bytes in (1, 20, 1000):
            read = await read_all(store, branch, limit_bytes=limit_bytes, reverse=reverse)
            assert payloads(read) == (found[::-1] if reverse else found)
    part = await store.read_branch("tree", "leaf", 4, 8, limit_bytes=1000, reverse=reverse)
    assert payloads(part) == (["left 5-7", "main 3-4"] if reverse else ["main 3-4", "left 5-7"])


async def test_a_fork_is_made_only_at_the_end_of_a_batch(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await write(store, lease.range_id, (1, 2), (3, 4))
    for end in (1, 2, 4, 6):
        with pytest.raises(ForkBroken):
            await fork(store, lease.range_id, "fork", ("main", end))
    await fork(store, lease.range_id, "fork", ("main", 3))
    await fork(store, lease.range_id, "other", ("main", 5))
    assert payloads(await read_all(store, "fork")) == ["main 1-2"]


async def test_a_fork_and_its_first_events_are_written_in_one_commit(store: HistoryStore) -> None:
    """A reset closes the base run; the new run begins with the base run's events and adds its own."""
    lease = await store.take_shard(SHARD)
    await write(store, lease.range_id, (1, 2), (3, 4))
    step = Commit(
        branches=[BranchWrite("tree", "fork", (Ancestor("main", 3),))],
        batches=[batch(3, 3, branch="fork"), batch(5, 5)],
    )
    await store.commit(SHARD, lease.range_id, step)
    assert payloads(await read_all(store, "fork")) == ["main 1-2", "fork 3-3"]
    assert payloads(await read_all(store)) == ["main 1-2", "main 3-4", "main 5-5"]


async def test_reading_a_history_of_50000_events_in_pages_takes_bounded_memory(store: HistoryStore) -> None:
    """A history is served in pages and never loaded whole."""
    lease = await store.take_shard(SHARD)
    for start in range(1, 50_001, 5000):
        batches = [batch(first, first + 9, payload=bytes(2000)) for first in range(start, start + 5000, 10)]
        await store.commit(SHARD, lease.range_id, Commit(batches=batches))
    for reverse in (False, True):
        begin, end, events, pages = 1, 50_001, 0, 0
        # Caches may keep some of the memory: measure only what a page needs.
        tracemalloc.start()
        while True:
            page = await store.read_branch("tree", "main", begin, end, limit_bytes=100_000, reverse=reverse)
            if not page:
                break
            assert sum(len(found.payload) for found in page) <= 100_000
            events += sum(found.last_event_id - found.first_event_id + 1 for found in page)
            pages += 1
            if reverse:
                end = page[-1].first_event_id
            else:
                begin = page[-1].last_event_id + 1
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert events == 50_000
        assert pages == 100
        assert peak_bytes < 3_000_000


# --- retention


async def test_a_deleted_run_leaves_nothing(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    commit = Commit(
        runs=[run(status=COMPLETED), run("run-2")],
        batches=[batch(1, 2), batch(1, 2, tree="other")],
        current=[current("run-1", Absent(), status=COMPLETED)],
        visibility=[row(), row("run-2")],
    )
    await store.commit(SHARD, lease.range_id, commit)
    await store.delete_run(SHARD, lease.range_id, key(), branches=[("tree", "main")])
    assert await store.read_run(SHARD, *key()) is None
    assert await store.read_current(SHARD, NAMESPACE, WORKFLOW) is None
    assert await read_all(store) == []
    assert len(await read_all(store, tree="other")) == 1
    assert [one.run_id for one in await store.list_visibility(NAMESPACE, limit=10)] == ["run-2"]
    assert [one.run_id for one in await store.list_runs(SHARD, after=None, limit=10)] == ["run-2"]
    # Deleting again, or deleting a run that never existed, does nothing.
    await store.delete_run(SHARD, lease.range_id, key(), branches=[("tree", "main")])
    # A new run may use the same names.
    await store.commit(SHARD, lease.range_id, Commit(runs=[run()], current=[current("run-1", Absent())]))
    await write(store, lease.range_id, (1, 3))
    assert payloads(await read_all(store)) == ["main 1-3"]


async def test_the_current_run_stays_when_another_is_deleted(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await store.commit(SHARD, lease.range_id, Commit(runs=[run()], current=[current("run-2", Absent())]))
    await store.delete_run(SHARD, lease.range_id, key())
    found = await store.read_current(SHARD, NAMESPACE, WORKFLOW)
    assert found is not None
    assert found.run_id == "run-2"


async def test_events_are_kept_while_another_branch_begins_with_them(store: HistoryStore) -> None:
    lease = await store.take_shard(SHARD)
    await write(store, lease.range_id, (1, 2), (3, 4), (5, 6))
    await fork(store, lease.range_id, "left", ("main", 5))
    await write(store, lease.range_id, (5, 5), branch="left")
    await fork(store, lease.range_id, "right", ("main", 3))
    await fork(store, lease.range_id, "leaf", ("main", 5), ("left", 6))
    await write(store, lease.range_id, (6, 6), branch="leaf")

    async def delete(branch: str) -> None:
        await store.delete_run(SHARD, lease.range_id, key(branch), branches=[("tree", branch)])

    async def can_fork(branch: str, end: int) -> bool:
        try:
            await fork(store, lease.range_id, f"probe of {branch}", (branch, end))
        except ForkBroken:
            return False
        await delete(f"probe of {branch}")
        return True

    await delete("main")
    assert await read_all(store) == []
    assert payloads(await read_all(store, "left")) == ["main 1-2", "main 3-4", "left 5-5"]
    assert [await can_fork("main", 5), await can_fork("main", 7)] == [True, False]
    await delete("left")
    assert await read_all(store, "left") == []
    assert payloads(await read_all(store, "leaf")) == ["main 1-2", "main 3-4", "left 5-5", "leaf 6-6"]
    await delete("leaf")
    # No branch needs the events after the fork.
    assert [await can_fork("main", 5), await can_fork("main", 3), await can_fork("left", 6)] == [False, True, False]
    assert payloads(await read_all(store, "right")) == ["main 1-2"]
    await delete("right")
    assert not await can_fork("main", 3)
