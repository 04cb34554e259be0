"""While a namespace is handed over its writes wait, and end in the cluster that has it then: none is lost or fails."""

import asyncio

import msgspec
import pytest
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueResponse, RespondActivityTaskCompletedRequest

from fairlead.history.clusters import is_not_active
from fairlead.history.namespaces import Namespace, Namespaces
from fairlead.history.refusals import Refused
from fairlead.history.shard import NotOwner
from fairlead.history.state.errors import NotPending
from tests.history.applying.several import SHARED, Cluster, Several, check_same, deliver
from tests.history.shard_world import SECOND_NS, kinds, now_ns, schedule_activity
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
        until_ns = now_ns() + 5 * SECOND_NS
        await a.shard.hand_over(SHARED.id, until_ns)
        waiting = asyncio.create_task(a.host.signal(FLOW, "waits"))
        await asyncio.sleep(1)
        assert not waiting.done()
        if is_taken_back:
            a.shard.shared.end_hand_over(SHARED.id, until_ns)
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


async def _activity_ends_while_a_task_is_held(cluster: Cluster) -> PollWorkflowTaskQueueResponse:
    """A worker has a workflow task, and the end of an activity, which was acknowledged, waits for that of the task."""
    await cluster.host.begin(FLOW)
    first = await cluster.host.poll()
    assert first is not None
    await cluster.host.respond(first, [schedule_activity()])
    activity = await cluster.host.poll_activity()
    assert activity is not None
    await cluster.host.signal(FLOW, "wakes it")
    task = await cluster.host.poll()
    assert task is not None
    answer = RespondActivityTaskCompletedRequest(task_token=activity.task_token, identity="worker")
    await cluster.host.call("RespondActivityTaskCompleted", FLOW, answer)
    # Its start as well, which is written with its end.
    assert len(cluster.state(FLOW).live.buffered) == 2
    return task


@pytest.mark.parametrize("is_in_memory", [True, False])
@on_virtual_time
async def test_what_waits_for_a_workflow_task_goes_along_although_the_task_is_answered_elsewhere(
    is_in_memory: bool,
) -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        task = await _activity_ends_while_a_task_is_held(a)
        if not is_in_memory:
            # It is not known in the shard whom the workflow task belongs to that a worker has.
            await a.restart()
            a.shard.runs.clear()
        last_id = await a.shard.hand_over(SHARED.id, now_ns() + 10 * SECOND_NS)
        answering = asyncio.create_task(a.host.respond(task))
        rows, _ = await a.rows()
        assert rows[-1].task_id == last_id
        await several.bring("a")
        await several.fail_over(2)
        with pytest.raises(Refused) as refused:
            await answering
        assert is_not_active(refused.value)
        # As the frontend sends it on: the task was taken from the worker, for what waited to be written.
        with pytest.raises(NotPending):
            await b.host.respond(task)
        await several.converge()
        assert kinds(await b.host.events(FLOW)).count("ACTIVITY_TASK_COMPLETED") == 1
        assert not b.state(FLOW).activities
        again = await b.host.poll()
        assert again is not None
        assert "ACTIVITY_TASK_COMPLETED" in kinds(again.history.events)
        await b.host.respond(again)
        await several.converge()
        assert len(a.branches(FLOW)) == 1
        await check_same(several, [FLOW])


@on_virtual_time
async def test_an_answer_that_waits_for_the_hand_over_does_not_keep_what_waits_from_being_written() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        task = await _activity_ends_while_a_task_is_held(a)
        await a.host.begin("flow-2")
        assert await a.host.poll() is not None
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.signal("flow-2", "under way"))
        await has_come.wait()
        began_ns = now_ns()
        handing = asyncio.create_task(a.shard.hand_over(SHARED.id, began_ns + 10 * SECOND_NS))
        await asyncio.sleep(0.1)
        # It comes before the hand-over could look at the run, and waits for the end of it.
        answering = asyncio.create_task(a.host.respond(task))
        await asyncio.sleep(0.1)
        goes_on.set()
        await asyncio.gather(handing, writing)
        assert now_ns() - began_ns < SECOND_NS
        assert not a.state(FLOW).live.buffered
        assert not answering.done()
        # It is taken back: the run goes on here, with a task that tells of the activity.
        a.shard.shared.end_hand_over(SHARED.id, began_ns + 10 * SECOND_NS)
        with pytest.raises(NotPending):
            await answering
        again = await a.host.poll()
        assert again is not None
        assert "ACTIVITY_TASK_COMPLETED" in kinds(again.history.events)
        await a.host.respond(again)
        assert not a.state(FLOW).has_started_task


@on_virtual_time
async def test_a_run_that_memory_let_go_is_known_to_have_events_that_wait_until_it_is_deleted() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await _activity_ends_while_a_task_is_held(a)
        (key,) = a.shard.runs.with_buffers(SHARED.id)
        assert a.shard.runs.drop(key) is not None
        assert a.shard.runs.with_buffers(SHARED.id) == [key]
        assert a.shard.runs.with_buffers("other") == []
        await a.shard.hand_over(SHARED.id, now_ns() + SECOND_NS)
        assert not a.state(FLOW).live.buffered
        assert a.shard.runs.with_buffers(SHARED.id) == []
        await asyncio.sleep(2)
        assert await a.host.poll() is not None
        await a.host.signal(FLOW, "waits")
        assert a.shard.runs.with_buffers(SHARED.id) == [key]
        async with a.shard.lock(*key[:2]):
            await a.shard.delete(await a.shard.load(*key))
        assert a.shard.runs.with_buffers(SHARED.id) == []


@on_virtual_time
async def test_what_comes_from_a_third_cluster_waits_since_it_may_leave_events_of_this_ones_own() -> None:
    async with Several() as several:
        a, c = several["a"], several["c"]
        await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task)
        await several.bring("a")
        # Told to C before it has heard that A is active again.
        await several.fail_over(3)
        await c.host.signal(FLOW, "late")
        assert await c.host.poll() is not None
        await several.fail_over(11, "a", "b")
        rows, _ = await c.rows()
        last_id = await a.shard.hand_over(SHARED.id, now_ns() + 10 * SECOND_NS)
        applying = [asyncio.create_task(deliver(c, a, streamed)) for streamed in rows]
        await asyncio.sleep(2)
        assert a.shard.stream.last_id == last_id
        assert not any(one.done() for one in applying)
        await several.fail_over(12, "a", "b")
        await asyncio.gather(*applying)
        await several.fail_over(12, "c")
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_hand_over_waits_for_what_is_being_applied() -> None:
    async with Several() as several:
        a, c = several["a"], several["c"]
        await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(3)
        await c.host.signal(FLOW, "late")
        await several.fail_over(11, "a", "b")
        rows, _ = await c.rows()
        has_come, goes_on = a.world.faults.hold("commit")
        applying = asyncio.create_task(deliver(c, a, rows[0]))
        await has_come.wait()
        handing = asyncio.create_task(a.shard.hand_over(SHARED.id, now_ns() + 10 * SECOND_NS))
        await asyncio.sleep(1)
        assert not handing.done()
        goes_on.set()
        last_id = await handing
        await applying
        assert a.shard.stream.last_id == last_id


async def _hand_over_in_the_store(cluster: Cluster, until_ns: int) -> None:
    """As another host of the cluster notes it: this one does not hear of it at once."""
    other = Namespaces(cluster.world.store, clock=lambda: 0.0)

    def begin(namespace: Namespace) -> Namespace:
        return msgspec.structs.replace(namespace, handover_until_ns=until_ns, handover_to="b")

    await other.change(SHARED.id, begin)


@on_virtual_time
async def test_a_shard_that_comes_to_a_host_that_has_not_heard_of_the_hand_over_keeps_the_writes_waiting() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        until_ns = now_ns() + 3 * SECOND_NS
        await _hand_over_in_the_store(a, until_ns)
        a.shard.lose()
        await a.host.signal(FLOW, "waits")
        assert now_ns() >= until_ns


@on_virtual_time
async def test_a_shard_that_was_taken_by_another_host_does_not_say_how_far_it_is() -> None:
    """Its next owner may have written since, and may not have heard of the hand-over when it took the shard."""
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        await a.world.store.take_shard(0)
        with pytest.raises(NotOwner):
            await a.shard.hand_over(SHARED.id, now_ns() + 10 * SECOND_NS)
