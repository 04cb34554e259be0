import asyncio
import uuid
from typing import cast

import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.message import Message
from temporalio.api.command.v1 import RequestCancelExternalWorkflowExecutionCommandAttributes
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import PollerInfo

from fairlead.api.errors import ApiError, FailedPrecondition, InvalidArgument, NotFound
from fairlead.api.tokens import ActivityTaskToken, AnyToken, QueryTaskToken, WorkflowTaskToken, encode_token
from fairlead.authorization import Gate
from fairlead.core.partitions import PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.messages import BacklogReport, PollResponse, QueueKind
from fairlead.matching.sticky_polls import StickyPolls
from tests.authorization.tokens import make_gate
from tests.frontend.bad_requests import BLOB, LARGE, LONG, NAMESPACE, changed
from tests.frontend.setup import NAMESPACE_ID, Setup, set_up

WORKFLOW = WorkflowTaskToken(NAMESPACE_ID, "workflow", "run", 2, 1, 3)
ACTIVITY = ActivityTaskToken(NAMESPACE_ID, "workflow", "run", 5, 1, "activity")
QUERY = QueryTaskToken(NAMESPACE_ID, "workflow", "run", "query")
GONE = "invalid activityID or activity already timed out or invoking workflow is completed"


@pytest.fixture
async def setup() -> Setup:
    return await set_up()


def polls() -> list[Message]:
    kinds: tuple[type[Message], ...] = (api.PollWorkflowTaskQueueRequest, api.PollActivityTaskQueueRequest)
    fields: dict[str, object] = {"namespace": NAMESPACE, "identity": "me", "task_queue__name": "queue"}
    return [changed(kind(), fields) for kind in kinds]


def answer(kind: type[Message], token: AnyToken, **fields: object) -> Message:
    return changed(kind(), {"namespace": NAMESPACE, "task_token": encode_token(token), **fields})


async def test_a_poll_returns_the_task_from_matching(setup: Setup) -> None:
    setup.matching.task = b"a task"

    assert [await setup.ask(poll) for poll in polls()] == [b"a task", b"a task"]

    assert [poll[0] for poll in setup.matching.polls] == [
        TaskQueueId(NAMESPACE_ID, "queue", TaskType.WORKFLOW),
        TaskQueueId(NAMESPACE_ID, "queue", TaskType.ACTIVITY),
    ]


async def test_a_poll_without_a_task_returns_an_empty_response(setup: Setup) -> None:
    assert [await setup.ask(poll) for poll in polls()] == [b"", b""]


@pytest.mark.parametrize(("deadline_s", "wait_s"), [(70.0, 60.0), (30.0, 29.0), (2.5, 1.5)])
async def test_a_poll_returns_before_its_callers_deadline(setup: Setup, deadline_s: float, wait_s: float) -> None:
    for poll in polls():
        await setup.ask(poll, timeout_s=deadline_s)

    assert [poll[2] for poll in setup.matching.polls] == pytest.approx([wait_s, wait_s], abs=0.1)


@pytest.mark.parametrize(
    ("deadline_s", "error", "message"),
    [
        (None, InvalidArgument, "Context timeout is not set."),
        (1.5, FailedPrecondition, "Context timeout is too short."),
    ],
)
async def test_a_poll_with_too_short_a_deadline_is_refused(
    setup: Setup, deadline_s: float | None, error: type[ApiError], message: str
) -> None:
    for poll in polls():
        with pytest.raises(error) as raised:
            await setup.ask(poll, timeout_s=deadline_s)
        assert str(raised.value) == message


async def test_the_sticky_queue_and_rate_limit_of_a_poll_are_passed_to_matching(setup: Setup) -> None:
    sticky, limited = polls()
    await setup.ask(changed(sticky, {"task_queue__kind": 2}))
    await setup.ask(changed(limited, {"task_queue_metadata__max_tasks_per_second__value": 2.5}))

    assert [poll[3:] for poll in setup.matching.polls] == [(QueueKind.STICKY, None), (QueueKind.NORMAL, 2.5)]


async def test_a_worker_shutdown_ends_its_own_polls_only(setup: Setup) -> None:
    setup.matching.waits = True
    mine, _ = (changed(poll, {"worker_instance_key": "mine"}) for poll in polls())
    others, _ = (changed(poll, {"worker_instance_key": "others"}) for poll in polls())
    waiting = asyncio.create_task(setup.ask(mine))
    going_on = asyncio.create_task(setup.ask(others))
    await asyncio.sleep(0)

    await setup.ask(api.ShutdownWorkerRequest(namespace=NAMESPACE, worker_instance_key="mine"))

    assert await asyncio.wait_for(waiting, 1) == b""
    assert not going_on.done()
    going_on.cancel()
    await asyncio.gather(going_on, return_exceptions=True)
    assert going_on.cancelled()


async def test_a_poll_is_cancelled_when_its_caller_disconnects(setup: Setup) -> None:
    setup.matching.waits = True
    waiting = asyncio.create_task(setup.ask(changed(polls()[0], {"worker_instance_key": "mine"})))
    await asyncio.sleep(0)

    waiting.cancel()

    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert setup.frontend.open_polls.answer((NAMESPACE_ID, "mine")) == 0


async def test_a_poll_is_cancelled_when_its_caller_disconnects_during_the_worker_shutdown(setup: Setup) -> None:
    setup.matching.waits = True
    waiting = asyncio.create_task(setup.ask(changed(polls()[0], {"worker_instance_key": "mine"})))
    await asyncio.sleep(0)

    assert setup.frontend.open_polls.answer((NAMESPACE_ID, "mine")) == 1
    waiting.cancel()

    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()


@pytest.mark.parametrize(
    ("kind", "token"),
    [
        (api.RespondWorkflowTaskCompletedRequest, WORKFLOW),
        (api.RespondWorkflowTaskFailedRequest, WORKFLOW),
        (api.RespondQueryTaskCompletedRequest, QUERY),
        (api.RecordActivityTaskHeartbeatRequest, ACTIVITY),
        (api.RespondActivityTaskCompletedRequest, ACTIVITY),
        (api.RespondActivityTaskFailedRequest, ACTIVITY),
        (api.RespondActivityTaskCanceledRequest, ACTIVITY),
    ],
)
async def test_a_task_response_is_routed_by_its_token_and_only_in_the_tokens_namespace(
    setup: Setup, kind: type[Message], token: AnyToken
) -> None:
    await setup.ask(answer(kind, token))
    await setup.ask(answer(kind, token, namespace=""))
    with pytest.raises(ApiError, match="Operation requested with a token from a different namespace"):
        await setup.ask(answer(kind, token, namespace="second"))

    assert [(passed.name, passed.namespace_id, passed.workflow_id) for passed in setup.history.passed] == [
        (kind.DESCRIPTOR.name.removesuffix("Request"), NAMESPACE_ID, "workflow")
    ] * 2


NOT_FOUND = (NotFound, "The namespace of the task token is not found.")
UNKNOWN_ID = "7d0b8f8e-0000-4000-8000-000000000003"


@pytest.mark.parametrize(
    ("gate", "namespace_id", "told"),
    [
        # With authorization, the response does not tell which namespaces exist.
        (make_gate(), NAMESPACE_ID, NOT_FOUND),
        (make_gate(), UNKNOWN_ID, NOT_FOUND),
        (None, NAMESPACE_ID, (InvalidArgument, "Operation requested with a token from a different namespace.")),
        (None, UNKNOWN_ID, (NotFound, f"Namespace {UNKNOWN_ID} is not found.")),
    ],
)
async def test_a_token_of_another_server_tells_which_namespaces_exist_only_without_authorization(
    setup: Setup, gate: Gate | None, namespace_id: str, told: tuple[type[ApiError], str]
) -> None:
    setup.frontend.gate = gate
    foreign = RequestCancelExternalWorkflowExecutionCommandAttributes(
        namespace=namespace_id, workflow_id="workflow", run_id=str(uuid.uuid4()), reason="activity"
    )
    request = api.RespondActivityTaskCompletedRequest(namespace="second", task_token=foreign.SerializeToString())
    with pytest.raises(ApiError) as refused:
        await setup.ask(request)
    assert (type(refused.value), str(refused.value)) == told


@pytest.mark.parametrize(
    ("kind", "token", "message"),
    [
        (api.RespondWorkflowTaskCompletedRequest, ACTIVITY, "Workflow task not found."),
        (api.RespondWorkflowTaskFailedRequest, ACTIVITY, "Workflow task not found."),
        (api.RespondQueryTaskCompletedRequest, ACTIVITY, "query task not found, or already expired"),
        (api.RespondActivityTaskCompletedRequest, WORKFLOW, GONE),
        (api.RecordActivityTaskHeartbeatRequest, WORKFLOW, GONE),
    ],
)
async def test_a_token_of_another_kind_is_refused(
    setup: Setup, kind: type[Message], token: AnyToken, message: str
) -> None:
    with pytest.raises(NotFound) as raised:
        await setup.ask(answer(kind, token))

    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (api.RespondWorkflowTaskCompletedRequest, {"identity": LONG}, "Identity length exceeds limit."),
        (
            api.RespondWorkflowTaskCompletedRequest,
            {"worker_version_stamp__build_id": "b" * 256},
            "Build ID exceeds configured limit.workerBuildIdSize, use a shorter build ID.",
        ),
        (
            api.RespondWorkflowTaskCompletedRequest,
            {"deployment_options__worker_versioning_mode": 2},
            "Deployment name and build id must be set together.",
        ),
        (api.RespondWorkflowTaskFailedRequest, {"identity": LONG}, "Identity length exceeds limit."),
        (api.RespondActivityTaskCompletedRequest, {"identity": LONG}, "Identity length exceeds limit."),
        (api.RespondActivityTaskCanceledRequest, {"identity": LONG}, "Identity length exceeds limit."),
        (
            api.RespondActivityTaskFailedRequest,
            {"identity": LONG, "failure__message": "x"},
            "Failure must have ApplicationFailureInfo.",
        ),
    ],
)
async def test_a_task_response_with_a_valid_token_is_still_validated(
    setup: Setup, kind: type[Message], fields: dict[str, object], message: str
) -> None:
    token = WORKFLOW if "Workflow" in kind.DESCRIPTOR.name else ACTIVITY

    with pytest.raises(ApiError) as raised:
        await setup.ask(answer(kind, token, **fields))

    assert str(raised.value) == message


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize(
    ("method", "field", "message"),
    [
        ("RecordActivityTaskHeartbeat", "details", "Heartbeat details exceed size limit."),
        ("RespondActivityTaskCompleted", "result", "Complete result exceeds size limit."),
        ("RespondActivityTaskCanceled", "details", "Cancel details exceed size limit."),
    ],
)
async def test_a_result_that_is_too_large_fails_the_activity_without_a_retry(
    setup: Setup, method: str, field: str, message: str, by_id: bool
) -> None:
    kind: type[Message] = getattr(api, f"{method}{'ById' if by_id else ''}Request")
    if by_id:
        ids: dict[str, object] = {"namespace": NAMESPACE, "workflow_id": "workflow", "activity_id": "activity"}
        request = changed(kind(), {**ids, field: LARGE})
    else:
        request = answer(kind, ACTIVITY, **{field: LARGE})

    response = await setup.ask(request)

    (passed,) = setup.history.passed
    assert passed.name == "RespondActivityTaskFailed" + ("ById" if by_id else "")
    assert passed.request.failure.message == message
    assert passed.request.failure.server_failure_info.non_retryable
    assert getattr(response, "cancel_requested", True)


@pytest.mark.parametrize(
    ("kind", "offers"),
    [
        (api.RespondActivityTaskCompletedRequest, True),
        (api.RespondActivityTaskFailedRequest, True),
        (api.RespondActivityTaskCanceledRequest, True),
        (api.RecordActivityTaskHeartbeatRequest, False),
    ],
)
async def test_the_end_of_an_activity_offers_a_poll_of_the_sticky_task_queue_in_its_token(
    setup: Setup, kind: type[Message], offers: bool
) -> None:
    token = ActivityTaskToken(NAMESPACE_ID, "workflow", "run", 5, 1, "activity", sticky_task_queue="sticky")
    await setup.ask(answer(kind, token))
    assert setup.history.sticky_task_queues == ["sticky" if offers else ""]


async def test_a_poll_of_a_sticky_task_queue_may_wait_at_its_frontend(setup: Setup) -> None:
    setup.matching.task = b"a task"
    asked: list[tuple[TaskQueueId, str]] = []

    class Polls:
        async def wait(self, task_queue: TaskQueueId, identity: str, _worker: bytes, **_: object) -> PollResponse:
            asked.append((task_queue, identity))
            return PollResponse(b"here", PartitionConfig(0, 1, 1), BacklogReport(0, 0, 0.0, 0.0, 0.0))

    setup.frontend.sticky_polls = cast(StickyPolls, Polls())
    assert [await setup.ask(poll) for poll in polls()] == [b"a task", b"a task"]
    assert await setup.ask(changed(polls()[0], {"task_queue__kind": 2})) == b"here"
    assert asked == [(TaskQueueId(NAMESPACE_ID, "queue", TaskType.WORKFLOW), "me")]


async def test_a_failure_that_is_too_large_is_cut(setup: Setup) -> None:
    failure = Failure(message="why", stack_trace="ä" * BLOB)
    failure.application_failure_info.type = "Kind"

    response = await setup.ask(answer(api.RespondActivityTaskFailedRequest, ACTIVITY, failure=failure))

    recorded = setup.history.passed[0].request.failure
    assert recorded.message == "Failure exceeds size limit."
    assert (recorded.cause.message, recorded.cause.application_failure_info.type) == ("why", "Kind")
    assert 500 * 1024 < recorded.cause.ByteSize() <= 512 * 1024
    assert isinstance(response, api.RespondActivityTaskFailedResponse)
    assert list(response.failures) == [recorded]


async def test_heartbeat_details_that_are_too_large_are_dropped(setup: Setup) -> None:
    request = answer(api.RespondActivityTaskFailedRequest, ACTIVITY, last_heartbeat_details=LARGE)

    response = await setup.ask(request)

    assert not setup.history.passed[0].request.HasField("last_heartbeat_details")
    assert isinstance(response, api.RespondActivityTaskFailedResponse)
    assert [failure.message for failure in response.failures] == ["Heartbeat details exceed size limit."]


async def test_a_query_result_that_is_too_large_fails_the_query(setup: Setup) -> None:
    await setup.ask(answer(api.RespondQueryTaskCompletedRequest, QUERY, query_result=LARGE))

    request = setup.history.passed[0].request
    assert (request.completed_type, request.error_message) == (2, "Blob data size exceeds limit.")
    assert not request.HasField("query_result")


async def test_a_request_without_a_workflow_id_is_for_a_standalone_activity(setup: Setup) -> None:
    await setup.ask(api.RespondActivityTaskCompletedByIdRequest(namespace=NAMESPACE, activity_id="alone"))

    assert setup.history.passed[0].workflow_id == "alone"


async def test_a_token_of_an_unknown_namespace_is_refused(setup: Setup) -> None:
    token = WorkflowTaskToken("nowhere", "workflow", "run", 2, 1, 3)

    with pytest.raises(NotFound):
        await setup.ask(answer(api.RespondWorkflowTaskCompletedRequest, token, namespace=""))


async def test_the_build_id_of_a_poll_is_passed_to_matching(setup: Setup) -> None:
    request = api.PollWorkflowTaskQueueRequest()
    request.MergeFromString(polls()[0].SerializeToString())
    request.worker_version_capabilities.build_id = "build-7"

    await setup.ask(request)

    assert PollerInfo.FromString(setup.matching.workers[0]).worker_version_capabilities.build_id == "build-7"
