"""Nexus operations that are backed by standalone activities."""

import asyncio
from datetime import timedelta
from typing import Any

import temporalio.api.workflowservice.v1 as api
from nexusrpc.handler import service_handler
from temporalio import activity, nexus
from temporalio.api.activity.v1 import ActivityExecutionInfo
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.common import ActivityIDConflictPolicy
from temporalio.exceptions import ApplicationError

from tests.sdk import gates
from tests.sdk.programs.nexus import Calls, endpoint_of
from tests.sdk.programs.nexus_executions import CLOSED, STARTED, note_operation, poll_operation, start_operation
from tests.sdk.stage import NAMESPACE, Handle, Stage, program

SOON = timedelta(seconds=20)


@activity.defn
async def backing_work(how: str) -> str:
    """Returns, fails, or waits for cancellation, according to `how`; waits at its gate first if it is `held`."""
    if how.startswith("held"):
        await gates.wait_for(gates.gate(activity.info().activity_id, "work").opened)
    if how == "held fail":
        raise ApplicationError("worked badly", {"a": 1}, type="Bad", non_retryable=True)
    while how == "wait":
        activity.heartbeat()
        await asyncio.sleep(0.05)
    return f"worked {how}"


@service_handler(name="Backed")
class Backed:
    """Operations that an activity carries out."""

    @nexus.temporal_operation
    async def work(
        self, _context: nexus.TemporalStartOperationContext, client: nexus.TemporalNexusClient, given: list[str]
    ) -> nexus.TemporalOperationResult[str]:
        activity_id, how = given
        return await client.start_activity(
            backing_work, how, id=activity_id, start_to_close_timeout=SOON, heartbeat_timeout=SOON
        )

    @nexus.temporal_operation
    async def share(
        self, _context: nexus.TemporalStartOperationContext, client: nexus.TemporalNexusClient, activity_id: str
    ) -> nexus.TemporalOperationResult[str]:
        return await client.start_activity(
            backing_work,
            "wait",
            id=activity_id,
            start_to_close_timeout=SOON,
            heartbeat_timeout=SOON,
            id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING,
        )


HANDLERS: list[Any] = [Backed()]


async def calling(stage: Stage, operation: str, given: Any, *, service: str = "Backed", **options: Any) -> Handle:
    options["service"] = service
    return await stage.start(Calls, await endpoint_of(stage), operation, given, options)


async def _note_activity(stage: Stage, label: str, suffix: str = "activity") -> None:
    answer = await stage.service.describe_activity_execution(
        api.DescribeActivityExecutionRequest(
            namespace=NAMESPACE, activity_id=stage.id(suffix), include_input=True, include_outcome=True
        )
    )
    answer.long_poll_token = b""
    # These programs compare only the activity's callbacks, links and outcome.
    answer.info.CopyFrom(ActivityExecutionInfo(status=answer.info.status, links=answer.info.links))
    stage.note(label, answer)


async def _activity_runs(stage: Stage) -> None:
    """Wait until a worker has started the activity: cancelling it earlier ends it differently."""

    async def there() -> bool:
        answer = await stage.service.describe_activity_execution(
            api.DescribeActivityExecutionRequest(namespace=NAMESPACE, activity_id=stage.id("activity"))
        )
        return answer.info.run_state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED

    await stage.until_true(there, "a running activity")


async def _activity_reported(stage: Stage, suffix: str = "activity") -> None:
    """Wait until the activity's callbacks have been called."""

    async def there() -> bool:
        answer = await stage.service.describe_activity_execution(
            api.DescribeActivityExecutionRequest(namespace=NAMESPACE, activity_id=stage.id(suffix))
        )
        return all(each.info.HasField("last_attempt_complete_time") for each in answer.callbacks)

    await stage.until_true(there, "the callbacks of the activity")


async def _let_work(stage: Stage, caller: Handle) -> None:
    """Let the activity end after the caller's workflow task for the start, so that the history is always the same."""
    await stage.until(caller, "NEXUS_OPERATION_STARTED")
    await stage.idle(caller)
    gates.gate(stage.id("activity"), "work").opened.set()


@program
async def nexus_activity(stage: Stage) -> Any:
    caller = await calling(stage, "work", [stage.id("activity"), "held well"])
    await _let_work(stage, caller)
    outcome = await stage.outcome(caller.result())
    await _activity_reported(stage)
    await _note_activity(stage, "the activity")
    return outcome


@program
async def nexus_activity_fails(stage: Stage) -> Any:
    caller = await calling(stage, "work", [stage.id("activity"), "held fail"])
    await _let_work(stage, caller)
    outcome = await stage.outcome(caller.result())
    await _activity_reported(stage)
    await _note_activity(stage, "the activity")
    return outcome


@program
async def nexus_activity_canceled(stage: Stage) -> Any:
    await start_operation(stage, "work", [stage.id("activity"), "wait"], service="Backed")
    await poll_operation(stage, STARTED)
    await _activity_runs(stage)
    await stage.client.get_nexus_operation_handle(stage.id()).cancel(reason="enough")
    answer = await poll_operation(stage, CLOSED)
    await _activity_reported(stage)
    return answer


@program
async def nexus_activity_terminated(stage: Stage) -> Any:
    caller = await calling(stage, "work", [stage.id("activity"), "wait"])
    await stage.until(caller, "NEXUS_OPERATION_STARTED")
    await stage.idle(caller)
    await _activity_runs(stage)
    await stage.client.get_activity_handle(stage.id("activity")).terminate(reason="enough")
    outcome = await stage.outcome(caller.result())
    await _activity_reported(stage)
    await _note_activity(stage, "the activity")
    return outcome


@program
async def nexus_alone_activity(stage: Stage) -> Any:
    await start_operation(stage, "work", [stage.id("activity"), "wait"], service="Backed")
    stage.note("started", await poll_operation(stage, STARTED))
    await _note_activity(stage, "the activity")
    await _activity_runs(stage)
    await stage.client.get_activity_handle(stage.id("activity")).cancel(reason="enough")
    answer = await poll_operation(stage, CLOSED)
    await _activity_reported(stage)
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_alone_activity_succeeds(stage: Stage) -> Any:
    await start_operation(stage, "work", [stage.id("activity"), "well"], service="Backed")
    answer = await poll_operation(stage, CLOSED)
    await _activity_reported(stage)
    await _note_activity(stage, "the activity")
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_activity_joined(stage: Stage) -> Any:
    """Two operations are backed by one activity."""
    for suffix in ("first", "second"):
        await start_operation(stage, "share", stage.id("activity"), service="Backed", suffix=suffix)
        await poll_operation(stage, STARTED, suffix=suffix)
    await _note_activity(stage, "the activity")
    await _activity_runs(stage)
    await stage.client.get_activity_handle(stage.id("activity")).cancel(reason="enough")
    answers = [await poll_operation(stage, CLOSED, suffix=suffix) for suffix in ("first", "second")]
    await _activity_reported(stage)
    return answers
