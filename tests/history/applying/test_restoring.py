"""Events that a store has lost: put back exactly, at their place, and never over what is there."""

from typing import Any

import msgspec
import pytest
from temporalio.api.history.v1 import History

from fairlead.core.versions import MalformedBatch
from fairlead.history.applying.messages import Outcome, ReplicatedBatch
from fairlead.history.applying.restoring import (
    Foreseen,
    ForeseeRequest,
    LineRange,
    NothingToRestore,
    StoredDiffers,
    decode_foreseen,
    decode_restored,
)
from tests.history.applying.several import Cluster, Several, batch_of, check_same, events_view
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


def held(cluster: Cluster, branch_id: str) -> Any:
    """The batches of a branch in the store, by their first event."""
    return _stored(cluster, branch_id).batches


def _stored(cluster: Cluster, branch_id: str) -> Any:
    store: Any = cluster.world.store
    return store._trees[cluster.state(FLOW).identity.tree_id][branch_id]


def lose(cluster: Cluster, branch_id: str, *first_event_ids: int) -> None:
    """Take batches out of the store, and have the state still say that they are there."""
    branch = _stored(cluster, branch_id)
    for first_event_id in first_event_ids:
        del branch.batches[first_event_id]
        branch.first_event_ids.remove(first_event_id)


async def restore(cluster: Cluster, batch: ReplicatedBatch) -> int:
    return decode_restored(await cluster.host.call("RestoreBatch", FLOW, batch)).restored


async def foreseen(cluster: Cluster, run_id: str, *ranges: LineRange) -> tuple[Foreseen, ...]:
    answer = await cluster.host.call("Foresee", FLOW, ForeseeRequest(FLOW, run_id, ranges))
    return decode_foreseen(answer).foreseen


async def signaled(several: Several, count: int) -> list[ReplicatedBatch]:
    """A run of A's with so many signals, in all clusters: its batches."""
    a = several["a"]
    await a.host.begin(FLOW)
    for number in range(count):
        await a.host.signal(FLOW, f"s{number}", f"r{number}")
    batches = [batch_of("a", row) for row in (await a.rows())[0]]
    await several.converge()
    return batches


@on_virtual_time
async def test_what_is_lost_in_the_middle_and_at_the_end_comes_back_and_nothing_else_is_touched() -> None:
    async with Several() as several:
        batches = await signaled(several, 4)
        b = several["b"]
        state = b.state(FLOW)
        branch_id = state.identity.branch_id
        before = dict(held(b, branch_id))
        whole = await events_view(b, (await _key(b)))
        lose(b, branch_id, 3, 6)
        # With what memory has of it gone, too.
        await b.restart()
        assert (await b.apply(batches[1])).outcome == Outcome.DUPLICATE
        ranges = [LineRange(3, 3, 1, ((6, 1),)), LineRange(4, 5, 1, ((6, 1),)), LineRange(5, 6, 1, ((6, 1),))]
        assert await foreseen(b, state.identity.run_id, *ranges) == (
            Foreseen(Outcome.RESTORED, 1),
            Foreseen(Outcome.DUPLICATE),
            Foreseen(Outcome.RESTORED, 1),
        )
        assert [await restore(b, batch) for batch in batches] == [0, 1, 0, 0, 1]
        assert [await restore(b, batch) for batch in batches] == [0] * 5
        after = held(b, branch_id)
        assert after.keys() == before.keys()
        for first in (1, 4, 5):
            assert after[first] == before[first]
        # Not later than what follows it.
        assert [batch.transaction_id for _, batch in sorted(after.items())] == sorted(
            batch.transaction_id for batch in after.values()
        )
        assert await events_view(b, (await _key(b))) == whole
        await check_same(several, [FLOW])


@on_virtual_time
async def test_the_beginning_of_a_run_comes_back_with_the_oldest_transaction() -> None:
    async with Several() as several:
        batches = await signaled(several, 1)
        b = several["b"]
        branch_id = b.state(FLOW).identity.branch_id
        lose(b, branch_id, 1, 3)
        assert [await restore(b, batch) for batch in reversed(batches)] == [1, 2]
        assert held(b, branch_id)[1].transaction_id <= held(b, branch_id)[3].transaction_id
        await check_same(several, [FLOW])


@on_virtual_time
async def test_ids_that_others_take_meanwhile_are_not_taken_beyond_the_end_of_their_range() -> None:
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
                shard.take_ids(shard._last_id - shard._next_id)

        b.world.faults.on_before = take_all_at_the_last_read
        assert await restore(b, batches[2]) == 1
        assert reads == 2
        assert shard._next_id < shard._last_id


@on_virtual_time
async def test_a_branch_that_has_lost_comes_back_as_well() -> None:
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
async def test_what_branches_share_comes_back_to_all_of_them() -> None:
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
        # Its current branch begins with the events of the one that was current before.
        state = b.state(FLOW)
        (ancestor,) = state.live.ancestors
        lose(b, ancestor[0], 3)
        assert state.versions is not None
        assert await restore(b, msgspec.structs.replace(batches[1], items=state.versions.to_pairs())) == 1
        await check_same(several, [FLOW])


@on_virtual_time
async def test_what_is_stored_with_other_contents_is_never_overwritten() -> None:
    async with Several() as several:
        batches = await signaled(several, 2)
        b = several["b"]
        branch_id = b.state(FLOW).identity.branch_id
        other = History.FromString(batches[1].events)
        other.events[0].workflow_execution_signaled_event_attributes.signal_name = "another"
        before = dict(held(b, branch_id))
        with pytest.raises(StoredDiffers, match="event 3 is stored with other contents"):
            await restore(b, msgspec.structs.replace(batches[1], events=other.SerializeToString()))
        assert held(b, branch_id) == before
        held(b, branch_id)[3] = before[3]._replace(payload=b"\xff\xff")
        with pytest.raises(StoredDiffers, match="events 3 to 3 can't be read"):
            await restore(b, batches[1])
        assert held(b, branch_id)[3].payload == b"\xff\xff"


@on_virtual_time
async def test_what_the_state_does_not_have_is_not_restored() -> None:
    async with Several() as several:
        await signaled(several, 1)
        a, b = several["a"], several["b"]
        await a.host.signal(FLOW, "new", "rn")
        new = batch_of("a", (await a.rows())[0][-1])
        with pytest.raises(NothingToRestore, match="they have to be applied"):
            await restore(b, new)
        with pytest.raises(MalformedBatch):
            await restore(b, msgspec.structs.replace(new, items=((3, 1),)))
        assert b.branches(FLOW) == {((3, 1),)}


@on_virtual_time
async def test_it_is_foreseen_what_becomes_of_ranges_one_after_the_other() -> None:
    async with Several() as several:
        await signaled(several, 2)
        b = several["b"]
        run_id = b.state(FLOW).identity.run_id
        line = ((4, 1), (6, 2))
        ranges = [
            LineRange(6, 6, 2, line),
            LineRange(5, 5, 2, line),
            LineRange(6, 6, 2, line),
            LineRange(4, 4, 3, ((3, 1), (4, 3))),
            LineRange(5, 5, 1, ((5, 1),)),
        ]
        assert [each.outcome for each in await foreseen(b, run_id, *ranges)] == [
            Outcome.GAP,
            Outcome.APPLIED,
            Outcome.APPLIED,
            Outcome.REBUILT,
            Outcome.FORKED,
        ]
        assert b.branches(FLOW) == {((4, 1),)}
        new_run = await foreseen(b, "none", LineRange(1, 4, 1, ((4, 1),)), LineRange(2, 4, 1, ((4, 1),)))
        assert new_run == (Foreseen(Outcome.CREATED, 4), Foreseen(Outcome.DUPLICATE))


async def _key(cluster: Cluster) -> Any:
    (key,) = cluster.world.runs_of(FLOW)
    return key
