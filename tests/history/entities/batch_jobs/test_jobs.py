"""Batch jobs as clients of a server see them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity, workflow
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.batch.v1 import (
    BatchOperationCancelActivities,
    BatchOperationCancellation,
    BatchOperationDeletion,
    BatchOperationReset,
    BatchOperationResetActivities,
    BatchOperationSignal,
    BatchOperationTerminateActivities,
    BatchOperationUnpauseActivities,
    BatchOperationUpdateActivityOptions,
    BatchOperationUpdateWorkflowExecutionOptions,
)
from temporalio.api.common.v1 import Execution, Priority, ResetOptions, WorkflowExecution
from temporalio.api.enums.v1 import BatchOperationType, EventType, ExecutionType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import PauseActivityRequest, StartActivityExecutionRequest
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.api.times import SECOND_NS, to_duration
from fairlead.testing import FairleadServer
from tests.history.entities.batch_jobs.jobs import (
    COMPLETED,
    FAILED,
    NAMESPACE,
    RUNNING,
    begin,
    counts,
    describe,
    ended,
    jobs,
    run,
    start_many,
    statuses,
    stop,
)

ALL = "WorkflowId STARTS_WITH 'w-'"


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with FairleadServer.start(dynamic_config={"frontend.MaxConcurrentBatchOperationPerNamespace": 3}) as server:
        yield await server.connect()


async def test_a_job_terminates_the_runs_that_its_query_finds(client: Client) -> None:
    ids = await start_many(client, 5)
    await start_many(client, 1, "other")
    answer = await run(client, "job", visibility_query=ALL)
    assert answer.state == COMPLETED
    assert counts(answer) == (5, 5, 0)
    assert (answer.identity, answer.reason, answer.query) == ("operator", "because", ALL)
    assert answer.operation_type == BatchOperationType.BATCH_OPERATION_TYPE_TERMINATE_WORKFLOW
    assert answer.close_time.ToNanoseconds() >= answer.start_time.ToNanoseconds() > 0
    assert await statuses(client) == dict.fromkeys(ids, "TERMINATED") | {"other-0": "RUNNING"}
    events = (await client.get_workflow_handle(ids[0]).fetch_history()).events
    ending = events[-1].workflow_execution_terminated_event_attributes
    assert (ending.reason, ending.identity) == ("because", "operator")


async def test_deleted_and_closed_runs_count_as_done(client: Client) -> None:
    await start_many(client, 2)
    await client.get_workflow_handle("w-1").terminate()
    named = [WorkflowExecution(workflow_id=name) for name in ("w-0", "w-1", "missing")]
    answer = await run(client, "job", executions=named)
    assert counts(answer) == (3, 3, 0)
    assert [each.business_id for each in answer.executions] == ["w-0", "w-1", "missing"]
    assert {each.type for each in answer.executions} == {ExecutionType.EXECUTION_TYPE_WORKFLOW}


async def test_a_job_of_many_pages_skips_no_run(client: Client) -> None:
    await start_many(client, 120)
    answer = await run(client, "job", visibility_query=ALL)
    assert counts(answer) == (120, 120, 0)
    assert set((await statuses(client)).values()) == {"TERMINATED"}


async def test_signals_and_cancellations_reach_every_open_run(client: Client) -> None:
    await start_many(client, 2)
    await client.get_workflow_handle("w-1").terminate()
    signal = BatchOperationSignal(signal="go", identity="someone")
    assert counts(await run(client, "signals", visibility_query=ALL, signal_operation=signal)) == (1, 1, 0)
    cancel = BatchOperationCancellation(identity="someone")
    assert counts(await run(client, "cancels", visibility_query=ALL, cancellation_operation=cancel)) == (1, 1, 0)
    events = (await client.get_workflow_handle("w-0").fetch_history()).events
    reported = [each.event_type for each in events][-2:]
    assert reported == [
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
    ]
    assert events[-2].workflow_execution_signaled_event_attributes.identity == "someone"


async def test_runs_are_deleted_whether_they_are_open_or_not(client: Client) -> None:
    await start_many(client, 3)
    await client.get_workflow_handle("w-1").terminate()
    answer = await run(client, "job", visibility_query=ALL, deletion_operation=BatchOperationDeletion())
    assert counts(answer) == (3, 3, 0)
    assert await statuses(client) == {}


@workflow.defn
class Waits:
    """Waits for a signal."""

    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self.is_told)

    @workflow.signal
    def go(self) -> None:
        self.is_told = True


async def test_each_workflow_is_reset_once_to_its_first_task(client: Client) -> None:
    async with Worker(client, task_queue="q", workflows=[Waits], workflow_runner=UnsandboxedWorkflowRunner()):
        for number in range(3):
            handle = await client.start_workflow(Waits.run, id=f"w-{number}", task_queue="q")
            await handle.signal(Waits.go)
            await handle.result()
        reset = BatchOperationReset(options=ResetOptions(first_workflow_task=Empty()))
        answer = await run(client, "job", visibility_query=ALL, reset_operation=reset)
        assert counts(answer) == (3, 3, 0)
        # The reset reapplies the signals, so the new runs complete.
        for number in range(3):
            await client.get_workflow_handle(f"w-{number}").result()
        assert (await client.count_workflows(ALL)).count == 6
        unknown = BatchOperationReset(options=ResetOptions(build_id="unknown"))
        answer = await run(client, "unknown", visibility_query=ALL, reset_operation=unknown)
        assert (answer.state, counts(answer)) == (COMPLETED, (6, 0, 6))


async def test_options_of_workflows_are_changed(client: Client) -> None:
    await start_many(client, 1)
    update = BatchOperationUpdateWorkflowExecutionOptions(
        identity="someone",
        workflow_execution_options=WorkflowExecutionOptions(priority=Priority(priority_key=2)),
        update_mask=FieldMask(paths=["priority"]),
    )
    answer = await run(client, "job", visibility_query=ALL, update_workflow_options_operation=update)
    assert counts(answer) == (1, 1, 0)
    reported = (await client.get_workflow_handle("w-0").fetch_history()).events[-1]
    attributes = reported.workflow_execution_options_updated_event_attributes
    assert (attributes.priority.priority_key, attributes.identity) == (2, "someone")


@activity.defn
async def fails() -> None:
    """Never succeeds."""
    raise RuntimeError


@workflow.defn
class Fails:
    """Waits for an activity that fails, with a long backoff before the next attempt."""

    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            fails,
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(initial_interval=timedelta(hours=1)),
        )


async def test_activities_are_unpaused_reset_and_changed(client: Client) -> None:
    async with Worker(
        client, task_queue="q", workflows=[Fails], activities=[fails], workflow_runner=UnsandboxedWorkflowRunner()
    ):
        handles = [await client.start_workflow(Fails.run, id=f"w-{number}", task_queue="q") for number in range(2)]

        async def until_attempt(number: int, attempt: int) -> None:
            while True:
                pending = (await handles[number].describe()).raw_description.pending_activities
                if pending and pending[0].attempt == attempt and not pending[0].paused:
                    return
                await asyncio.sleep(0.02)

        async with asyncio.timeout(20):
            await until_attempt(0, 2)
            await until_attempt(1, 2)
            paused = PauseActivityRequest(
                namespace=NAMESPACE, execution=WorkflowExecution(workflow_id="w-0"), type="fails", identity="someone"
            )
            await client.workflow_service.pause_activity(paused)
            unpause = BatchOperationUnpauseActivities(type="fails")
            # Only one activity is paused: its next attempt starts at once.
            answer = await run(client, "unpause", visibility_query=ALL, unpause_activities_operation=unpause)
            assert counts(answer) == (1, 1, 0)
            await until_attempt(0, 3)
            reset = BatchOperationResetActivities(match_all=True)
            answer = await run(client, "reset", visibility_query=ALL, reset_activities_operation=reset)
            assert counts(answer) == (2, 2, 0)
            await until_attempt(0, 2)
        update = BatchOperationUpdateActivityOptions(
            type="fails",
            activity_options=ActivityOptions(start_to_close_timeout=to_duration(77 * SECOND_NS)),
            update_mask=FieldMask(paths=["start_to_close_timeout"]),
        )
        answer = await run(client, "update", visibility_query=ALL, update_activity_options_operation=update)
        assert counts(answer) == (2, 2, 0)
        pending = (await handles[1].describe()).raw_description.pending_activities[0]
        assert pending.activity_options.start_to_close_timeout.seconds == 77


async def test_standalone_activities_are_targets_too(client: Client) -> None:
    start = StartActivityExecutionRequest(
        namespace=NAMESPACE,
        activity_id="alone",
        request_id="r",
        task_queue=TaskQueue(name="nobody"),
        start_to_close_timeout=to_duration(60 * SECOND_NS),
    )
    start.activity_type.name = "work"
    await client.workflow_service.start_activity_execution(start)
    start.activity_id = "found"
    await client.workflow_service.start_activity_execution(start)
    alone = Execution(type=ExecutionType.EXECUTION_TYPE_ACTIVITY, business_id="alone")
    answer = await run(
        client, "job", target_executions=[alone], cancel_activities_operation=BatchOperationCancelActivities()
    )
    assert counts(answer) == (1, 1, 0)
    answer = await run(
        client,
        "found",
        visibility_query="ActivityType = 'work'",
        terminate_activities_operation=BatchOperationTerminateActivities(),
    )
    assert counts(answer) == (1, 1, 0)
    with pytest.raises(RPCError, match="requires Workflow"):
        await begin(client, "wrong", target_executions=[alone])


async def test_a_slow_job_is_stopped(client: Client) -> None:
    ids = await start_many(client, 5)
    named = [WorkflowExecution(workflow_id=each) for each in ids]
    await begin(client, "slow", executions=named, max_operations_per_second=0.5)
    async with asyncio.timeout(20):
        while True:
            first = await describe(client, "slow")
            if first.complete_operation_count:
                break
            await asyncio.sleep(0.02)
    assert counts(first) == (5, 1, 0)
    await stop(client, "slow")
    answer = await ended(client, "slow")
    assert (answer.state, counts(answer)) == (FAILED, (5, 1, 0))
    with pytest.raises(RPCError) as raised:
        await stop(client, "slow")
    assert raised.value.status is RPCStatusCode.NOT_FOUND
    assert list((await statuses(client)).values()).count("RUNNING") == 4


async def test_the_number_of_running_jobs_is_bounded(client: Client) -> None:
    ids = await start_many(client, 2)
    named = [WorkflowExecution(workflow_id=each) for each in ids]
    for number in range(3):
        await begin(client, f"slow-{number}", executions=named, max_operations_per_second=0.1)
    with pytest.raises(RPCError, match="Max concurrent batch operations is reached") as raised:
        await begin(client, "one-more", visibility_query=ALL)
    assert raised.value.status is RPCStatusCode.RESOURCE_EXHAUSTED
    first = await jobs(client, page_size=2)
    second = await jobs(client, page_size=2, next_page_token=first.next_page_token)
    assert [each.job_id for each in [*first.operation_info, *second.operation_info]] == ["slow-2", "slow-1", "slow-0"]
    assert {each.state for each in first.operation_info} == {RUNNING}
    assert not second.next_page_token


async def test_a_job_id_is_used_once(client: Client) -> None:
    await run(client, "job", visibility_query=ALL)
    with pytest.raises(RPCError, match="reject duplicate workflow Id") as raised:
        await begin(client, "job", visibility_query=ALL)
    assert raised.value.status is RPCStatusCode.ALREADY_EXISTS


async def test_an_unsupported_query_fails_the_job(client: Client) -> None:
    answer = await run(client, "job", visibility_query="Unknown = 1")
    assert (answer.state, counts(answer)) == (FAILED, (0, 0, 0))
    [listed] = (await jobs(client)).operation_info
    assert (listed.job_id, listed.state) == ("job", FAILED)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("WorkflowId=", "invalid visibility query: syntax error at position 38"),
        ("a b c", "invalid visibility query: syntax error at position 30 near 'b'"),
        ("GROUP BY ExecutionStatus", "'GROUP BY' finds no executions"),
    ],
)
async def test_an_invalid_query_is_refused(client: Client, query: str, message: str) -> None:
    with pytest.raises(RPCError, match=message) as raised:
        await begin(client, "job", visibility_query=query)
    assert raised.value.status is RPCStatusCode.INVALID_ARGUMENT
    assert not (await jobs(client)).operation_info


async def test_an_unknown_job_is_not_found(client: Client) -> None:
    for call in (describe(client, "missing"), stop(client, "missing")):
        with pytest.raises(RPCError, match="workflow not found for ID: missing") as raised:
            await call
        assert raised.value.status is RPCStatusCode.NOT_FOUND
