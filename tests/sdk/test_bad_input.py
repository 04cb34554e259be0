"""The server returns an API error for any bad request and keeps running: no request causes an internal error."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString
from temporalio import workflow
from temporalio.api.batch.v1 import BatchOperationTermination
from temporalio.api.command import v1 as api
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import (
    ActivityType,
    Memo,
    Payload,
    Payloads,
    RetryPolicy,
    SearchAttributes,
    WorkflowExecution,
    WorkflowType,
)
from temporalio.api.enums.v1 import CommandType, WorkflowIdConflictPolicy
from temporalio.api.failure.v1 import Failure
from temporalio.api.operatorservice.v1 import service_pb2 as operator_api
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.schedule.v1 import (
    IntervalSpec,
    Schedule,
    ScheduleAction,
    SchedulePatch,
    ScheduleSpec,
    TriggerImmediatelyRequest,
)
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, UpdateRef, WaitPolicy
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    PollWorkflowTaskQueueRequest,
    PollWorkflowTaskQueueResponse,
    RegisterNamespaceRequest,
    RespondWorkflowTaskCompletedRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.api.workflowservice.v1 import service_pb2 as workflow_api
from temporalio.client import Client

from tests.patience import PATIENCE_S
from tests.sdk.random_messages import (
    BYTES,
    GARBAGE,
    LONG_CHARACTERS,
    OVERSIZE_BYTES,
    PAYLOADS,
    STRINGS,
    Chance,
    FieldPath,
    at,
    new_message,
    paths_to,
    plausible,
    set_at,
)
from tests.sdk.servers import serving
from tests.sdk.stage import make_worker

SEED = 20_261_116
MESSAGES = 5000
TOGETHER_MAX = 48
# Deadline in seconds of requests that wait for an event; other requests must respond without it.
WAITING_S = 1.2
ANSWER_S_MAX = PATIENCE_S
NAMESPACE = "fuzzed"
# Id of a workflow that requests may end.
VICTIM = "victim"
FAILURES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
FAILURES_SHOWN_MAX = 20

WORKFLOWS = 12
TOKENS = 8
COMMANDS = 480
_SECOND = Duration(seconds=1)
# Values that pass the server's first checks, by the names of the fields that take them.
REASONABLE: dict[str, Sequence[Any]] = {
    "namespace": [NAMESPACE],
    "workflow_type": [WorkflowType(name="x")],
    "task_queue": [TaskQueue(name="q"), TaskQueue(name="r"), "q", "r"],
    "task_queue_type": [1, 2],
    "activity_id": ["x", "a1", "a2"],
    "activity_type": [ActivityType(name="x")],
    "schedule_id": ["s1", "s2"],
    "request_id": ["x", "y", ""],
    "next_page_token": [b"", b"", GARBAGE],
    "query": [WorkflowQuery(query_type="x"), "WorkflowId = 'w1'", "ExecutionStatus = 'Running'", ""],
    "signal_name": ["x"],
    "job_id": ["j1", "j2"],
    "reason": ["x"],
    "wait_policy": [WaitPolicy(lifecycle_stage=2), WaitPolicy(lifecycle_stage=3)],  # type: ignore[arg-type]
    "request": [Request(meta=Meta(update_id="u"), input=Input(name="x"))],
    "input": [Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=b"1")])],
    "retry_policy": [RetryPolicy(initial_interval=_SECOND, maximum_interval=_SECOND, backoff_coefficient=2.0)],
    "start_to_close_timeout": [_SECOND],
    "schedule_to_close_timeout": [_SECOND],
    "heartbeat_timeout": [_SECOND],
    "workflow_run_timeout": [Duration(seconds=100)],
    "workflow_execution_retention_period": [Duration(seconds=86_400)],
    "memo": [Memo(fields={"m": Payload(data=b"1")})],
    "schedule": [
        Schedule(
            spec=ScheduleSpec(interval=[IntervalSpec(interval=Duration(seconds=3600))]),
            action=ScheduleAction(
                start_workflow=NewWorkflowExecutionInfo(
                    workflow_id="scheduled", workflow_type=WorkflowType(name="x"), task_queue=TaskQueue(name="q")
                )
            ),
        )
    ],
    "patch": [SchedulePatch(trigger_immediately=TriggerImmediatelyRequest())],
    "visibility_query": ["WorkflowId = 'nobody'"],
    "termination_operation": [BatchOperationTermination()],
    "search_attributes": [SearchAttributes(indexed_fields={"CustomKeywordField": Payload(data=b'"k"')})],
}

METHODS: list[MethodDescriptor] = [
    *workflow_api.DESCRIPTOR.services_by_name["WorkflowService"].methods,
    *operator_api.DESCRIPTOR.services_by_name["OperatorService"].methods,
]
# These methods respond when there is a result, or at the caller's deadline.
WAIT = {
    "ExecuteMultiOperation",
    "GetWorkflowExecutionHistory",
    "QueryWorkflow",
    "UpdateWorkflowExecution",
    "DescribeActivityExecution",
    "DescribeNexusOperationExecution",
}
OF_NAMESPACES = {"DeleteNamespace", "DeprecateNamespace", "UpdateNamespace"}


def commands() -> list[Command]:
    """One command of each type, as a worker sends them."""
    kind, queue = WorkflowType(name="x"), TaskQueue(name="nobody-polls-this")
    other = WorkflowExecution(workflow_id="w1")
    attributes: dict[str, Message] = {
        "complete_workflow_execution": api.CompleteWorkflowExecutionCommandAttributes(),
        "fail_workflow_execution": api.FailWorkflowExecutionCommandAttributes(failure=Failure(message="x")),
        "continue_as_new_workflow_execution": api.ContinueAsNewWorkflowExecutionCommandAttributes(
            workflow_type=kind, task_queue=queue
        ),
        "schedule_activity_task": api.ScheduleActivityTaskCommandAttributes(
            activity_id="a1", activity_type=ActivityType(name="x"), task_queue=queue, start_to_close_timeout=_SECOND
        ),
        "request_cancel_activity_task": api.RequestCancelActivityTaskCommandAttributes(scheduled_event_id=5),
        "start_timer": api.StartTimerCommandAttributes(timer_id="t1", start_to_fire_timeout=_SECOND),
        "cancel_timer": api.CancelTimerCommandAttributes(timer_id="t1"),
        "record_marker": api.RecordMarkerCommandAttributes(marker_name="m"),
        "start_child_workflow_execution": api.StartChildWorkflowExecutionCommandAttributes(
            workflow_id="child", workflow_type=kind, task_queue=queue
        ),
        "signal_external_workflow_execution": api.SignalExternalWorkflowExecutionCommandAttributes(
            execution=other, signal_name="x"
        ),
        "request_cancel_external_workflow_execution": api.RequestCancelExternalWorkflowExecutionCommandAttributes(
            workflow_id="w2"
        ),
        "upsert_workflow_search_attributes": api.UpsertWorkflowSearchAttributesCommandAttributes(
            search_attributes=REASONABLE["search_attributes"][0]
        ),
        "modify_workflow_properties": api.ModifyWorkflowPropertiesCommandAttributes(
            upserted_memo=REASONABLE["memo"][0]
        ),
        "protocol_message": api.ProtocolMessageCommandAttributes(message_id="x"),
    }
    return [
        Command(
            command_type=CommandType.Value(f"COMMAND_TYPE_{name.upper()}"),
            **{f"{name}_command_attributes": value},  # type: ignore[arg-type]
        )
        for name, value in attributes.items()
    ]


class Response(NamedTuple):
    """The response to one request."""

    code: grpc.StatusCode
    message: str
    took_s: float


@workflow.defn
class Alive:
    """Completes at once: shows that the server still works."""

    @workflow.run
    async def run(self) -> str:
        await workflow.sleep(0.05)
        return "alive"


class Attacker:
    """Sends bytes to any method and keeps the responses that are server failures."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._room = asyncio.Semaphore(TOGETHER_MAX)
        self.failures: list[str] = []

    async def close(self) -> None:
        await self._channel.close(None)

    async def send(self, method: MethodDescriptor, request: Message | bytes, what: str) -> Response:
        """Send one request and record a failure of the server."""
        data = request.SerializeToString() if isinstance(request, Message) else request
        waits = method.name.startswith("Poll") or method.name in WAIT
        loop = asyncio.get_running_loop()
        async with self._room:
            began_s = loop.time()
            call = self._channel.unary_unary(
                f"/{method.containing_service.full_name}/{method.name}",
                request_serializer=None,
                response_deserializer=None,
            )
            try:
                await call(data, timeout=WAITING_S if waits else ANSWER_S_MAX)
                answer = Response(grpc.StatusCode.OK, "", loop.time() - began_s)
            except grpc.aio.AioRpcError as error:
                answer = Response(error.code(), error.details() or "", loop.time() - began_s)
        too_late = answer.code is grpc.StatusCode.DEADLINE_EXCEEDED and not waits
        if answer.code in FAILURES or too_late or answer.code is grpc.StatusCode.UNAVAILABLE:
            shown = MessageToString(request, as_one_line=True) if isinstance(request, Message) else data.hex()
            self.failures.append(f"{method.name} ({what}): {answer.code.name} {answer.message!r} for {shown[:2000]}")
        return answer

    def check(self) -> None:
        """Fail the test with the requests that made the server fail."""
        failures = "\n".join(self.failures[:FAILURES_SHOWN_MAX])
        assert not self.failures, f"seed {SEED}: {len(self.failures)} requests made the server fail:\n{failures}"


class Target(NamedTuple):
    """A server, its attacker, and values that exist on the server."""

    attacker: Attacker
    client: Client
    known: dict[str, Sequence[Any]]


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    """A server to attack; after the tests a workflow must still run from start to end."""
    with serving("fairlead", tmp_path) as address:
        client = await Client.connect(address)
        for name in (NAMESPACE, VICTIM):
            await client.workflow_service.register_namespace(
                RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=timedelta(days=1))  # type: ignore[arg-type]
            )
        attacker = Attacker(address)
        try:
            yield Target(attacker, client, await _known(client))
            attacker.check()
            await _still_works(address)
        finally:
            await attacker.close()
        log = (tmp_path / "server.log").read_text()
        assert "Traceback" not in log, log[-5000:]


async def _known(client: Client) -> dict[str, Sequence[Any]]:
    """Existing names, runs and tokens, by the names of the fields that take them."""
    runs = [await _start(client, f"w{number}", "q") for number in range(WORKFLOWS)]
    tokens = [GARBAGE, b"", *[(await _poll(client, "q")).task_token for _ in range(TOKENS)]]
    executions = [WorkflowExecution(workflow_id=f"w{number}", run_id=run) for number, run in enumerate(runs)]
    executions += [WorkflowExecution(workflow_id=f"w{number}") for number in range(WORKFLOWS)]
    return {
        **REASONABLE,
        "workflow_id": [f"w{number}" for number in range(WORKFLOWS)],
        "run_id": ["", "", *runs],
        "workflow_execution": executions,
        "execution": executions,
        "update_ref": [UpdateRef(workflow_execution=each, update_id="u") for each in executions],
        "task_token": tokens,
        "commands": [[command] for command in commands()],
    }


async def _start(client: Client, workflow_id: str, queue: str) -> str:
    started = await client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=NAMESPACE,
            workflow_id=workflow_id,
            workflow_type=WorkflowType(name="x"),
            task_queue=TaskQueue(name=queue),
            request_id=f"start {workflow_id}",
            workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING,
        )
    )
    return started.run_id


async def _poll(client: Client, queue: str) -> PollWorkflowTaskQueueResponse:
    return await client.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name=queue), identity="attacker")
    )


async def _still_works(address: str) -> None:
    client = await Client.connect(address)
    async with make_worker(client, "still-works", [Alive], []):
        result = await client.execute_workflow(Alive.run, id="still-works", task_queue="still-works")
    assert result == "alive"


def _known_to(method: MethodDescriptor, known: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    return {**known, "namespace": [VICTIM]} if method.name in OF_NAMESPACES else known


@pytest.mark.parametrize("namespace", ["", "nowhere"])
async def test_an_empty_request_gets_a_response_or_a_meaningful_error(target: Target, namespace: str) -> None:
    async def ask(method: MethodDescriptor) -> None:
        request = new_message(method.input_type)
        has_namespace = "namespace" in method.input_type.fields_by_name
        if has_namespace:
            request.namespace = namespace  # type: ignore[attr-defined]
        answer = await target.attacker.send(method, request, f"only the namespace {namespace!r}")
        if answer.code is not grpc.StatusCode.OK:
            assert answer.message, f"{method.name} does not say what is wrong"
        if has_namespace and method.name not in SERVES_ANY_NAMESPACE:
            assert answer.code is not grpc.StatusCode.OK, method.name

    await asyncio.gather(*(ask(method) for method in METHODS))


# Methods that accept any namespace.
SERVES_ANY_NAMESPACE: set[str] = set()


@pytest.mark.timeout(300)
async def test_long_texts_and_wrong_tokens_cause_no_server_failure(target: Target) -> None:
    attacks: list[tuple[MethodDescriptor, Message, str]] = []
    for method in METHODS:
        known = _known_to(method, target.known)
        strings = list(paths_to(method.input_type, STRINGS))
        everything = plausible(method.input_type, known)
        for path in strings:
            if path[0].name == "namespace":
                continue
            # The last field that is set clears the other fields of its oneof.
            set_at(everything, path, "x" * LONG_CHARACTERS)
        attacks.append((method, everything, "all texts long"))
        changes: list[tuple[FieldPath, str | bytes]] = [(path, "x" * LONG_CHARACTERS) for path in strings]
        changes += [(path, GARBAGE) for path in paths_to(method.input_type, BYTES)]
        for path, value in changes:
            request = plausible(method.input_type, known)
            set_at(request, path, value)
            attacks.append((method, request, f"bad {'.'.join(field.name for field in path)}"))
    assert len(attacks) > 800
    await asyncio.gather(*(target.attacker.send(*attack) for attack in attacks))


@pytest.mark.timeout(300)
async def test_oversize_payloads_are_no_failure(target: Target) -> None:
    oversize = Payloads(payloads=[Payload(metadata={"encoding": b"binary/plain"}, data=bytes(OVERSIZE_BYTES))])
    attacks = 0
    for method in METHODS:
        for path in paths_to(method.input_type, PAYLOADS):
            request = plausible(method.input_type, _known_to(method, target.known))
            at(request, path).CopyFrom(oversize)
            await target.attacker.send(method, request, f"oversize {'.'.join(field.name for field in path)}")
            attacks += 1
    assert attacks > 20


@pytest.mark.timeout(300)
async def test_random_requests_cause_no_internal_error(target: Target) -> None:
    """`make_message` rebuilds the message with a given number from the same known values."""
    codes = await asyncio.gather(*(_attack(target, number) for number in range(MESSAGES)))
    # Some requests must succeed; otherwise only the first checks were tested.
    assert codes.count(grpc.StatusCode.OK) > MESSAGES / 50


async def _attack(target: Target, number: int) -> grpc.StatusCode:
    method = METHODS[number % len(METHODS)]
    chance = Chance(f"{SEED}-{number}", _known_to(method, target.known))
    request = make_message(method, chance, number // len(METHODS))
    return (await target.attacker.send(method, request, f"number {number}")).code


def make_message(method: MethodDescriptor, chance: Chance, turn: int) -> Message | bytes:
    """Mostly a nearly valid message, which passes the most checks; sometimes a random message or random bytes."""
    if turn % 5 == 0:
        return chance.message(method.input_type)
    request = chance.variation(chance.plausible(method.input_type))
    return chance.malformed(request.SerializeToString()) if turn % 5 == 1 else request


@pytest.mark.timeout(300)
async def test_nearly_valid_commands_cause_no_server_failure(target: Target) -> None:
    """A worker that sends wrong commands harms only its own workflow."""
    respond = next(method for method in METHODS if method.name == "RespondWorkflowTaskCompleted")

    async def attack(number: int) -> grpc.StatusCode:
        chance = Chance(f"{SEED}-commands-{number}", target.known)
        queue = f"commands-{number}"
        await _start(target.client, f"commands-{number}", queue)
        task = await _poll(target.client, queue)
        right = RespondWorkflowTaskCompletedRequest(
            namespace=NAMESPACE, identity="attacker", task_token=task.task_token, commands=chance.some_of(commands())
        )
        wrong = chance.variation(right)
        return (await target.attacker.send(respond, wrong, f"number {number}")).code

    codes: list[grpc.StatusCode] = []
    for first in range(0, COMMANDS, TOGETHER_MAX):
        codes += await asyncio.gather(*(attack(number) for number in range(first, first + TOGETHER_MAX)))
    assert codes.count(grpc.StatusCode.OK) > COMMANDS / 10
