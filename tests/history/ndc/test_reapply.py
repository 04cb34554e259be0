"""Signals of a branch that lost are reapplied to the current branch, exactly once, despite faults and evictions."""

import asyncio

import pytest
from temporalio.api.protocol.v1 import Message as Protocol
from temporalio.api.update.v1 import Acceptance, Input, Meta, Request
from temporalio.api.workflowservice.v1 import TerminateWorkflowExecutionRequest, UpdateWorkflowExecutionRequest

from fairlead.history.state.tasks import QueueRow, Reapply
from fairlead.storage.history import RunKey
from fairlead.storage.tasks import OutcomeUnknown
from fairlead.telemetry import REAPPLIED_LOST
from tests.history.ndc.chaos import signals_on
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several, check_same, deliver
from tests.history.shard_world import command, complete, kinds
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


async def _names(cluster: Cluster, run_id: str = "") -> dict[str, int]:
    run_id = run_id or cluster.state(FLOW).identity.run_id
    return dict(await signals_on(cluster, RunKey(GLOBAL_NAMESPACE.id, FLOW, run_id)))


async def _part(several: Several, *, request_id: str = "r1") -> str:
    """Let branches diverge: A writes a signal, and B another one, before they replicate; return the run id."""
    a, b = several["a"], several["b"]
    run_id = await a.host.begin(FLOW)
    await several.bring("a")
    await several.fail_over(2, "b")
    await a.host.signal(FLOW, "lost", request_id)
    await b.host.signal(FLOW, "won", "r2")
    return run_id


@pytest.mark.parametrize("request_id", ["r1", ""])
@on_virtual_time
async def test_a_signal_is_reapplied_once_even_if_the_cache_is_lost_and_it_arrives_again(request_id: str) -> None:
    """FL-68."""
    async with Several() as several:
        a, b = several["a"], several["b"]
        run_id = await _part(several, request_id=request_id)
        await several.fail_over(2)
        await several.converge()
        assert await _names(b) == {"lost": 1, "won": 1}
        key = (b.state(FLOW).last_version, RunKey(GLOBAL_NAMESPACE.id, FLOW, run_id))
        # A repeated reapply, by a host that has lost its memory of the first, finds the signal in the events.
        await b.restart()
        await b.settle()
        run = await b.shard.load(*key[1])
        for side in run.state.live.branches:
            side.settled_event_id = 0
        await b.shard.run_task(QueueRow(*key[1], Reapply(key[0])))
        # The same holds for the next active cluster, on which the signal was never written.
        await several.fail_over(3)
        await asyncio.sleep(1)
        await several.converge()
        for cluster in (a, b, several["c"]):
            assert await _names(cluster) == {"lost": 1, "won": 1}
        await check_same(several, [FLOW])


@pytest.mark.parametrize("is_applied", [False, True])
@on_virtual_time
async def test_a_commit_with_an_unknown_outcome_does_not_duplicate_a_reapplied_signal(is_applied: bool) -> None:
    """FL-68: also when the outcome of the commit is unknown."""
    async with Several() as several:
        b = several["b"]
        await _part(several)
        await several.fail_over(2)
        rows, _ = await several["a"].rows(several.cursors["a", "b"])
        commits = 0

        async def fail_second(operation: str) -> None:
            nonlocal commits
            commits += operation == "commit"
            # The first commit applies the batch, the second reapplies the signal.
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
async def test_a_signal_reapplied_by_two_clusters_at_once_is_on_the_current_branch_once() -> None:
    async with Several() as several:
        a, b, c = several["a"], several["b"], several["c"]
        await _part(several)
        await several.fail_over(2, "a", "b", "c")
        await several.bring("a", "b", "c")
        await several.bring("b", "c")
        await asyncio.sleep(1)
        assert await _names(b) == {"lost": 1, "won": 1}
        # C has not received the event that B reapplied.
        await several.fail_over(3, "c")
        await asyncio.sleep(1)
        await several.fail_over(3)
        await several.converge()
        for cluster in (a, b, c):
            assert await _names(cluster) == {"lost": 1, "won": 1}
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_signal_reapplied_to_a_branch_that_loses_later_is_reapplied_again() -> None:
    async with Several() as several:
        b, c = several["b"], several["c"]
        await _part(several)
        await several.fail_over(2, "a")
        # C has neither the branch that lost nor the event that B reapplied from it.
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
async def test_reapplying_to_a_closed_workflow_resets_it_to_its_last_workflow_task() -> None:
    """FL-68: a reset takes the signal."""
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
async def test_a_workflow_that_closed_before_its_first_workflow_task_is_not_reset() -> None:
    """FL-68: the signal is lost, and a metric counts it."""
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
        assert not b.state(FLOW).has_events_to_reapply
        assert b.shard.services.metrics.snapshot().events[REAPPLIED_LOST] == {(): 1}
        await check_same(several, [FLOW])


@on_virtual_time
async def test_an_accepted_update_of_a_losing_branch_is_admitted_on_the_current_branch() -> None:
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
        events = kinds(await b.host.events(FLOW))
        assert events.count("WORKFLOW_EXECUTION_UPDATE_ADMITTED") == 1
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
async def test_finding_the_events_to_reapply_reads_each_event_once() -> None:
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
        # Everything is reapplied, but the marks that say so are lost.
        for side in (await b.shard.load(GLOBAL_NAMESPACE.id, FLOW, run_id)).state.live.branches:
            side.settled_event_id = 0
        reads.append(0)
        await b.shard.run_task(QueueRow(GLOBAL_NAMESPACE.id, FLOW, run_id, Reapply(2)))
        assert await _names(b) == {"first": 1, "second": 1, "won": 1}
        first, second, again = reads[:3]
        # The first reads the six runs and the branch that lost; the next ones read only new events.
        assert first >= 7
        assert second <= 3
        assert again <= 3
