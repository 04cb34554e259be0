"""The memory store with faults: lost responses and late writes, and how an owner recovers from them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead.storage.commit import Commit
from fairlead.storage.history import LeaseLost, OutcomeUnknown, StoreUnavailable
from fairlead.storage.history_conflicts import RunConflict
from fairlead.storage.memory.history import MemoryHistory
from tests.patience import step
from tests.storage.history.writes import SHARD, assert_whole_or_absent, everything, run


class Planned:
    """Makes the next `commit` fail as planned; all other operations succeed."""

    def __init__(self) -> None:
        self.fails_before: Exception | None = None
        self.fails_after: Exception | None = None
        self.is_late: asyncio.Event | None = None
        self.operations: list[tuple[str, int | None]] = []

    async def before(self, operation: str, shard_id: int | None) -> Callable[[], Awaitable[None]] | None:
        self.operations.append((operation, shard_id))
        if operation != "commit":
            return None
        if self.fails_before is not None:
            raise self.fails_before
        if self.is_late is None:
            return None
        event = self.is_late

        async def wait() -> None:
            await event.wait()

        return wait

    async def after(self, operation: str, shard_id: int | None) -> None:
        if operation == "commit" and self.fails_after is not None:
            raise self.fails_after


async def test_a_commit_whose_response_is_lost_is_stored_and_a_retry_does_not_write_it_twice() -> None:
    faults = Planned()
    store = MemoryHistory(faults)
    lease = await store.take_shard(SHARD)
    faults.fails_after = OutcomeUnknown("lost")
    with pytest.raises(OutcomeUnknown):
        await store.commit(SHARD, lease.range_id, everything(1))
    faults.fails_after = None
    range_id = await store.renew_shard(SHARD, lease.range_id)
    assert await assert_whole_or_absent(store, 1)
    with pytest.raises(RunConflict):
        await store.commit(SHARD, range_id, everything(1)._replace(current=[]))
    assert ("commit", SHARD) in faults.operations
    assert ("read_branch", None) in faults.operations


async def test_a_commit_that_never_arrived_is_written_by_a_retry() -> None:
    faults = Planned()
    store = MemoryHistory(faults)
    lease = await store.take_shard(SHARD)
    faults.fails_before = OutcomeUnknown("lost")
    with pytest.raises(OutcomeUnknown):
        await store.commit(SHARD, lease.range_id, everything(1))
    faults.fails_before = None
    range_id = await store.renew_shard(SHARD, lease.range_id)
    assert not await assert_whole_or_absent(store, 1)
    await store.commit(SHARD, range_id, everything(1))


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_a_late_commit_takes_effect_unless_the_shard_was_renewed(*, is_renewed: bool) -> None:
    faults = Planned()
    store = MemoryHistory(faults)
    lease = await store.take_shard(SHARD)
    faults.is_late = asyncio.Event()
    with pytest.raises(OutcomeUnknown):
        await store.commit(SHARD, lease.range_id, everything(1))
    assert not await assert_whole_or_absent(store, 1)
    if is_renewed:
        await store.renew_shard(SHARD, lease.range_id)
    faults.is_late.set()
    await step()
    assert await assert_whole_or_absent(store, 1) is not is_renewed
    await store.close()


async def test_late_writes_are_dropped_when_the_store_closes() -> None:
    faults = Planned()
    store = MemoryHistory(faults)
    lease = await store.take_shard(SHARD)
    faults.is_late = asyncio.Event()
    with pytest.raises(OutcomeUnknown):
        await store.commit(SHARD, lease.range_id, Commit(runs=[run()]))
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.take_shard(SHARD)
    with pytest.raises(StoreUnavailable):
        await store.list_runs(SHARD, after=None, limit=1)
    assert store._shards[SHARD].runs == {}


async def test_operations_never_wait_if_there_are_no_faults() -> None:
    store = MemoryHistory()
    with pytest.raises(StopIteration) as ended:
        store.take_shard(SHARD).send(None)
    range_id = ended.value.value.range_id
    with pytest.raises(LeaseLost):
        store.commit(SHARD, range_id + 1, Commit()).send(None)
