"""Workflow tasks that keep failing or that no worker has completed yet, as a client sees them."""

import asyncio
from typing import Any

from temporalio.api.common.v1 import WorkerVersionCapabilities, WorkerVersionStamp
from temporalio.api.enums.v1 import QueryResultType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    ListWorkflowExecutionsRequest,
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RespondActivityTaskCanceledRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
    RespondNexusTaskCompletedRequest,
    RespondNexusTaskFailedRequest,
    RespondQueryTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    RespondWorkflowTaskFailedRequest,
)
from temporalio.client import WorkflowUpdateStage
from temporalio.common import SearchAttributeKey

from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, NO_ONE, Stage, program

_FAILURES = 6
_BACKLOG = 8
_PROBLEMS = SearchAttributeKey.for_keyword_list("TemporalReportedProblems")
_NOBODY = "00000000-0000-4000-8000-000000000000"


async def _poll(stage: Stage) -> PollWorkflowTaskQueueResponse:
    request = PollWorkflowTaskQueueRequest(
        namespace=NAMESPACE,
        task_queue=TaskQueue(name=stage.name),
        identity="raw",
        worker_version_capabilities=WorkerVersionCapabilities(build_id="the-build"),
    )
    return await stage.service.poll_workflow_task_queue(request)


async def _complete(stage: Stage, task: PollWorkflowTaskQueueResponse) -> None:
    await stage.service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(
            namespace=NAMESPACE,
            task_token=task.task_token,
            identity="raw",
            worker_version_stamp=WorkerVersionStamp(build_id="the-build"),
        )
    )


async def _problems(stage: Stage) -> list[str]:
    fields = (await stage.describe(stage.id())).workflow_execution_info.search_attributes.indexed_fields
    return [fields[_PROBLEMS.name].data.decode()] if _PROBLEMS.name in fields else []


@program
async def problems_of_workflow_tasks_are_reported(stage: Stage) -> None:
    handle = await stage.start(Waits.run, queue=stage.name)
    for number in range(1, _FAILURES + 1):
        task = await _poll(stage)
        cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
        if number == 1:
            cause = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE
        await stage.service.respond_workflow_task_failed(
            RespondWorkflowTaskFailedRequest(
                namespace=NAMESPACE, task_token=task.task_token, cause=cause, failure=Failure(message="x")
            )
        )
        stage.note(f"after failure {number}", await _problems(stage))
    request = ListWorkflowExecutionsRequest(
        namespace=NAMESPACE,
        query=f"{_PROBLEMS.name} = 'category=WorkflowTaskFailed' AND WorkflowId = '{stage.id()}'",
    )

    async def listed() -> bool:
        return bool((await stage.service.list_workflow_executions(request)).executions)

    await stage.until_true(listed, "the run in the list")
    task = await _poll(stage)
    await _complete(stage, task)
    stage.note("after a completion", await _problems(stage))

    async def unlisted() -> bool:
        return not await listed()

    await stage.until_true(unlisted, "the run out of the list")
    await handle.terminate()


@program
async def speculative_task_is_pending(stage: Stage) -> None:
    handle = await stage.start(Waits.run, queue=stage.name)
    task = await _poll(stage)
    await _complete(stage, task)
    update = asyncio.create_task(
        stage.outcome(handle.start_update("anything", id="1", wait_for_stage=WorkflowUpdateStage.ACCEPTED))
    )

    async def is_pending() -> bool:
        return (await stage.describe(stage.id())).HasField("pending_workflow_task")

    await stage.until_true(is_pending, "the speculative task")
    stage.note("scheduled", (await stage.describe(stage.id())).pending_workflow_task)
    task = await _poll(stage)
    stage.note("started", (await stage.describe(stage.id())).pending_workflow_task)
    await _complete(stage, task)
    await update
    await handle.terminate()


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + _varint(number >> 7)


def _token(namespace_id: str, workflow_id: str, run_id: str, *, event_id: int = 2, activity_id: str = "") -> bytes:
    """A task token in the format of Temporal's server: ids, an event id and an attempt number."""
    strings = b"".join(
        bytes([number << 3 | 2]) + _varint(len(text)) + text.encode()
        for number, text in ((1, namespace_id), (2, workflow_id), (3, run_id), (6, activity_id))
        if text
    )
    return strings + (bytes([4 << 3, event_id]) if event_id else b"") + bytes([5 << 3, 1])


@program
async def forged_task_tokens(stage: Stage) -> None:
    handle = await stage.start(Waits.run, queue=NO_ONE)
    described = await stage.service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    here, run_id = described.namespace_info.id, handle.result_run_id or ""
    tokens = {
        "of a run": _token(here, stage.id(), run_id),
        "of no run": _token(here, stage.id("missing"), _NOBODY),
        "of no namespace": _token(_NOBODY, stage.id(), run_id),
        "without a namespace": _token("", stage.id(), run_id),
        "without a workflow": _token(here, "", run_id),
        "without a run": _token(here, stage.id(), ""),
        "of a wrong run id": _token(here, stage.id(), "wrong"),
        "without an event": _token(here, stage.id(), run_id, event_id=0),
        "without an event and a run": _token(here, stage.id(), "", event_id=0),
        "of an activity id": _token(here, stage.id(), run_id, event_id=0, activity_id="missing"),
        "of a namespace only": _token(here, "", ""),
        "garbage": b"garbage",
    }
    service = stage.service
    for label, token in tokens.items():
        fields: dict[str, Any] = {"namespace": NAMESPACE, "task_token": token}
        calls = {
            "workflow task": service.respond_workflow_task_completed(RespondWorkflowTaskCompletedRequest(**fields)),
            "failed task": service.respond_workflow_task_failed(RespondWorkflowTaskFailedRequest(**fields)),
            "activity": service.respond_activity_task_completed(RespondActivityTaskCompletedRequest(**fields)),
            "failed activity": service.respond_activity_task_failed(RespondActivityTaskFailedRequest(**fields)),
            "canceled activity": service.respond_activity_task_canceled(RespondActivityTaskCanceledRequest(**fields)),
            "heartbeat": service.record_activity_task_heartbeat(RecordActivityTaskHeartbeatRequest(**fields)),
            "query": service.respond_query_task_completed(
                RespondQueryTaskCompletedRequest(completed_type=QueryResultType.QUERY_RESULT_TYPE_ANSWERED, **fields)
            ),
            "nexus": service.respond_nexus_task_completed(RespondNexusTaskCompletedRequest(**fields)),
            "failed nexus": service.respond_nexus_task_failed(RespondNexusTaskFailedRequest(**fields)),
        }
        for name, call in calls.items():
            # Compare only status codes: the messages depend on where a server looks for the run first.
            outcome = await stage.outcome(call)
            stage.note(f"{label}: {name}", outcome[0]["status"])
    await handle.terminate()


@program
async def namespace_capabilities(stage: Stage) -> None:
    described = await stage.service.describe_namespace(DescribeNamespaceRequest(namespace=NAMESPACE))
    stage.note("capabilities", described.namespace_info.capabilities)


@program
async def polls_are_scaled(stage: Stage) -> None:
    handles = [await stage.start(Waits.run, queue=stage.name, suffix=f"{number}") for number in range(_BACKLOG)]
    # Wait until the backlog is old enough for the server to suggest more pollers.
    await asyncio.sleep(1.0)
    decisions = [(await _poll(stage)).poller_scaling_decision for _ in range(_BACKLOG)]
    # One partition of the reference may become empty before the others, so take the maximum.
    stage.note("backlog", max(decision.poll_request_delta_suggestion for decision in decisions))
    waiting = asyncio.create_task(_poll(stage))
    await asyncio.sleep(1.5)
    handles.append(await stage.start(Waits.run, queue=stage.name, suffix="last"))
    stage.note("waited", (await waiting).poller_scaling_decision)
    for handle in handles:
        await handle.terminate()
