"""Writes during a handover of a namespace wait, and go to the cluster that is active then: none is lost or fails."""

import asyncio

import msgspec
import pytest
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueResponse, RespondActivityTaskCompletedRequest

from fairlead.api.errors import NotActive
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.history.shard.ownership import NotOwner
from fairlead.history.state.errors import NotPending
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several, check_same, deliver
from tests.history.shard_world import SECOND_NS, kinds, now_ns, schedule_activity
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


@on_virtual_time
async def test_a_write_waits_until_the_handover_ends_and_is_then_refused() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        last_id = await a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + 10 * SECOND_NS)
        rows, _ = await a.rows()
        assert last_id == rows[-1].task_id
        waiting = [asyncio.create_task(a.host.signal(FLOW, "waits")), asyncio.create_task(a.host.begin("flow-2"))]
        await asyncio.sleep(3)
        assert not any(task.done() for task in waiting)
        await a.set_version(2)
        for task in waiting:
            with pytest.raises(NotActive):
                await task
        assert (await a.rows())[0] == rows


@pytest.mark.parametrize("is_taken_back", [False, True])
@on_virtual_time
async def test_a_write_continues_when_the_handover_is_cancelled_or_times_out(is_taken_back: bool) -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        until_ns = now_ns() + 5 * SECOND_NS
        await a.shard.hand_over(GLOBAL_NAMESPACE.id, until_ns)
        waiting = asyncio.create_task(a.host.signal(FLOW, "waits"))
        await asyncio.sleep(1)
        assert not waiting.done()
        if is_taken_back:
            a.shard.handover_writes.end_hand_over(GLOBAL_NAMESPACE.id, until_ns)
            await asyncio.sleep(0.5)
        else:
            await asyncio.sleep(5)
        assert waiting.done()
        await waiting
        assert a.branches(FLOW) == {((3, 1),)}


@on_virtual_time
async def test_a_handover_waits_for_writes_in_flight() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.signal(FLOW, "under way"))
        await has_come.wait()
        handing = asyncio.create_task(a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + 10 * SECOND_NS))
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

        await a.host.namespaces.change(GLOBAL_NAMESPACE.id, hand_over)
        await a.restart()
        waiting = asyncio.create_task(a.host.signal(FLOW, "waits"))
        await asyncio.sleep(5)
        assert not waiting.done()
        await asyncio.sleep(6)
        assert waiting.done()
        await waiting


async def _activity_ends_while_a_task_is_held(cluster: Cluster) -> PollWorkflowTaskQueueResponse:
    """Let a worker hold a workflow task, and buffer the acknowledged end of an activity behind it."""
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
    # The start of the activity is buffered too: it is written together with its end.
    assert len(cluster.state(FLOW).live.buffered) == 2
    return task


@pytest.mark.parametrize("is_in_memory", [True, False])
@on_virtual_time
async def test_buffered_events_move_with_the_handover_and_the_workflow_task_completes_elsewhere(
    is_in_memory: bool,
) -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        task = await _activity_ends_while_a_task_is_held(a)
        if not is_in_memory:
            # Drop the run from memory: the shard must find the held workflow task and the buffered events in the store.
            await a.restart()
            a.shard.runs.clear()
        last_id = await a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + 10 * SECOND_NS)
        answering = asyncio.create_task(a.host.respond(task))
        rows, _ = await a.rows()
        assert rows[-1].task_id == last_id
        await several.bring("a")
        await several.fail_over(2)
        with pytest.raises(NotActive):
            await answering
        # Respond in B, as the frontend would forward it: A failed the task in order to write the buffered events.
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
async def test_a_response_that_waits_for_the_handover_does_not_block_the_flush_of_buffered_events() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        task = await _activity_ends_while_a_task_is_held(a)
        await a.host.begin("flow-2")
        assert await a.host.poll() is not None
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.signal("flow-2", "under way"))
        await has_come.wait()
        began_ns = now_ns()
        handing = asyncio.create_task(a.shard.hand_over(GLOBAL_NAMESPACE.id, began_ns + 10 * SECOND_NS))
        await asyncio.sleep(0.1)
        # The response arrives before the handover has reached the run, and waits for the end of the handover.
        answering = asyncio.create_task(a.host.respond(task))
        await asyncio.sleep(0.1)
        goes_on.set()
        await asyncio.gather(handing, writing)
        assert now_ns() - began_ns < SECOND_NS
        assert not a.state(FLOW).live.buffered
        assert not answering.done()
        # The handover is cancelled: the run continues here, with a workflow task that has the activity's end.
        a.shard.handover_writes.end_hand_over(GLOBAL_NAMESPACE.id, began_ns + 10 * SECOND_NS)
        with pytest.raises(NotPending):
            await answering
        again = await a.host.poll()
        assert again is not None
        assert "ACTIVITY_TASK_COMPLETED" in kinds(again.history.events)
        await a.host.respond(again)
        assert not a.state(FLOW).has_started_task


@on_virtual_time
async def test_an_evicted_run_with_buffered_events_is_tracked_until_it_is_deleted() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await _activity_ends_while_a_task_is_held(a)
        (key,) = a.shard.runs.with_buffers(GLOBAL_NAMESPACE.id)
        assert a.shard.runs.drop(key) is not None
        assert a.shard.runs.with_buffers(GLOBAL_NAMESPACE.id) == [key]
        assert a.shard.runs.with_buffers("other") == []
        await a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + SECOND_NS)
        assert not a.state(FLOW).live.buffered
        assert a.shard.runs.with_buffers(GLOBAL_NAMESPACE.id) == []
        await asyncio.sleep(2)
        assert await a.host.poll() is not None
        await a.host.signal(FLOW, "waits")
        assert a.shard.runs.with_buffers(GLOBAL_NAMESPACE.id) == [key]
        async with a.shard.lock(*key[:2]):
            await a.shard.writer.delete(await a.shard.load(*key))
        assert a.shard.runs.with_buffers(GLOBAL_NAMESPACE.id) == []


@on_virtual_time
async def test_events_of_a_third_cluster_wait_because_applying_them_may_write_local_events() -> None:
    async with Several() as several:
        a, c = several["a"], several["c"]
        await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task)
        await several.bring("a")
        # C gets the signal before it learns that A is active again.
        await several.fail_over(3)
        await c.host.signal(FLOW, "late")
        assert await c.host.poll() is not None
        await several.fail_over(11, "a", "b")
        rows, _ = await c.rows()
        last_id = await a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + 10 * SECOND_NS)
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
async def test_a_handover_waits_for_batches_that_are_being_applied() -> None:
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
        handing = asyncio.create_task(a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + 10 * SECOND_NS))
        await asyncio.sleep(1)
        assert not handing.done()
        goes_on.set()
        last_id = await handing
        await applying
        assert a.shard.stream.last_id == last_id


async def _hand_over_in_the_store(cluster: Cluster, until_ns: int) -> None:
    """Begin a handover as another host of the cluster would: this host does not learn of it at once."""
    other = Namespaces(cluster.world.store, clock=lambda: 0.0)

    def begin(namespace: Namespace) -> Namespace:
        return msgspec.structs.replace(namespace, handover_until_ns=until_ns, handover_to="b")

    await other.change(GLOBAL_NAMESPACE.id, begin)


@on_virtual_time
async def test_a_shard_on_a_host_that_does_not_know_the_handover_still_holds_its_writes() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        until_ns = now_ns() + 3 * SECOND_NS
        await _hand_over_in_the_store(a, until_ns)
        a.shard.ownership.lose()
        await a.host.signal(FLOW, "waits")
        assert now_ns() >= until_ns


@on_virtual_time
async def test_a_shard_taken_over_by_another_host_reports_no_progress() -> None:
    """The new owner may have written since, and may not have known of the handover when it took the shard."""
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        await a.world.store.take_shard(0)
        with pytest.raises(NotOwner):
            await a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + 10 * SECOND_NS)
