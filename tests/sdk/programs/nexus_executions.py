"""Standalone Nexus operations: clients start, describe, poll, end and list them."""

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Callback, Link, Payload, SearchAttributes
from temporalio.api.enums.v1 import EventType
from temporalio.api.enums.v1 import NexusOperationIdConflictPolicy as Conflict
from temporalio.api.enums.v1 import NexusOperationIdReusePolicy as Reuse
from temporalio.api.enums.v1 import NexusOperationWaitStage as WaitStage
from temporalio.api.nexusoperation.v1 import OnConflictOptions
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.converter import default

from tests.sdk.programs.nexus import endpoint_of
from tests.sdk.stage import NAMESPACE, NO_ONE, Handle, Stage, plain, program

STARTED = WaitStage.NEXUS_OPERATION_WAIT_STAGE_STARTED
CLOSED = WaitStage.NEXUS_OPERATION_WAIT_STAGE_CLOSED
LONG = timedelta(seconds=60)
TOO_LONG = "x" * 1001
UNKNOWN_RUN = "01a1ebaa-f167-7a5b-a5b6-fec9e67bdcf2"


def _payload(value: Any) -> Payload:
    return default().payload_converter.to_payloads([value])[0]


async def start_operation(
    stage: Stage, called: str, given: Any, *, suffix: str = "main", queue: str = "", **options: Any
) -> api.StartNexusOperationExecutionResponse:
    request: dict[str, Any] = {
        "namespace": NAMESPACE,
        "operation_id": stage.id(suffix),
        "endpoint": await endpoint_of(stage, queue),
        "service": "Desk",
        "operation": called,
        "input": _payload(given),
        "identity": "the-client",
        "request_id": f"{stage.name}-{suffix}",
    }
    return await stage.service.start_nexus_operation_execution(
        api.StartNexusOperationExecutionRequest(**{**request, **options})
    )


async def poll_operation(
    stage: Stage, wait: WaitStage.ValueType = CLOSED, *, suffix: str = "main", run_id: str = ""
) -> api.PollNexusOperationExecutionResponse:
    while True:
        answer = await stage.service.poll_nexus_operation_execution(
            api.PollNexusOperationExecutionRequest(
                namespace=NAMESPACE, operation_id=stage.id(suffix), run_id=run_id, wait_stage=wait
            )
        )
        if answer.run_id:
            return answer


async def _describe(
    stage: Stage, *, suffix: str = "main", run_id: str = "", **options: Any
) -> api.DescribeNexusOperationExecutionResponse:
    return await stage.service.describe_nexus_operation_execution(
        api.DescribeNexusOperationExecutionRequest(
            namespace=NAMESPACE, operation_id=stage.id(suffix), run_id=run_id, **options
        )
    )


async def note_operation(stage: Stage, label: str, **options: Any) -> None:
    """Record the operation's description without the fields that differ between servers."""
    answer = await _describe(stage, include_input=True, include_outcome=True, **options)
    stage.note(f"{label}: has a token", bool(answer.long_poll_token))
    answer.long_poll_token = b""
    stage.note(f"{label}: has a size", answer.info.state_size_bytes > 0)
    answer.info.state_size_bytes = 0
    if answer.info.HasField("execution_duration"):
        answer.info.execution_duration.CopyFrom(Duration(seconds=1))
    stage.note(label, answer)


async def _outcome(stage: Stage, operation: str, given: Any, **options: Any) -> Any:
    """Run an operation to its end and note its description; returns the poll response."""
    await start_operation(stage, operation, given, **options)
    answer = await poll_operation(stage)
    await note_operation(stage, "at its end")
    return answer


async def _handled(stage: Stage) -> Handle:
    """Wait for the workflow that the operation starts; returns its handle."""
    await poll_operation(stage, STARTED)
    await stage.saw_current("handled")
    handle = stage.client.get_workflow_handle(stage.id("handled"))
    await stage.idle(handle)
    return handle


async def _callback_made(stage: Stage) -> None:
    async def there() -> bool:
        callbacks = (await stage.describe(stage.id("handled"))).callbacks
        return bool(callbacks) and callbacks[0].HasField("last_attempt_complete_time")

    await stage.until_true(there, "the callback")


@program
async def nexus_alone_sync(stage: Stage) -> Any:
    started = await start_operation(
        stage,
        "echo",
        "this",
        nexus_header={"My-Own": "header"},
        user_metadata=UserMetadata(summary=_payload("to the desk")),
        schedule_to_close_timeout=Duration(seconds=50),
    )
    stage.note("is new", started.started)
    stage.note("version of its id", uuid.UUID(started.run_id).version)
    answer = await poll_operation(stage, run_id=started.run_id)
    stage.note("polled for its start", await poll_operation(stage, STARTED))
    stage.note("polled for anything", await poll_operation(stage, WaitStage.NEXUS_OPERATION_WAIT_STAGE_UNSPECIFIED))
    await note_operation(stage, "at its end")
    stage.note("without its input", (await _describe(stage)).HasField("input"))
    return answer


@program
async def nexus_alone_with_links(stage: Stage) -> Any:
    event = Link.WorkflowEvent(namespace=NAMESPACE, workflow_id="some", run_id=UNKNOWN_RUN)
    event.event_ref.event_id = 7
    event.event_ref.event_type = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
    links = [Link(workflow_event=event), Link(batch_job=Link.BatchJob(job_id="job"))]
    return await _outcome(stage, "links", "", links=links)


@program
async def nexus_alone_headers(stage: Stage) -> Any:
    return await _outcome(stage, "headers", "", nexus_header={"My-Own": "header"})


@program
async def nexus_alone_sync_nothing(stage: Stage) -> Any:
    return await _outcome(stage, "nothing", "")


@program
async def nexus_alone_refused_failed(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "failed")


@program
async def nexus_alone_refused_canceled(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "canceled")


@program
async def nexus_alone_refused_bad_request(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "bad request")


@program
async def nexus_alone_refused_for_good(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "internal for good")


@program
async def nexus_alone_refused_application_error(stage: Stage) -> Any:
    return await _outcome(stage, "refuse", "application error")


@program
async def nexus_alone_unknown_operation(stage: Stage) -> Any:
    return await _outcome(stage, "there is none", "x")


@program
async def nexus_alone_retried(stage: Stage) -> Any:
    await start_operation(stage, "sometimes", 1)

    async def backs_off() -> bool:
        info = (await _describe(stage)).info
        return info.HasField("last_attempt_complete_time")

    await stage.until_true(backs_off, "the first attempt's end")
    await note_operation(stage, "between attempts")
    answer = await poll_operation(stage)
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_alone_workflow(stage: Stage) -> Any:
    await start_operation(stage, "start", [stage.id("handled"), "wait"], schedule_to_close_timeout=Duration(seconds=50))
    handled = await _handled(stage)
    stage.note("polled for its start", await poll_operation(stage, STARTED))
    await note_operation(stage, "while it runs")
    stage.note("callbacks", list((await stage.describe(stage.id("handled"))).callbacks))
    await handled.signal("end", "well")
    answer = await poll_operation(stage)
    await _callback_made(stage)
    await note_operation(stage, "at its end")
    return answer


async def _ends(stage: Stage, how: str) -> Any:
    await start_operation(stage, "start", [stage.id("handled"), "wait"])
    handled = await _handled(stage)
    if how == "terminate":
        await handled.terminate("enough")
    elif how == "cancel":
        await handled.cancel()
    else:
        await handled.signal("end", how)
    answer = await poll_operation(stage)
    await _callback_made(stage)
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_alone_workflow_fails(stage: Stage) -> Any:
    return await _ends(stage, "fail")


@program
async def nexus_alone_workflow_canceled(stage: Stage) -> Any:
    return await _ends(stage, "cancel")


@program
async def nexus_alone_workflow_terminated(stage: Stage) -> Any:
    return await _ends(stage, "terminate")


@program
async def nexus_alone_workflow_continues(stage: Stage) -> Any:
    return await _ends(stage, "continue")


async def _cancel(stage: Stage, request_id: str, *, suffix: str = "main", reason: str = "enough") -> Any:
    return await stage.outcome(
        stage.service.request_cancel_nexus_operation_execution(
            api.RequestCancelNexusOperationExecutionRequest(
                namespace=NAMESPACE,
                operation_id=stage.id(suffix),
                identity="the-client",
                request_id=request_id,
                reason=reason,
            )
        )
    )


async def _terminate(stage: Stage, request_id: str, *, suffix: str = "main", reason: str = "enough") -> Any:
    return await stage.outcome(
        stage.service.terminate_nexus_operation_execution(
            api.TerminateNexusOperationExecutionRequest(
                namespace=NAMESPACE,
                operation_id=stage.id(suffix),
                identity="the-client",
                request_id=request_id,
                reason=reason,
            )
        )
    )


@program
async def nexus_alone_canceled(stage: Stage) -> Any:
    await start_operation(stage, "start", [stage.id("handled"), "wait"])
    await _handled(stage)
    stage.note("asked", await _cancel(stage, "one"))
    answer = await poll_operation(stage)
    await _callback_made(stage)
    stage.note("asked again", await _cancel(stage, "one"))
    stage.note("asked by another request", await _cancel(stage, "two"))
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_alone_cancel_without_effect(stage: Stage) -> Any:
    await start_operation(stage, "start", [stage.id("handled"), "deaf"])
    handled = await _handled(stage)
    stage.note("asked", await _cancel(stage, "one"))
    await stage.until(handled, "WORKFLOW_EXECUTION_CANCEL_REQUESTED")

    async def heard() -> bool:
        return (await _describe(stage)).info.cancellation_info.HasField("last_attempt_complete_time")

    await stage.until_true(heard, "the handler's answer")
    await note_operation(stage, "asked to end")
    stage.note("asked again", await _cancel(stage, "one"))
    stage.note("asked by another request", await _cancel(stage, "two"))
    await handled.signal("end", "well")
    answer = await poll_operation(stage)
    await _callback_made(stage)
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_alone_canceled_before_its_start(stage: Stage) -> Any:
    await start_operation(stage, "echo", "x", queue=NO_ONE)
    stage.note("asked", await _cancel(stage, "one"))
    await note_operation(stage, "asked to end")
    stage.note("ended", await _terminate(stage, "two"))
    return await poll_operation(stage)


@program
async def nexus_alone_terminated(stage: Stage) -> Any:
    await start_operation(stage, "echo", "x", queue=NO_ONE)
    await note_operation(stage, "before")
    stage.note("ended", await _terminate(stage, "one"))
    answer = await poll_operation(stage)
    stage.note("ended again", await _terminate(stage, "one"))
    stage.note("ended by another request", await _terminate(stage, "two"))
    stage.note("canceled", await _cancel(stage, "three"))
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_alone_terminated_while_it_runs(stage: Stage) -> Any:
    await start_operation(stage, "start", [stage.id("handled"), "wait"])
    handled = await _handled(stage)
    stage.note("ended", await _terminate(stage, "one", reason=""))
    answer = await poll_operation(stage)
    await handled.signal("end", "well")
    await _callback_made(stage)
    await note_operation(stage, "at its end")
    return answer


@program
async def nexus_alone_ended_of_itself(stage: Stage) -> Any:
    answer = await _outcome(stage, "echo", "x")
    stage.note("ended", await _terminate(stage, "one"))
    stage.note("canceled", await _cancel(stage, "one"))
    await note_operation(stage, "afterwards")
    return answer


@program
async def nexus_alone_schedule_to_start_timeout(stage: Stage) -> Any:
    return await _outcome(stage, "echo", "x", queue=NO_ONE, schedule_to_start_timeout=Duration(seconds=2))


@program
async def nexus_alone_schedule_to_close_timeout(stage: Stage) -> Any:
    return await _outcome(stage, "echo", "x", queue=NO_ONE, schedule_to_close_timeout=Duration(seconds=2))


@program
async def nexus_alone_start_to_close_timeout(stage: Stage) -> Any:
    await start_operation(
        stage, "start", [stage.id("handled"), "wait"], start_to_close_timeout=Duration(seconds=2),
        schedule_to_start_timeout=Duration(seconds=100), schedule_to_close_timeout=Duration(seconds=50),
    )  # fmt: skip
    handled = await _handled(stage)
    answer = await poll_operation(stage)
    await note_operation(stage, "at its end")
    await handled.signal("end", "well")
    await _callback_made(stage)
    return answer


@program
async def nexus_alone_id_in_use(stage: Stage) -> Any:
    first = await start_operation(stage, "echo", "x", queue=NO_ONE)

    async def again(label: str, **options: Any) -> None:
        answer = await stage.outcome(start_operation(stage, "echo", "y", queue=NO_ONE, **options))
        stage.note(label, answer)

    await again("the same request")
    await again("another request", request_id="another")
    await again(
        "one that fails", request_id="another", id_conflict_policy=Conflict.NEXUS_OPERATION_ID_CONFLICT_POLICY_FAIL
    )
    use = Conflict.NEXUS_OPERATION_ID_CONFLICT_POLICY_USE_EXISTING
    await again("one that uses it", request_id="another", id_conflict_policy=use)
    link = Link(nexus_operation=Link.NexusOperation(namespace=NAMESPACE, operation_id="some", run_id=UNKNOWN_RUN))
    await again(
        "one that adds its links",
        request_id="a third",
        id_conflict_policy=use,
        links=[link],
        on_conflict_options=OnConflictOptions(attach_links=True, attach_request_id=True),
    )
    await note_operation(stage, "with more links")
    await again(
        "one that uses it and rejects duplicates",
        request_id="a fourth",
        id_conflict_policy=use,
        id_reuse_policy=Reuse.NEXUS_OPERATION_ID_REUSE_POLICY_REJECT_DUPLICATE,
    )
    await _terminate(stage, "done")
    return first.started


@program
async def nexus_alone_id_reused(stage: Stage) -> Any:
    await start_operation(stage, "echo", "x")
    await poll_operation(stage)
    only_failed = Reuse.NEXUS_OPERATION_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY

    async def again(label: str, operation: str = "echo", **options: Any) -> None:
        answer = await stage.outcome(start_operation(stage, operation, "failed", **options))
        stage.note(label, answer)

    await again("the same request")
    await again("rejects", request_id="1", id_reuse_policy=Reuse.NEXUS_OPERATION_ID_REUSE_POLICY_REJECT_DUPLICATE)
    await again("only failed", request_id="2", id_reuse_policy=only_failed)
    await again("allows", "refuse", request_id="3")
    await poll_operation(stage)
    await again("only failed, and it has", "refuse", request_id="4", id_reuse_policy=only_failed)
    return await poll_operation(stage)


@program
async def nexus_alone_absent(stage: Stage) -> None:
    """Calls for an unknown operation, and for an unknown run of a known operation."""
    await start_operation(stage, "echo", "x")
    await poll_operation(stage)
    service = stage.service
    for suffix, run_id in (("no", ""), ("no", UNKNOWN_RUN), ("main", UNKNOWN_RUN), ("main", "no uuid")):
        which: dict[str, Any] = {"namespace": NAMESPACE, "operation_id": stage.id(suffix), "run_id": run_id}
        label = f"{suffix}, {run_id}"
        poll = api.PollNexusOperationExecutionRequest(**which, wait_stage=CLOSED)
        stage.note(f"polled {label}", await stage.outcome(service.poll_nexus_operation_execution(poll)))
        describe = api.DescribeNexusOperationExecutionRequest(**which)
        stage.note(f"described {label}", await stage.outcome(service.describe_nexus_operation_execution(describe)))
        cancel = api.RequestCancelNexusOperationExecutionRequest(**which)
        stage.note(f"canceled {label}", await stage.outcome(service.request_cancel_nexus_operation_execution(cancel)))
        end = api.TerminateNexusOperationExecutionRequest(**which)
        stage.note(f"ended {label}", await stage.outcome(service.terminate_nexus_operation_execution(end)))
        delete = api.DeleteNexusOperationExecutionRequest(**which)
        stage.note(f"deleted {label}", await stage.outcome(service.delete_nexus_operation_execution(delete)))


BAD_STARTS: dict[str, dict[str, Any]] = {
    "no id": {"operation_id": ""},
    "a long id": {"operation_id": TOO_LONG},
    "a long request id": {"request_id": TOO_LONG},
    "a long identity": {"identity": TOO_LONG},
    "no endpoint": {"endpoint": ""},
    "an unknown endpoint": {"endpoint": "no-such-endpoint"},
    "no service": {"service": ""},
    "a long service": {"service": TOO_LONG},
    "no operation": {"operation": ""},
    "a long operation": {"operation": TOO_LONG},
    "a negative timeout": {"schedule_to_close_timeout": Duration(seconds=-1)},
    "a negative start timeout": {"schedule_to_start_timeout": Duration(seconds=-1)},
    "a negative close timeout": {"start_to_close_timeout": Duration(seconds=-1)},
    "too much input": {"input": Payload(data=b"x" * (2 << 20))},
    "a reserved header": {"nexus_header": {"Request-Timeout": "1s"}},
    "a large header": {"nexus_header": {"a": "x" * 8192}},
    "an unknown attribute": {"search_attributes": SearchAttributes(indexed_fields={"Nothing": _payload("x")})},
    "an unknown reuse policy": {"id_reuse_policy": 99},
    "an unknown conflict policy": {"id_conflict_policy": 99},
    "a long summary": {"user_metadata": UserMetadata(summary=_payload("x" * 500))},
    "an empty link": {"links": [Link()]},
    "a link to nothing": {"links": [Link(nexus_operation=Link.NexusOperation())]},
    "a link to an operation": {
        "links": [Link(nexus_operation=Link.NexusOperation(namespace="n", operation_id="o", run_id="r"))]
    },
    "a link to an event": {"links": [Link(workflow_event=Link.WorkflowEvent(namespace="n", workflow_id="w"))]},
    "many links": {"links": [Link(batch_job=Link.BatchJob(job_id=str(number))) for number in range(20)]},
    "callbacks only": {
        "on_conflict_options": OnConflictOptions(attach_completion_callbacks=True),
        "id_conflict_policy": Conflict.NEXUS_OPERATION_ID_CONFLICT_POLICY_USE_EXISTING,
    },
    "an empty callback": {"completion_callbacks": [Callback()]},
    "a callback to nowhere": {"completion_callbacks": [Callback(nexus=Callback.Nexus(url="http://nowhere:1/x"))]},
}


@program
async def nexus_alone_bad_starts(stage: Stage) -> None:
    for label, wrong in BAD_STARTS.items():
        stage.note(label, await stage.outcome(start_operation(stage, "echo", "x", **wrong)))


@program
async def nexus_alone_bad_requests(stage: Stage) -> None:
    service = stage.service
    for label, which in (
        ("no id", {"operation_id": ""}),
        ("a long id", {"operation_id": TOO_LONG}),
        ("a long run id", {"operation_id": "x", "run_id": TOO_LONG}),
    ):
        known: dict[str, Any] = {"namespace": NAMESPACE, **which}
        poll = api.PollNexusOperationExecutionRequest(**known, wait_stage=CLOSED)
        stage.note(f"polled {label}", await stage.outcome(service.poll_nexus_operation_execution(poll)))
        describe = api.DescribeNexusOperationExecutionRequest(**known)
        stage.note(f"described {label}", await stage.outcome(service.describe_nexus_operation_execution(describe)))
        cancel = api.RequestCancelNexusOperationExecutionRequest(**known)
        stage.note(f"canceled {label}", await stage.outcome(service.request_cancel_nexus_operation_execution(cancel)))
        end = api.TerminateNexusOperationExecutionRequest(**known)
        stage.note(f"ended {label}", await stage.outcome(service.terminate_nexus_operation_execution(end)))
        delete = api.DeleteNexusOperationExecutionRequest(**known)
        stage.note(f"deleted {label}", await stage.outcome(service.delete_nexus_operation_execution(delete)))
    for label, more in (
        ("a long identity", {"identity": TOO_LONG}),
        ("a long request id", {"request_id": TOO_LONG}),
        ("a long reason", {"reason": "x" * (3 << 20)}),
        ("a reason of a few words", {"reason": "x" * 1200}),
    ):
        known = {"namespace": NAMESPACE, "operation_id": stage.id(), **more}
        cancel = api.RequestCancelNexusOperationExecutionRequest(**known)
        stage.note(
            f"canceled with {label}", await stage.outcome(service.request_cancel_nexus_operation_execution(cancel))
        )
        end = api.TerminateNexusOperationExecutionRequest(**known)
        stage.note(f"ended with {label}", await stage.outcome(service.terminate_nexus_operation_execution(end)))
    wrong = api.PollNexusOperationExecutionRequest(namespace=NAMESPACE, operation_id="x", wait_stage=99)  # type: ignore[arg-type]
    stage.note("polled for what is no stage", await stage.outcome(service.poll_nexus_operation_execution(wrong)))
    token = api.DescribeNexusOperationExecutionRequest(namespace=NAMESPACE, operation_id="x", long_poll_token=b"x")
    stage.note("described without a run", await stage.outcome(service.describe_nexus_operation_execution(token)))


@program
async def nexus_alone_described_when_it_changes(stage: Stage) -> Any:
    started = await start_operation(stage, "start", [stage.id("handled"), "wait"])
    handled = await _handled(stage)
    seen = await _describe(stage, run_id=started.run_id)
    next_one = asyncio.create_task(
        _describe(stage, run_id=started.run_id, long_poll_token=seen.long_poll_token, include_outcome=True)
    )
    await handled.signal("end", "well")
    answer = await next_one
    stage.note("status", answer.info.status)
    stage.note("result", answer.result)
    wrong = _describe(stage, run_id=started.run_id, long_poll_token=b"wrong")
    stage.note("a wrong token", await stage.outcome(wrong))
    other = _describe(stage, run_id=UNKNOWN_RUN, long_poll_token=seen.long_poll_token)
    stage.note("another run", await stage.outcome(other))
    await _callback_made(stage)


LINKS = {
    "an event": Link(workflow_event=Link.WorkflowEvent(namespace="n", workflow_id="w")),
    "an operation": Link(nexus_operation=Link.NexusOperation(namespace="n", operation_id="o", run_id="r")),
    "an operation without a run": Link(nexus_operation=Link.NexusOperation(namespace="n", operation_id="o")),
    "an operation without an id": Link(nexus_operation=Link.NexusOperation(namespace="n")),
    "an operation without a namespace": Link(nexus_operation=Link.NexusOperation()),
    "an activity": Link(activity=Link.Activity(namespace="n", activity_id="o", run_id="r")),
    "an activity without a run": Link(activity=Link.Activity(namespace="n", activity_id="o")),
    "an activity without an id": Link(activity=Link.Activity(namespace="n")),
    "a workflow": Link(workflow=Link.Workflow(namespace="n", workflow_id="o", run_id="r", reason="why")),
    "a workflow without a run": Link(workflow=Link.Workflow(namespace="n", workflow_id="o")),
    "a callback": Link(callback=Link.Callback(namespace="n", request_id="o")),
    "nothing": Link(),
}


@program
async def links_of_a_start(stage: Stage) -> None:
    for number, (label, link) in enumerate(LINKS.items()):
        request = api.StartWorkflowExecutionRequest(
            namespace=NAMESPACE, workflow_id=stage.id(str(number)), request_id=label, links=[link]
        )
        request.workflow_type.name = "Hello"
        request.task_queue.name = NO_ONE
        answer = await stage.outcome(stage.service.start_workflow_execution(request))
        stage.note(label, answer)
        if isinstance(answer, dict):
            await stage.saw_current(str(number))


@program
async def nexus_alone_deleted(stage: Stage) -> None:
    service = stage.service
    for suffix, queue in (("open", NO_ONE), ("closed", "")):
        await start_operation(stage, "echo", "x", suffix=suffix, queue=queue)
        if suffix == "closed":
            await poll_operation(stage, suffix=suffix)
        request = api.DeleteNexusOperationExecutionRequest(namespace=NAMESPACE, operation_id=stage.id(suffix))
        stage.note(f"deleted {suffix}", await stage.outcome(service.delete_nexus_operation_execution(request)))

        async def gone(suffix: str = suffix) -> bool:
            return "error" in str(await stage.outcome(_describe(stage, suffix=suffix)))

        await stage.until_true(gone, f"the end of {suffix}")
        stage.note(f"described {suffix}", await stage.outcome(_describe(stage, suffix=suffix)))


@program
async def nexus_alone_listed(stage: Stage) -> None:
    await start_operation(
        stage,
        "echo",
        "x",
        suffix="one",
        search_attributes=SearchAttributes(indexed_fields={"CustomKeywordField": _payload("red")}),
    )
    await start_operation(stage, "refuse", "failed", suffix="two")
    await start_operation(stage, "echo", "x", suffix="three", queue=NO_ONE)
    for suffix in ("one", "two"):
        await poll_operation(stage, suffix=suffix)
    mine = f"OperationId STARTS_WITH '{stage.name}/'"

    async def listed(query: str) -> list[dict[str, Any]]:
        answer = await stage.service.list_nexus_operation_executions(
            api.ListNexusOperationExecutionsRequest(namespace=NAMESPACE, query=query)
        )
        for info in answer.operations:
            info.state_size_bytes = 0
            if info.HasField("execution_duration"):
                info.execution_duration.CopyFrom(Duration(seconds=1))
        return sorted((plain(info) for info in answer.operations), key=lambda one: str(one["operationId"]))

    async def all_there() -> bool:
        return sum("closeTime" in one for one in await listed(mine)) >= 2

    await stage.until_true(all_there, "the list")
    for query in (
        mine,
        f"{mine} AND Endpoint = '{await endpoint_of(stage, NO_ONE)}'",
        f"{mine} AND Service = 'Desk' AND Operation = 'refuse'",
        f"{mine} AND ExecutionStatus = 'Running'",
        f"{mine} AND ExecutionStatus = 'Failed'",
        f"{mine} AND ExecutionStatus = 'Nothing'",
        f"{mine} AND NexusOperationStatus = 'Completed'",
        f"{mine} AND CustomKeywordField = 'red'",
        f"{mine} AND RunId = '{UNKNOWN_RUN}'",
        f"{mine} AND CloseTime IS NULL",
        f"{mine} AND StartTime > '2020-01-01T00:00:00Z'",
        "WorkflowId = 'x'",
        "WorkflowType = 'x'",
        "NexusOperationId = 'x'",
        "no query (",
        f"{mine} ORDER BY StartTime",
    ):
        stage.note(query, await stage.outcome(listed(query)))
    for query in (
        mine,
        f"{mine} GROUP BY ExecutionStatus",
        f"{mine} GROUP BY Endpoint",
        f"{mine} GROUP BY Operation",
        f"{mine} AND Operation = 'echo'",
    ):
        answer = stage.service.count_nexus_operation_executions(
            api.CountNexusOperationExecutionsRequest(namespace=NAMESPACE, query=query)
        )
        stage.note(f"count {query}", await stage.outcome(answer))
    stage.note("ended", await _terminate(stage, "done", suffix="three"))
