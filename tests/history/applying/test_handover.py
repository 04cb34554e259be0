"""While a namespace is handed over its writes wait, and end in the cluster that has it then: none is lost or fails."""

import asyncio

import msgspec
import pytest

from fairlead.history.clusters import is_not_active
from fairlead.history.namespaces import Namespace
from fairlead.history.refusals import Refused
from tests.history.applying.several import SHARED, Several
from tests.history.shard_world import SECOND_NS, now_ns
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


@on_virtual_time
async def test_a_write_waits_until_the_hand_over_is_over_and_is_refused_then() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        last_id = await a.shard.hand_over(SHARED.id, now_ns() + 10 * SECOND_NS)
        rows, _ = await a.rows()
        assert last_id == rows[-1].task_id
        waiting = [asyncio.create_task(a.host.signal(FLOW, "waits")), asyncio.create_task(a.host.begin("flow-2"))]
        await asyncio.sleep(3)
        assert not any(task.done() for task in waiting)
        await a.set_version(2)
        for task in waiting:
            with pytest.raises(Refused) as refused:
                await task
            assert is_not_active(refused.value)
        assert (await a.rows())[0] == rows


@pytest.mark.parametrize("is_taken_back", [False, True])
@on_virtual_time
async def test_a_write_goes_on_when_the_hand_over_is_taken_back_or_its_time_is_over(is_taken_back: bool) -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        await a.shard.hand_over(SHARED.id, now_ns() + 5 * SECOND_NS)
        waiting = asyncio.create_task(a.host.signal(FLOW, "waits"))
        await asyncio.sleep(1)
        assert not waiting.done()
        if is_taken_back:
            await a.shard.hand_over(SHARED.id, 0)
            await asyncio.sleep(0.5)
        else:
            await asyncio.sleep(5)
        assert waiting.done()
        await waiting
        assert a.branches(FLOW) == {((3, 1),)}


@on_virtual_time
async def test_a_hand_over_waits_for_the_writes_that_are_under_way() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.signal(FLOW, "under way"))
        await has_come.wait()
        handing = asyncio.create_task(a.shard.hand_over(SHARED.id, now_ns() + 10 * SECOND_NS))
        await asyncio.sleep(1)
        assert not handing.done()
        goes_on.set()
        last_id = await handing
        await writing
        assert (await a.rows())[0][-1].task_id == last_id


@on_virtual_time
async def test_a_shard_that_moves_meanwhile_keeps_the_writes_waiting() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        until_ns = now_ns() + 10 * SECOND_NS

        def hand_over(namespace: Namespace) -> Namespace:
            return msgspec.structs.replace(namespace, handover_until_ns=until_ns, handover_to="b")

        await a.host.namespaces.change(SHARED.id, hand_over)
        await a.restart()
        waiting = asyncio.create_task(a.host.signal(FLOW, "waits"))
        await asyncio.sleep(5)
        assert not waiting.done()
        await asyncio.sleep(6)
        assert waiting.done()
        await waiting
