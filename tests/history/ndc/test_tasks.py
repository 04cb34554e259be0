"""Tasks in a passive cluster, in one that becomes active, and after a switch of the current branch."""

import asyncio
from datetime import timedelta

import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    PollWorkflowTaskQueueResponse,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
)

from fairlead.core.errors import FairleadError
from fairlead.history.messages.matching_tasks import MatchedWorkflowTask, encode_matched
from fairlead.history.messages.ndc import Outcome
from fairlead.history.state import NotPending
from fairlead.history.state.tasks import DeleteAfterRetention, QueueRow, UserTimer
from fairlead.matching.task_starter import NotStarted
from fairlead.storage.history import RunKey
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several, check_same
from tests.history.shard_world import SECOND_NS, Worker, complete, kinds, schedule_activity, start_child, start_timer
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"
PARENT = "parent-1"
RETENTION_S = 600
KEPT_SHORTLY = msgspec.structs.replace(GLOBAL_NAMESPACE, retention_ns=RETENTION_S * SECOND_NS)


async def _step(cluster: Cluster, *commands: object) -> PollWorkflowTaskQueueResponse:
    task = await cluster.host.poll()
    assert task is not None
    await cluster.host.respond(task, list(commands))  # type: ignore[arg-type]
    return task


@on_virtual_time
async def test_a_task_of_a_losing_branch_is_discarded_and_that_of_the_current_branch_is_executed() -> None:
    """NDC-14: task A belongs to event 5 of version 1; another event 5 has won."""
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        run_id = await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        await _step(a, start_timer(2, "same"))
        await _step(b, start_timer(3, "same"))
        old = a.state(FLOW).timers["same"]
        new = b.state(FLOW).timers["same"]
        assert (old.started_event_id, old.version) == (new.started_event_id, 1)
        await several.fail_over(2, "a")
        await several.converge()
        await several.fail_over(11)
        # A's queue holds both: its own old task, and that of the current branch.
        stale = UserTimer(1, old.fire_at_ns, "same", old.started_event_id)
        await a.shard.run_task(QueueRow(GLOBAL_NAMESPACE.id, FLOW, run_id, stale))
        assert "TIMER_FIRED" not in kinds(await a.host.events(FLOW))
        await asyncio.sleep(5)
        assert kinds(await a.host.events(FLOW)).count("TIMER_FIRED") == 1
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_a_passive_cluster_keeps_only_the_retention_task() -> None:
    async with Several(("a", "b"), namespace=KEPT_SHORTLY) as several:
        a, b = several["a"], several["b"]
        run_id = await a.host.begin(FLOW, workflow_run_timeout=Duration(seconds=1000))
        await _step(a, schedule_activity(), start_timer(5))
        await a.host.signal(FLOW, "one")
        await _step(a, complete())
        await several.bring("a")
        assert await b.world.stored_rows("transfer") == []
        (row,) = await b.world.stored_rows("timer")
        assert isinstance(row.task, DeleteAfterRetention)
        await asyncio.sleep(RETENTION_S + 60)
        for cluster in (a, b):
            assert cluster.world.run_row(0, RunKey(GLOBAL_NAMESPACE.id, FLOW, run_id)) is None


@on_virtual_time
async def test_a_run_closed_only_on_a_losing_branch_is_not_deleted_by_that_branchs_retention() -> None:
    async with Several(("a", "b"), namespace=KEPT_SHORTLY) as several:
        a, b = several["a"], several["b"]
        run_id = await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        await _step(a, complete())
        await b.host.signal(FLOW, "won")
        await several.fail_over(2, "a")
        await several.converge()
        assert a.state(FLOW, run_id).is_open
        await asyncio.sleep(RETENTION_S / 2)
        await _step(b, complete())
        await several.converge()
        await asyncio.sleep(RETENTION_S * 0.75)
        for cluster in (a, b):
            assert cluster.world.run_row(0, RunKey(GLOBAL_NAMESPACE.id, FLOW, run_id)) is not None
        await asyncio.sleep(RETENTION_S / 2)
        for cluster in (a, b):
            assert cluster.world.run_row(0, RunKey(GLOBAL_NAMESPACE.id, FLOW, run_id)) is None


@on_virtual_time
async def test_a_task_in_matching_is_dropped_if_the_namespace_is_active_elsewhere() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        run_id = await a.host.begin(FLOW)
        matched = encode_matched(MatchedWorkflowTask(GLOBAL_NAMESPACE.id, FLOW, run_id, 2, 1, version=1))
        await several.fail_over(2)
        assert await a.host.history.start_task(matched, "worker") is NotStarted.GONE
        await several.fail_over(11)
        stale = encode_matched(MatchedWorkflowTask(GLOBAL_NAMESPACE.id, FLOW, run_id, 2, 1, version=2))
        assert await a.host.history.start_task(stale, "worker") is NotStarted.GONE
        assert isinstance(await a.host.history.start_task(matched, "worker"), bytes)


@on_virtual_time
async def test_a_response_to_a_task_of_a_losing_branch_is_refused() -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await _step(a)
        await several.bring("a")
        await several.fail_over(2, "b")
        await a.host.signal(FLOW, "lost", "r1")
        await b.host.signal(FLOW, "won", "r2")
        lost = await a.host.poll()
        won = await b.host.poll()
        assert lost is not None
        assert won is not None
        assert lost.started_event_id == won.started_event_id
        await several.fail_over(2, "a")
        assert Outcome.REBUILT in await several.bring("b", "a")
        with pytest.raises(NotPending):
            await b.host.respond(lost, [complete()])
        await b.host.respond(won)
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_the_progress_of_an_activity_is_replicated_and_continues_in_the_other_cluster() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await _step(a, schedule_activity())
        task = await a.host.poll_activity()
        assert task is not None
        await a.host.call(
            "RespondActivityTaskFailed", FLOW, RespondActivityTaskFailedRequest(task_token=task.task_token)
        )
        await asyncio.sleep(2)
        task = await a.host.poll_activity()
        assert task is not None
        assert task.attempt == 2
        await several.converge()
        await check_same(several, [FLOW])
        (progress,) = b.state(FLOW).live.activities.values()
        assert (progress.attempt, progress.is_started) == (2, True)
        await several.fail_over(2)
        # The worker responds in the cluster that is active now.
        await b.host.call(
            "RespondActivityTaskCompleted", FLOW, RespondActivityTaskCompletedRequest(task_token=task.task_token)
        )
        assert "ACTIVITY_TASK_COMPLETED" in kinds(await b.host.events(FLOW))
        await several.converge()
        await check_same(several, [FLOW])


@on_virtual_time
async def test_an_attempt_that_its_cluster_never_gets_back_is_timed_out_in_the_next_one() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await _step(a, schedule_activity())
        assert await a.host.poll_activity() is not None
        await several.converge()
        await several.fail_over(2)
        # The timeout of the attempt, and the backoff before the next one.
        await asyncio.sleep(7)
        task = await b.host.poll_activity()
        assert task is not None
        assert task.attempt == 2


def _decide(task: PollWorkflowTaskQueueResponse) -> dict[str, object]:
    seen = kinds(task.history.events)
    if task.workflow_type.name == "child":
        return {"commands": [complete()] if "TIMER_FIRED" in seen else [start_timer(5)] * ("TIMER_STARTED" not in seen)}
    if "START_CHILD_WORKFLOW_EXECUTION_INITIATED" not in seen:
        return {"commands": [start_child("child-1")]}
    return {"commands": [complete()] if "CHILD_WORKFLOW_EXECUTION_COMPLETED" in seen else []}


@pytest.mark.parametrize("moment_s", [0.0, 0.005, 0.01, 0.02, 0.05, 1.0, 4.99, 5.0, 5.005, 5.01, 5.05])
@on_virtual_time
async def test_parent_and_child_workflows_continue_after_a_failover(moment_s: float) -> None:
    """The parent's cluster fails at any moment: the other cluster continues with the events replicated until then."""
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        worker = Worker(_decide)
        worker.start(a.host)
        await a.host.begin(PARENT)
        await asyncio.sleep(moment_s)
        await several.bring("a")
        await several.fail_over(2, "b")
        await worker.stop()
        worker.start(b.host)
        await asyncio.sleep(timedelta(minutes=3).total_seconds())
        await worker.stop()
        parent = b.state(PARENT)
        assert not parent.is_open
        events = kinds(await b.host.events(PARENT))
        assert events.count("CHILD_WORKFLOW_EXECUTION_COMPLETED") == 1
        assert events.count("START_CHILD_WORKFLOW_EXECUTION_INITIATED") == 1
        # The events that A wrote alone have lost in A as well.
        await several.fail_over(2, "a")
        await several.converge()
        await check_same(several, [PARENT, "child-1"])


@on_virtual_time
async def test_the_tasks_of_runs_are_refreshed_after_a_failover_even_if_the_shard_is_lost_meanwhile() -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        for number in range(30):
            await a.host.begin(f"flow-{number}")
        await several.bring("a")
        has_come, goes_on = b.world.faults.hold("write_metadata")
        moving = asyncio.create_task(several.fail_over(2, "b"))
        # All runs have tasks, but the mark that says so is not written yet.
        await has_come.wait()
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        closing = asyncio.create_task(b.world.close())
        await asyncio.sleep(0.1)
        goes_on.set()
        await closing
        await b.start()
        await b.settle()
        taken = set()
        for _ in range(30):
            task = await b.host.poll()
            assert task is not None
            taken.add(task.workflow_execution.workflow_id)
        assert len(taken) == 30


@on_virtual_time
async def test_long_polls_in_a_passive_cluster_get_replicated_events() -> None:
    async with Several(("a", "b")) as several:
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        await several.bring("a")
        request = GetWorkflowExecutionHistoryRequest(wait_new_event=True)
        request.execution.workflow_id = FLOW
        first = GetWorkflowExecutionHistoryResponse.FromString(
            await b.host.call("GetWorkflowExecutionHistory", FLOW, request)
        )
        request.next_page_token = first.next_page_token
        waiting = asyncio.create_task(b.host.call("GetWorkflowExecutionHistory", FLOW, request))
        await asyncio.sleep(1)
        await a.host.signal(FLOW, "news")
        await several.bring("a")
        answer = GetWorkflowExecutionHistoryResponse.FromString(await waiting)
        assert kinds(answer.history.events) == ["WORKFLOW_EXECUTION_SIGNALED"]
        # A reader of a branch that lost has to start again from the beginning.
        await several.fail_over(2, "b")
        await a.host.signal(FLOW, "lost")
        await b.host.signal(FLOW, "won")
        await several.fail_over(2, "a")
        request.next_page_token = answer.next_page_token
        request.wait_new_event = False
        await several.bring("b", "a")
        with pytest.raises(FairleadError, match="branch"):
            await a.host.call("GetWorkflowExecutionHistory", FLOW, request)
