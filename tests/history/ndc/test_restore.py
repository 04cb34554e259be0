"""Events that a store has lost are restored exactly, at their position, and never overwrite stored ones."""

from typing import Any

import msgspec
import pytest
from temporalio.api.history.v1 import History

from fairlead.core.versions import MalformedBatch
from fairlead.history.messages.ndc import Outcome, ReplicatedBatch
from fairlead.history.messages.restore import BranchRange, DryRunOutcome, DryRunRequest, decode_dry_run, decode_restored
from fairlead.history.ndc.restore import NothingToRestore, StoredDiffers
from tests.history.ndc.several import Cluster, Several, batch_of, check_same, events_view
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


def held(cluster: Cluster, branch_id: str) -> Any:
    """By first event id: the batches of a branch in the store."""
    return _stored(cluster, branch_id).batches


def _stored(cluster: Cluster, branch_id: str) -> Any:
    store: Any = cluster.world.store
    return store._trees[cluster.state(FLOW).identity.tree_id][branch_id]


def lose(cluster: Cluster, branch_id: str, *first_event_ids: int) -> None:
    """Delete batches from the store, though the run's state still refers to them."""
    branch = _stored(cluster, branch_id)
    for first_event_id in first_event_ids:
        del branch.batches[first_event_id]
        branch.first_event_ids.remove(first_event_id)


async def restore(cluster: Cluster, batch: ReplicatedBatch) -> int:
    return decode_restored(await cluster.host.call("RestoreBatch", FLOW, batch)).restored


async def expected(cluster: Cluster, run_id: str, *ranges: BranchRange) -> tuple[DryRunOutcome, ...]:
    answer = await cluster.host.call("DryRun", FLOW, DryRunRequest(FLOW, run_id, ranges))
    return decode_dry_run(answer).expected


async def signaled(several: Several, count: int) -> list[ReplicatedBatch]:
    """Replicate a run of A with `count` signals to all clusters; return its batches."""
    a = several["a"]
    await a.host.begin(FLOW)
    for number in range(count):
        await a.host.signal(FLOW, f"s{number}", f"r{number}")
    batches = [batch_of("a", row) for row in (await a.rows())[0]]
    await several.converge()
    return batches


@on_virtual_time
async def test_lost_events_in_the_middle_and_at_the_end_are_restored_and_nothing_else_changes() -> None:
    async with Several() as several:
        batches = await signaled(several, 4)
        b = several["b"]
        state = b.state(FLOW)
        branch_id = state.identity.branch_id
        before = dict(held(b, branch_id))
        whole = await events_view(b, (await _key(b)))
        lose(b, branch_id, 3, 6)
        # Drop the copy in memory too.
        await b.restart()
        assert (await b.apply(batches[1])).outcome == Outcome.DUPLICATE
        ranges = [BranchRange(3, 3, 1, ((6, 1),)), BranchRange(4, 5, 1, ((6, 1),)), BranchRange(5, 6, 1, ((6, 1),))]
        assert await expected(b, state.identity.run_id, *ranges) == (
            DryRunOutcome(Outcome.RESTORED, 1),
            DryRunOutcome(Outcome.DUPLICATE),
            DryRunOutcome(Outcome.RESTORED, 1),
        )
        assert [await restore(b, batch) for batch in batches] == [0, 1, 0, 0, 1]
        assert [await restore(b, batch) for batch in batches] == [0] * 5
        after = held(b, branch_id)
        assert after.keys() == before.keys()
        for first in (1, 4, 5):
            assert after[first] == before[first]
        # Transaction ids stay in order: a restored batch has no higher one than its successor.
        assert [batch.transaction_id for _, batch in sorted(after.items())] == sorted(
            batch.transaction_id for batch in after.values()
        )
        assert await events_view(b, (await _key(b))) == whole
        await check_same(several, [FLOW])


@on_virtual_time
async def test_the_beginning_of_a_run_is_restored_with_the_oldest_transaction_id() -> None:
    async with Several() as several:
        batches = await signaled(several, 1)
        b = several["b"]
        branch_id = b.state(FLOW).identity.branch_id
        lose(b, branch_id, 1, 3)
        assert [await restore(b, batch) for batch in reversed(batches)] == [1, 2]
        assert held(b, branch_id)[1].transaction_id <= held(b, branch_id)[3].transaction_id
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_restore_gets_new_transaction_ids_if_others_use_up_its_range() -> None:
    async with Several() as several:
        batches = await signaled(several, 3)
        b = several["b"]
        lose(b, b.state(FLOW).identity.branch_id, 4)
        shard = b.shard
        reads = 0

        async def take_all_at_the_last_read(operation: str) -> None:
            nonlocal reads
            reads += operation == "read_branch"
            if operation == "read_branch" and reads == 2:
                shard.ids.take(shard.ids._last_id - shard.ids.next_id)

        b.world.faults.on_before = take_all_at_the_last_read
        assert await restore(b, batches[2]) == 1
        assert reads == 2
        assert shard.ids.next_id < shard.ids._last_id


@on_virtual_time
async def test_a_losing_branch_is_restored_as_well() -> None:
    async with Several() as several:
        b, c = several["b"], several["c"]
        await signaled(several, 1)
        await several.fail_over(2)
        await b.host.signal(FLOW, "shared", "rb")
        await several.converge()
        await several.fail_over(3, "c")
        await b.host.signal(FLOW, "lost", "r4b")
        await c.host.signal(FLOW, "won", "r4c")
        lost = [batch_of("b", row) for row in (await b.rows())[0]][-1]
        await several.fail_over(3, "a", "b")
        await several.converge()
        side = c.state(FLOW).live.branches[0]
        assert tuple(map(tuple, side.items)) == lost.items
        first = History.FromString(lost.events).events[0].event_id
        lose(c, side.branch_id, first)
        assert await restore(c, lost) == 1
        await check_same(several, [FLOW])


@on_virtual_time
async def test_restored_events_that_branches_share_are_in_all_of_them() -> None:
    async with Several() as several:
        b, c = several["b"], several["c"]
        batches = await signaled(several, 2)
        await several.fail_over(2)
        await b.host.signal(FLOW, "shared", "rb")
        await several.converge()
        await several.fail_over(3, "c")
        await b.host.signal(FLOW, "lost", "r4b")
        await c.host.signal(FLOW, "won", "r4c")
        await several.fail_over(3, "a", "b")
        await several.converge()
        # The current branch begins with the events of the branch that was current before.
        state = b.state(FLOW)
        (ancestor,) = state.live.ancestors
        lose(b, ancestor[0], 3)
        assert state.versions is not None
        assert await restore(b, msgspec.structs.replace(batches[1], items=state.versions.to_pairs())) == 1
        await check_same(several, [FLOW])


@on_virtual_time
async def test_stored_events_with_other_contents_are_never_overwritten() -> None:
    async with Several() as several:
        batches = await signaled(several, 2)
        b = several["b"]
        branch_id = b.state(FLOW).identity.branch_id
        other = History.FromString(batches[1].events)
        other.events[0].workflow_execution_signaled_event_attributes.signal_name = "another"
        before = dict(held(b, branch_id))
        with pytest.raises(StoredDiffers, match="event 3 has other contents in the store"):
            await restore(b, msgspec.structs.replace(batches[1], events=other.SerializeToString()))
        assert held(b, branch_id) == before
        held(b, branch_id)[3] = before[3]._replace(payload=b"\xff\xff")
        with pytest.raises(StoredDiffers, match="events 3 to 3 can't be decoded"):
            await restore(b, batches[1])
        assert held(b, branch_id)[3].payload == b"\xff\xff"


@on_virtual_time
async def test_events_that_the_state_does_not_have_are_not_restored() -> None:
    async with Several() as several:
        await signaled(several, 1)
        a, b = several["a"], several["b"]
        await a.host.signal(FLOW, "new", "rn")
        new = batch_of("a", (await a.rows())[0][-1])
        with pytest.raises(NothingToRestore, match="apply them instead"):
            await restore(b, new)
        with pytest.raises(MalformedBatch):
            await restore(b, msgspec.structs.replace(new, items=((3, 1),)))
        assert b.branches(FLOW) == {((3, 1),)}


@on_virtual_time
async def test_a_dry_run_predicts_the_result_of_each_range() -> None:
    async with Several() as several:
        await signaled(several, 2)
        b = several["b"]
        run_id = b.state(FLOW).identity.run_id
        branch = ((4, 1), (6, 2))
        ranges = [
            BranchRange(6, 6, 2, branch),
            BranchRange(5, 5, 2, branch),
            BranchRange(6, 6, 2, branch),
            BranchRange(4, 4, 3, ((3, 1), (4, 3))),
            BranchRange(5, 5, 1, ((5, 1),)),
        ]
        assert [each.outcome for each in await expected(b, run_id, *ranges)] == [
            Outcome.GAP,
            Outcome.APPLIED,
            Outcome.APPLIED,
            Outcome.REBUILT,
            Outcome.FORKED,
        ]
        assert b.branches(FLOW) == {((4, 1),)}
        new_run = await expected(b, "none", BranchRange(1, 4, 1, ((4, 1),)), BranchRange(2, 4, 1, ((4, 1),)))
        assert new_run == (DryRunOutcome(Outcome.CREATED, 4), DryRunOutcome(Outcome.DUPLICATE))


async def _key(cluster: Cluster) -> Any:
    (key,) = cluster.world.runs_of(FLOW)
    return key
