"""Requests with payloads or memos above a warning limit are accepted, and logged."""

from typing import Any

import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from structlog.testing import capture_logs
from temporalio.api.common.v1 import ActivityType, Memo, Payload, Payloads, WorkflowExecution
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure, NexusHandlerFailureInfo
from temporalio.api.taskqueue.v1 import TaskQueue

from fairlead.api.errors import ApiError
from fairlead.api.size_warnings import EVENT
from fairlead.api.tokens import ActivityTaskToken, NexusTaskToken, QueryTaskToken, WorkflowTaskToken, encode_token
from fairlead.frontend.gateway.context import Handler
from fairlead.frontend.handlers import nexus, schedules, standalone_activities
from tests.frontend import setup
from tests.frontend.bad_requests import NAMESPACE, method_of, query, signal_with_start, start
from tests.frontend.setup import NAMESPACE_ID, Setup, a_call, set_up

METHODS: dict[str, Handler] = {
    **setup.METHODS,
    **standalone_activities.METHODS,
    **nexus.METHODS,
    **schedules.METHODS,
}
LARGE = Payloads(payloads=[Payload(data=bytes(600 * 1024))])
TOO_LARGE = Payloads(payloads=[Payload(data=bytes(3 * 1024 * 1024))])
MEMO = Memo(fields={"key": Payload(data=bytes(3000))})
ACTIVITY = encode_token(ActivityTaskToken(NAMESPACE_ID, "w", "run", 5, 1, "activity"))
QUERY = encode_token(QueryTaskToken(NAMESPACE_ID, "w", "run", "query"))
NEXUS = encode_token(NexusTaskToken(NAMESPACE_ID, "w", "run", NAMESPACE_ID, 5, 1, is_cancel=False))
WORKFLOW = encode_token(WorkflowTaskToken(NAMESPACE_ID, "w", "run", 2, 1, 3))
FAILURE = Failure(message="x" * 600 * 1024, application_failure_info=ApplicationFailureInfo())
BY_ID: dict[str, Any] = {"namespace": NAMESPACE, "workflow_id": "w", "activity_id": "a"}
EXECUTION = WorkflowExecution(workflow_id="w")


def schedule(**fields: Any) -> api.CreateScheduleRequest:
    request = api.CreateScheduleRequest(namespace=NAMESPACE, schedule_id="w", request_id="r", **fields)
    action = request.schedule.action.start_workflow
    action.workflow_id = "started"
    action.workflow_type.name = "T"
    action.task_queue.name = "q"
    return request


BLOBS: list[Message] = [
    api.SignalWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=EXECUTION, signal_name="s", input=LARGE),
    start(workflow_id="w", input=LARGE),
    signal_with_start(workflow_id="w", signal_input=LARGE),
    query(execution=EXECUTION, query={"query_type": "q", "query_args": LARGE}),
    api.RespondQueryTaskCompletedRequest(namespace=NAMESPACE, task_token=QUERY, query_result=LARGE),
    api.RespondWorkflowTaskFailedRequest(namespace=NAMESPACE, task_token=WORKFLOW, failure=FAILURE),
    api.RecordActivityTaskHeartbeatRequest(namespace=NAMESPACE, task_token=ACTIVITY, details=LARGE),
    api.RespondActivityTaskCompletedRequest(namespace=NAMESPACE, task_token=ACTIVITY, result=LARGE),
    api.RespondActivityTaskCanceledRequest(namespace=NAMESPACE, task_token=ACTIVITY, details=LARGE),
    api.RespondActivityTaskFailedRequest(namespace=NAMESPACE, task_token=ACTIVITY, failure=FAILURE),
    api.RecordActivityTaskHeartbeatByIdRequest(details=LARGE, **BY_ID),
    api.RespondActivityTaskCompletedByIdRequest(result=LARGE, **BY_ID),
    api.RespondActivityTaskCanceledByIdRequest(details=LARGE, **BY_ID),
    api.RespondActivityTaskFailedByIdRequest(last_heartbeat_details=LARGE, **BY_ID),
    api.RespondNexusTaskFailedRequest(
        namespace=NAMESPACE,
        task_token=NEXUS,
        failure=Failure(message="x" * 600 * 1024, nexus_handler_failure_info=NexusHandlerFailureInfo()),
    ),
    api.StartActivityExecutionRequest(
        namespace=NAMESPACE,
        activity_id="w",
        activity_type=ActivityType(name="T"),
        task_queue=TaskQueue(name="q"),
        start_to_close_timeout=Duration(seconds=1),
        input=LARGE,
    ),
]
MEMOS: list[Message] = [start(workflow_id="w", memo=MEMO), schedule(memo=MEMO)]


async def logged(setup: Setup, request: Message) -> list[tuple[Any, ...]]:
    """The warnings that a request writes to the log."""
    with capture_logs() as logs:
        await METHODS[method_of(request)](setup.frontend, request, a_call(70.0))
    fields = ("setting", "namespace", "workflow_id", "operation", "limit")
    return [tuple(line[name] for name in fields) for line in logs if line["event"] == EVENT]


@pytest.mark.parametrize("request_", BLOBS, ids=method_of)
async def test_a_large_payload_is_accepted_and_logged(request_: Message) -> None:
    setup = await set_up()
    operation = method_of(request_)
    expected = ("limit.blobSize.warn", NAMESPACE, "w", operation, 512 * 1024)
    assert await logged(setup, request_) == [expected]
    assert [passed.name for passed in setup.history.passed] == [operation]


@pytest.mark.parametrize("request_", MEMOS, ids=method_of)
async def test_a_large_memo_is_accepted_and_logged(request_: Message) -> None:
    setup = await set_up()
    operation = method_of(request_)
    assert await logged(setup, request_) == [("limit.memoSize.warn", NAMESPACE, "w", operation, 2048)]
    assert [passed.name for passed in setup.history.passed] == [operation]


async def test_small_payloads_and_memos_are_not_logged() -> None:
    setup = await set_up()
    small = Payloads(payloads=[Payload(data=b"x")])
    assert await logged(setup, start(input=small, memo=Memo(fields={"key": Payload(data=b"x")}))) == []
    assert await logged(setup, schedule()) == []


async def test_a_refused_payload_is_logged_with_the_limit_that_refused_it() -> None:
    setup = await set_up()
    with capture_logs() as logs, pytest.raises(ApiError, match="Blob data size exceeds limit"):
        await METHODS["StartWorkflowExecution"](setup.frontend, start(workflow_id="w", input=TOO_LARGE), a_call(70.0))
    (line,) = logs
    assert (line["setting"], line["limit"]) == ("limit.blobSize.error", 2 * 1024 * 1024)
    assert line["size"] > 3 * 1024 * 1024


async def test_a_busy_log_names_one_request_a_minute() -> None:
    setup = await set_up()
    request = BLOBS[0]
    assert len(await logged(setup, request)) == 1
    for _ in range(5):
        assert await logged(setup, request) == []
    setup.now_s += 60.0
    assert len(await logged(setup, request)) == 1
