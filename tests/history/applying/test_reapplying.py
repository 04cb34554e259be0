"""What was said on a line that has lost comes to the one that has won: once, whatever fails and is forgotten."""

import asyncio

import pytest
from temporalio.api.protocol.v1 import Message as Protocol
from temporalio.api.update.v1 import Acceptance, Input, Meta, Request
from temporalio.api.workflowservice.v1 import TerminateWorkflowExecutionRequest, UpdateWorkflowExecutionRequest

from fairlead.history.state.tasks import QueueRow, Reapply
from fairlead.storage.contract import OutcomeUnknown
from fairlead.storage.history_contract import RunKey
from fairlead.telemetry import REAPPLIED_LOST
from tests.history.applying.chaos import signals_on
from tests.history.applying.several import SHARED, Cluster, Several, check_same, deliver
from tests.history.shard_world import command, complete, kinds
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


async def _names(cluster: Cluster, run_id: str = "") -> dict[str, int]:
    run_id = run_id or cluster.state(FLOW).identity.run_id
    return dict(await signals_on(cluster, RunKey(SHARED.id, FLOW, run_id)))


async def _part(several: Several, *, request_id: str = "r1") -> str:
    """A writes a signal that B does not hear of before it goes its own way; the run's id."""
    a, b = several["a"], several["b"]
    run_id = await a.host.begin(FLOW)
    await several.bring("a")
    await several.fail_over(2, "b")
    await a.host.signal(FLOW, "lost", request_id)
    await b.host.signal(FLOW, "won", "r2")
    return run_id


@pytest.mark.parametrize("request_id", ["r1", ""])
@on_virtual_time
async def test_a_signal_is_taken_over_once_though_memory_is_lost_and_it_is_told_of_again(request_id: str) -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        run_id = await _part(several, request_id=request_id)
        await several.fail_over(2)
        await several.converge()
        assert await _names(b) == {"lost": 1, "won": 1}
        key = (b.state(FLOW).last_version, RunKey(SHARED.id, FLOW, run_id))
        # Whoever does it again, and has forgotten that it was done, finds it in the events.
        await b.restart()
        await b.settle()
        run = await b.shard.load(*key[1])
        for side in run.state.live.branches:
            side.settled_event_id = 0
        await b.shard._do(b.shard, QueueRow(*key[1], Reapply(key[0])))
        # So does the next cluster, in which it never was.
        await several.fail_over(3)
        await asyncio.sleep(1)
        await several.converge()
        for cluster in (a, b, several["c"]):
            assert await _names(cluster) == {"lost": 1, "won": 1}
        await check_same(several, [FLOW])


@pytest.mark.parametrize("is_applied", [False, True])
@on_virtual_time
async def test_a_commit_that_may_or_may_not_have_been_made_does_not_make_two_of_a_signal(is_applied: bool) -> None:
    async with Several() as several:
        b = several["b"]
        await _part(several)
        await several.fail_over(2)
        rows, _ = await several["a"].rows(several.cursors["a", "b"])
        commits = 0

        async def fail_second(operation: str) -> None:
            nonlocal commits
            commits += operation == "commit"
            # The first applies the batch, the second takes the signal over.
            if operation == "commit" and commits == 2:
                b.world.faults.on_before = b.world.faults.on_after = None
                raise OutcomeUnknown("nobody knows")

        if is_applied:
            b.world.faults.on_after = fail_second
        else:
            b.world.faults.on_before = fail_second
        assert len(rows) == 1
        await several.bring("a", "b")
        await asyncio.sleep(5)
        assert commits >= 2
        assert await _names(b) == {"lost": 1, "won": 1}
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_two_clusters_that_take_it_over_at_once_leave_it_once_on_the_line_that_wins() -> None:
    async with Several() as several:
        a, b, c = several["a"], several["b"], several["c"]
        await _part(several)
        await several.fail_over(2, "a", "b", "c")
        await several.bring("a", "b", "c")
        await several.bring("b", "c")
        await asyncio.sleep(1)
        assert await _names(b) == {"lost": 1, "won": 1}
        # C has not heard of what B took over.
        await several.fail_over(3, "c")
        await asyncio.sleep(1)
        await several.fail_over(3)
        await several.converge()
        for cluster in (a, b, c):
            assert await _names(cluster) == {"lost": 1, "won": 1}
        await check_same(several, [FLOW])


@on_virtual_time
async def test_what_was_taken_over_to_a_line_that_loses_later_is_taken_over_again() -> None:
    async with Several() as several:
        b, c = several["b"], several["c"]
        await _part(several)
        await several.fail_over(2, "a")
        # C knows neither of the branch that has lost nor of what B took over from it.
        await several.fail_over(3, "c")
        await c.host.signal(FLOW, "newest", "r3")
        await several.bring("a", "b")
        await asyncio.sleep(1)
        assert await _names(b) == {"lost": 1, "won": 1}
        await several.bring("c", "b")
        assert await _names(b) == {"newest": 1}
        await several.fail_over(12)
        await asyncio.sleep(1)
        assert await _names(b) == {"lost": 1, "won": 1, "newest": 1}
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_workflow_that_has_ended_goes_on_from_its_last_workflow_task() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        first = await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        task = await b.host.poll()
        assert task is not None
        await b.host.respond(task, [complete()])
        await a.host.signal(FLOW, "late", "r1")
        await several.fail_over(2, "a")
        await several.converge()
        again = b.state(FLOW)
        assert again.identity.run_id != first
        assert again.is_open
        assert again.reset_base_run_id == first
        assert await _names(b) == {"late": 1}
        assert (await b.host.poll()) is not None
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_workflow_that_ended_before_any_task_is_left_as_it_is() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        first = await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        await b.host.call("TerminateWorkflowExecution", FLOW, _terminate())
        await a.host.signal(FLOW, "late", "r1")
        await several.fail_over(2, "a")
        await several.converge()
        assert b.state(FLOW).identity.run_id == first
        assert not b.state(FLOW).is_open
        assert not b.state(FLOW).owes
        assert b.shard.services.metrics.snapshot().events[REAPPLIED_LOST] == {(): 1}
        await check_same(several, [FLOW])


@on_virtual_time
async def test_an_update_that_was_accepted_is_admitted_on_the_line_that_has_won() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task)
        await several.bring("a")
        await several.fail_over(2, "b")
        request = UpdateWorkflowExecutionRequest(request=Request(meta=Meta(update_id="u1"), input=Input(name="change")))
        request.workflow_execution.workflow_id = FLOW
        updating = asyncio.create_task(a.host.call("UpdateWorkflowExecution", FLOW, request))
        task = await a.host.poll()
        assert task is not None
        (message,) = task.messages
        accepted = Acceptance(
            accepted_request_message_id=message.id,
            accepted_request_sequencing_event_id=message.event_id,
            accepted_request=request.request,
        )
        answer = Protocol(id="u1/accept", protocol_instance_id=message.protocol_instance_id)
        answer.body.Pack(accepted)
        await a.host.respond(task, [command("PROTOCOL_MESSAGE", message_id="u1/accept")], messages=[answer])
        await updating
        await b.host.signal(FLOW, "won", "r2")
        await several.fail_over(2, "a")
        await several.converge()
        line = kinds(await b.host.events(FLOW))
        assert line.count("WORKFLOW_EXECUTION_UPDATE_ADMITTED") == 1
        assert b.state(FLOW).updates["u1"].admitted_event_id
        await several.fail_over(3)
        await asyncio.sleep(1)
        await several.converge()
        assert kinds(await b.host.events(FLOW)).count("WORKFLOW_EXECUTION_UPDATE_ADMITTED") == 1
        await check_same(several, [FLOW])


def _terminate() -> TerminateWorkflowExecutionRequest:
    request = TerminateWorkflowExecutionRequest(reason="test")
    request.workflow_execution.workflow_id = FLOW
    return request


@on_virtual_time
async def test_to_find_out_what_was_taken_over_no_event_of_a_run_is_read_twice() -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        for number in range(5):
            await a.host.begin(FLOW, f"start-{number}")
            await a.host.call("TerminateWorkflowExecution", FLOW, _terminate())
        run_id = await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        for name in ("first", "second"):
            await a.host.signal(FLOW, name, name)
        await b.host.signal(FLOW, "won", "r")
        rows, _ = await a.rows(several.cursors["a", "b"])
        reads: list[int] = []

        async def count(operation: str) -> None:
            reads[-1] += operation == "read_branch"

        b.world.faults.on_before = count
        for streamed in rows:
            reads.append(0)
            await deliver(a, b, streamed)
            await asyncio.sleep(1)
        # It has all been taken over, and somebody has forgotten that.
        for side in (await b.shard.load(SHARED.id, FLOW, run_id)).state.live.branches:
            side.settled_event_id = 0
        reads.append(0)
        await b.shard._do(b.shard, QueueRow(SHARED.id, FLOW, run_id, Reapply(2)))
        assert await _names(b) == {"first": 1, "second": 1, "won": 1}
        first, second, again = reads[:3]
        # Those of the six runs, and of the branch that has lost; then only what is new.
        assert first >= 7
        assert second <= 3
        assert again <= 3
