"""Cases that reach a server's limits: each has one workflow with its worker and clients, over the raw API."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import (
    ActivityType,
    Memo,
    Payload,
    Payloads,
    SearchAttributes,
    WorkflowExecution,
    WorkflowType,
)
from temporalio.api.enums.v1 import CommandType, EventType, QueryResultType
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage as Stage
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest, ListNexusEndpointsRequest
from temporalio.api.query.v1 import WorkflowQuery, WorkflowQueryResult
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request
from temporalio.client import Client
from temporalio.service import RPCError

NAMESPACE = "default"
# Limits low enough for each case to reach its own, and high enough for it to reach no other.
SETTINGS = {
    "limit.blobSize.error": "3000",
    "limit.memoSize.error": "2000",
    # The reference checks an error limit only above the warning limit, so the warning limits must be lower.
    "limit.blobSize.warn": "2500",
    "limit.memoSize.warn": "1500",
    "limit.maxIDLength": "40",
    "limit.numPendingActivities.error": "2",
    "limit.numPendingChildExecutions.error": "2",
    "limit.numPendingSignals.error": "2",
    "limit.numPendingCancelRequests.error": "2",
    "limit.historyCount.error": "30",
    "limit.historySize.error": "20000",
    "history.maximumSignalsPerExecution": "25",
    "history.defaultWorkflowTaskTimeout": '"7s"',
    "history.maximumBufferedEventsBatch": "3",
    "history.maxInFlightUpdates": "1",
    "limit.historyCount.suggestContinueAsNew": "12",
    "limit.historySize.suggestContinueAsNew": "12000",
    "limit.userMetadataSummarySize": "50",
    "limit.userMetadataDetailsSize": "60",
    "limit.endpointNameMaxLength": "10",
    "limit.endpointDescriptionMaxSize": "50",
    "limit.endpointExternalURLMaxLength": "30",
    "limit.endpointListMaxPageSize": "20",
    "frontend.historyMaxPageSize": "15",
    "frontend.visibilityMaxPageSize": "2",
    "system.enableEagerWorkflowStart": "false",
    "system.enableActivityEagerExecution": "false",
}
_ALL_EVENTS = 100
Case = Callable[["Bench"], Awaitable[Any]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case under its own name."""
    CASES[function.__name__] = function
    return function


class Bench:
    """One case's workflow on one server."""

    def __init__(self, client: Client, name: str) -> None:
        self.service = client.workflow_service
        self.operator = client.operator_service
        self.id = name[:30]
        self.execution = WorkflowExecution(workflow_id=self.id)

    async def start(self, **fields: Any) -> Any:
        """Start the workflow; returns "ok" or the error."""
        return await tried(
            self.service.start_workflow_execution(
                api.StartWorkflowExecutionRequest(
                    **{
                        "namespace": NAMESPACE,
                        "workflow_id": self.id,
                        "workflow_type": WorkflowType(name="type"),
                        "task_queue": TaskQueue(name=self.id),
                        "request_id": str(uuid.uuid4()),
                        **fields,
                    }
                )
            )
        )

    async def poll(self) -> api.PollWorkflowTaskQueueResponse:
        task = await self.service.poll_workflow_task_queue(
            api.PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name=self.id), identity="w")
        )
        assert task.task_token
        return task

    async def answer(self, *commands: Command) -> Any:
        """Complete the next workflow task with these commands."""
        task = await self.poll()
        request = api.RespondWorkflowTaskCompletedRequest(
            namespace=NAMESPACE, task_token=task.task_token, identity="w", commands=commands
        )
        return await tried(self.service.respond_workflow_task_completed(request))

    async def signal(self, data: bytes = b"") -> Any:
        request = api.SignalWorkflowExecutionRequest(
            namespace=NAMESPACE, workflow_execution=self.execution, signal_name="s", request_id=str(uuid.uuid4())
        )
        if data:
            request.input.CopyFrom(payloads(data))
        return await tried(self.service.signal_workflow_execution(request))

    async def terminate(self) -> None:
        request = api.TerminateWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=self.execution)
        await self.service.terminate_workflow_execution(request)

    async def ends(self) -> list[Any]:
        """The types of all events, and the last two events."""
        request = api.GetWorkflowExecutionHistoryRequest(
            namespace=NAMESPACE, execution=self.execution, maximum_page_size=_ALL_EVENTS
        )
        events = (await self.service.get_workflow_execution_history(request)).history.events
        types = [EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events]
        return [types, [said(MessageToDict(event)) for event in events[-2:]]]


def said(event: dict[str, Any]) -> dict[str, Any]:
    """The event without the fields that differ between servers."""
    for name in ("eventTime", "taskId", "version"):
        event.pop(name, None)
    return event


async def tried(call: Awaitable[Any]) -> Any:
    try:
        await call
    except RPCError as error:
        return [error.status.name, error.message]
    return "ok"


def payloads(data: bytes) -> Payloads:
    return Payloads(payloads=[Payload(metadata={"encoding": b"binary/plain"}, data=data)])


def memo(size: int) -> Memo:
    return Memo(fields={"m": Payload(metadata={"encoding": b"binary/plain"}, data=b"m" * size)})


def command(name: str, **attributes: Any) -> Command:
    """A command of a type, such as `start_timer`, with attributes."""
    wanted = Command(command_type=CommandType.Value(f"COMMAND_TYPE_{name.upper()}"))
    field = getattr(wanted, f"{name}_command_attributes")
    field.CopyFrom(type(field)(**attributes))
    return wanted


def activity(name: str, **attributes: Any) -> Command:
    return command(
        "schedule_activity_task",
        **{
            "activity_id": name,
            "activity_type": {"name": "a"},
            "task_queue": {"name": "nobody"},
            "start_to_close_timeout": {"seconds": 9},
            **attributes,
        },
    )


def child(name: str, **attributes: Any) -> Command:
    return command(
        "start_child_workflow_execution",
        **{"workflow_id": name, "workflow_type": {"name": "c"}, "task_queue": {"name": "nobody"}, **attributes},
    )


@case
async def namespace_says_its_limits(bench: Bench) -> Any:
    answer = await bench.service.describe_namespace(api.DescribeNamespaceRequest(namespace=NAMESPACE))
    return MessageToDict(answer.namespace_info.limits)


@case
async def start_with_large_input(bench: Bench) -> Any:
    return await bench.start(input=payloads(b"x" * 3001))


@case
async def start_with_large_memo(bench: Bench) -> Any:
    return [await bench.start(memo=memo(2001)), await bench.start(memo=memo(1900))]


@case
async def start_with_long_id(bench: Bench) -> Any:
    return await bench.start(workflow_id="x" * 41)


@case
async def workflow_task_timeout_by_default(bench: Bench) -> Any:
    await bench.start()
    return await bench.ends()


@case
async def large_signal(bench: Bench) -> Any:
    await bench.start()
    return await bench.signal(b"x" * 3001)


@case
async def activity_with_large_input(bench: Bench) -> Any:
    await bench.start()
    return [await bench.answer(activity("a", input=payloads(b"x" * 3001))), await bench.ends()]


@case
async def workflow_with_large_result(bench: Bench) -> Any:
    await bench.start()
    return [
        await bench.answer(command("complete_workflow_execution", result=payloads(b"x" * 3001))),
        await bench.ends(),
    ]


def keyword(size: int) -> SearchAttributes:
    value = Payload(metadata={"encoding": b"json/plain"}, data=b'"' + b"k" * size + b'"')
    return SearchAttributes(indexed_fields={"CustomKeywordField": value})


@case
async def start_with_large_search_attribute(bench: Bench) -> Any:
    return await bench.start(search_attributes=keyword(2047))


@case
async def workflow_with_large_failure(bench: Bench) -> Any:
    await bench.start()
    failed = command("fail_workflow_execution", failure={"message": "x" * 3001})
    return [await bench.answer(failed), await bench.ends()]


@case
async def marker_with_large_details(bench: Bench) -> Any:
    await bench.start()
    marker = command("record_marker", marker_name="m", details={"d": payloads(b"x" * 3001)})
    return [await bench.answer(marker), await bench.ends()]


async def _activity_task(bench: Bench) -> bytes:
    """Start an activity; returns the task token that a worker got for it."""
    await bench.start()
    await bench.answer(activity("a", task_queue={"name": bench.id}))
    task = await bench.service.poll_activity_task_queue(
        api.PollActivityTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name=bench.id), identity="w")
    )
    assert task.task_token
    return task.task_token


@case
async def activity_with_large_result(bench: Bench) -> Any:
    request = api.RespondActivityTaskCompletedRequest(
        namespace=NAMESPACE, task_token=await _activity_task(bench), identity="w", result=payloads(b"x" * 3001)
    )
    return [await tried(bench.service.respond_activity_task_completed(request)), await bench.ends()]


@case
async def activity_with_large_failure(bench: Bench) -> Any:
    request = api.RespondActivityTaskFailedRequest(
        namespace=NAMESPACE, task_token=await _activity_task(bench), identity="w"
    )
    request.failure.message = "m" * 3001
    request.failure.application_failure_info.type = "Large"
    return [await tried(bench.service.respond_activity_task_failed(request)), await bench.ends()]


@case
async def workflow_task_with_large_failure(bench: Bench) -> Any:
    await bench.start()
    task = await bench.poll()
    request = api.RespondWorkflowTaskFailedRequest(namespace=NAMESPACE, task_token=task.task_token, identity="w")
    request.failure.message = "m" * 3001
    return [await tried(bench.service.respond_workflow_task_failed(request)), await bench.ends()]


@case
async def activity_with_large_heartbeat(bench: Bench) -> Any:
    request = api.RecordActivityTaskHeartbeatRequest(
        namespace=NAMESPACE, task_token=await _activity_task(bench), identity="w", details=payloads(b"x" * 3001)
    )
    return [await tried(bench.service.record_activity_task_heartbeat(request)), await bench.ends()]


@case
async def activity_with_long_id(bench: Bench) -> Any:
    await bench.start()
    return [await bench.answer(activity("a" * 41)), await bench.ends()]


@case
async def child_with_large_memo(bench: Bench) -> Any:
    await bench.start()
    return [await bench.answer(child("child", memo=memo(2001))), await bench.ends()]


@case
async def properties_with_large_memo(bench: Bench) -> Any:
    await bench.start()
    wanted = command("modify_workflow_properties", upserted_memo=memo(2001))
    return [await bench.answer(wanted), await bench.ends()]


@case
async def new_run_with_large_memo(bench: Bench) -> Any:
    await bench.start()
    wanted = command("continue_as_new_workflow_execution", memo=memo(2001))
    return [await bench.answer(wanted), await bench.ends()]


def _attributes(name: str, size: int) -> dict[str, Any]:
    value = Payload(metadata={"encoding": b"json/plain"}, data=b'"' + b"x" * (size - 2) + b'"')
    return {"search_attributes": SearchAttributes(indexed_fields={name: value})}


@case
async def large_search_attributes(bench: Bench) -> Any:
    """A value beyond the limit of search attributes, and one that is also beyond the limit of payloads."""
    found = []
    for size in (2049, 3001):
        await bench.start()
        wanted = command("upsert_workflow_search_attributes", **_attributes("CustomKeywordField", size))
        found.append([await bench.answer(wanted), await bench.ends()])
    return found


@case
async def child_with_large_search_attributes(bench: Bench) -> Any:
    await bench.start()
    return [await bench.answer(child("child", **_attributes("CustomTextField", 2049))), await bench.ends()]


@case
async def new_run_with_large_search_attributes(bench: Bench) -> Any:
    await bench.start()
    wanted = command("continue_as_new_workflow_execution", **_attributes("CustomTextField", 2049))
    return [await bench.answer(wanted), await bench.ends()]


@case
async def child_with_long_names(bench: Bench) -> Any:
    found = []
    for wanted in (child("c" * 41), child("c", workflow_type={"name": "t" * 41})):
        await bench.start()
        found.append([await bench.answer(wanted), await bench.ends()])
        await bench.terminate()
    return found


@case
async def query_with_large_result(bench: Bench) -> Any:
    """The worker's answer to a query comes with that to a workflow task."""
    await bench.start()
    query = api.QueryWorkflowRequest(
        namespace=NAMESPACE, execution=bench.execution, query=WorkflowQuery(query_type="q")
    )
    asked = asyncio.create_task(tried(bench.service.query_workflow(query)))
    task = await bench.poll()
    while not task.queries:
        # The query came after the poll: fail the task, so that the next one has the query.
        await bench.service.respond_workflow_task_failed(
            api.RespondWorkflowTaskFailedRequest(namespace=NAMESPACE, task_token=task.task_token)
        )
        task = await bench.poll()
    result = WorkflowQueryResult(result_type=QueryResultType.QUERY_RESULT_TYPE_ANSWERED, answer=payloads(b"x" * 3001))
    request = api.RespondWorkflowTaskCompletedRequest(
        namespace=NAMESPACE,
        task_token=task.task_token,
        identity="w",
        query_results=dict.fromkeys(task.queries, result),
    )
    return [await tried(bench.service.respond_workflow_task_completed(request)), await asked]


@case
async def too_many_activities(bench: Bench) -> Any:
    await bench.start()
    return [await bench.answer(*(activity(name) for name in "abc")), await bench.ends()]


@case
async def too_many_children(bench: Bench) -> Any:
    await bench.start()
    return [await bench.answer(*(child(f"child-{name}") for name in "abc")), await bench.ends()]


@case
async def too_many_signals_on_their_way(bench: Bench) -> Any:
    await bench.start()
    signals = (
        command("signal_external_workflow_execution", execution={"workflow_id": f"none-{name}"}, signal_name="s")
        for name in "abc"
    )
    return [await bench.answer(*signals), await bench.ends()]


@case
async def too_many_cancels_on_their_way(bench: Bench) -> Any:
    await bench.start()
    cancels = (
        command("request_cancel_external_workflow_execution", workflow_id=f"none-{name}", namespace=NAMESPACE)
        for name in "abc"
    )
    return [await bench.answer(*cancels), await bench.ends()]


@case
async def too_many_signals_of_a_run(bench: Bench) -> Any:
    await bench.start()
    return [await bench.signal() for _ in range(26)][-2:]


@case
async def too_many_events(bench: Bench) -> Any:
    await bench.start()
    timers = [command("start_timer", timer_id=f"t{n}", start_to_fire_timeout={"seconds": 60}) for n in range(30)]
    return [await bench.answer(*timers), await bench.ends(), await bench.signal()]


@case
async def too_many_events_by_signals(bench: Bench) -> Any:
    """The first workflow task adds 20 timers; then signals reach the limit and exceed it."""
    await bench.start()
    timers = [command("start_timer", timer_id=f"t{n}", start_to_fire_timeout={"seconds": 60}) for n in range(20)]
    await bench.answer(*timers)
    return [[await bench.signal() for _ in range(10)], await bench.ends()]


@case
async def too_large_a_history(bench: Bench) -> Any:
    await bench.start()
    return [[await bench.signal(b"x" * 2500) for _ in range(10)], await bench.ends()]


@case
async def too_many_updates_at_once(bench: Bench) -> Any:
    await bench.start()
    await bench.answer()
    return [await tried(bench.service.update_workflow_execution(_update(bench, name))) for name in ("one", "two")]


def _update(bench: Bench, name: str) -> api.UpdateWorkflowExecutionRequest:
    wanted = api.UpdateWorkflowExecutionRequest(
        namespace=NAMESPACE,
        workflow_execution=bench.execution,
        request=Request(meta=Meta(update_id=name), input=Input(name="u")),
    )
    # The server responds at once, without waiting for a worker.
    wanted.wait_policy.lifecycle_stage = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED
    return wanted


@case
async def too_much_waits_for_a_worker(bench: Bench) -> Any:
    await bench.start()
    await bench.poll()
    return [[await bench.signal() for _ in range(5)], await bench.ends()]


@case
async def events_from_which_on_to_continue_as_new(bench: Bench) -> Any:
    await bench.start()
    timers = [command("start_timer", timer_id=f"t{n}", start_to_fire_timeout={"seconds": 60}) for n in range(5)]
    await bench.answer(*timers)
    found = []
    for _ in range(2):
        await bench.signal()
        task = await bench.poll()
        found.append(await _suggested(bench))
        request = api.RespondWorkflowTaskCompletedRequest(namespace=NAMESPACE, task_token=task.task_token)
        await bench.service.respond_workflow_task_completed(request)
    return found


@case
async def bytes_from_which_on_to_continue_as_new(bench: Bench) -> Any:
    await bench.start()
    for _ in range(5):
        await bench.signal(b"x" * 2500)
    await bench.poll()
    return await _suggested(bench)


async def _suggested(bench: Bench) -> bool:
    """Whether the last started workflow task suggests continue-as-new."""
    request = api.GetWorkflowExecutionHistoryRequest(
        namespace=NAMESPACE, execution=bench.execution, maximum_page_size=_ALL_EVENTS
    )
    events = (await bench.service.get_workflow_execution_history(request)).history.events
    started = [event for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED]
    return started[-1].workflow_task_started_event_attributes.suggest_continue_as_new


@case
async def eager_start_that_is_off(bench: Bench) -> Any:
    answer = await bench.service.start_workflow_execution(
        api.StartWorkflowExecutionRequest(
            namespace=NAMESPACE,
            workflow_id=bench.id,
            workflow_type=WorkflowType(name="type"),
            task_queue=TaskQueue(name=bench.id),
            request_id=str(uuid.uuid4()),
            request_eager_execution=True,
        )
    )
    return answer.HasField("eager_workflow_task")


@case
async def eager_activities_that_are_off(bench: Bench) -> Any:
    await bench.start()
    task = await bench.poll()
    wanted = activity("a", request_eager_execution=True, task_queue={"name": bench.id})
    request = api.RespondWorkflowTaskCompletedRequest(
        namespace=NAMESPACE, task_token=task.task_token, identity="w", commands=[wanted]
    )
    answer = await bench.service.respond_workflow_task_completed(request)
    return len(answer.activity_tasks)


@case
async def page_of_a_history(bench: Bench) -> Any:
    """By page size of the request: whether there is another page. A request without a page size gets the default."""
    await bench.start()
    for _ in range(20):
        await bench.signal()
    sizes = (0, 10, 50, 10_000)
    requests = [
        api.GetWorkflowExecutionHistoryRequest(namespace=NAMESPACE, execution=bench.execution, maximum_page_size=size)
        for size in sizes
    ]
    reverse = [
        api.GetWorkflowExecutionHistoryReverseRequest(
            namespace=NAMESPACE, execution=bench.execution, maximum_page_size=size
        )
        for size in sizes
    ]
    return [
        [bool((await bench.service.get_workflow_execution_history(each)).next_page_token) for each in requests],
        [bool((await bench.service.get_workflow_execution_history_reverse(each)).next_page_token) for each in reverse],
    ]


@case
async def page_of_a_list(bench: Bench) -> Any:
    """Earlier cases leave workflows behind, which the reference lists with a delay."""
    request = api.ListWorkflowExecutionsRequest(namespace=NAMESPACE, page_size=5)
    answer = await bench.service.list_workflow_executions(request)
    while not answer.next_page_token:
        await asyncio.sleep(0.1)
        answer = await bench.service.list_workflow_executions(request)
    return [len(answer.executions), bool(answer.next_page_token)]


@case
async def large_endpoint(bench: Bench) -> Any:
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace=NAMESPACE, task_queue="q"))
    outside = EndpointTarget(external=EndpointTarget.External(url="http://" + "x" * 30))
    specs = (
        EndpointSpec(name="e" * 11, target=target),
        EndpointSpec(name="e1", target=target, description=Payload(data=b"d" * 60)),
        EndpointSpec(name="e2", target=outside),
    )
    found = [await tried(bench.operator.create_nexus_endpoint(CreateNexusEndpointRequest(spec=spec))) for spec in specs]
    return [*found, await tried(bench.operator.list_nexus_endpoints(ListNexusEndpointsRequest(page_size=21)))]


@case
async def activity_with_large_metadata(bench: Bench) -> Any:
    request = api.StartActivityExecutionRequest(
        namespace=NAMESPACE,
        activity_id=bench.id,
        activity_type=ActivityType(name="a"),
        task_queue=TaskQueue(name=bench.id),
        start_to_close_timeout=Duration(seconds=9),
    )
    request.user_metadata.summary.data = b"s" * 60
    found = [await tried(bench.service.start_activity_execution(request))]
    request.user_metadata.ClearField("summary")
    request.user_metadata.details.data = b"d" * 70
    return [*found, await tried(bench.service.start_activity_execution(request))]
