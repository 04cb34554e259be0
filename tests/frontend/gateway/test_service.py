"""Both services over real gRPC: every method is answered, and no request bytes make the server fail."""

import asyncio

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from temporalio.api.workflowservice.v1 import GetSystemInfoRequest, GetSystemInfoResponse

from fairlead.api.errors import InvalidArgument
from fairlead.core.errors import FairleadError, GiveUp
from fairlead.frontend import OPERATOR_SERVICE, WORKFLOW_SERVICE, Frontend
from fairlead.frontend.gateway.service import TopicsDisagree, handlers, method_names
from fairlead.frontend.handlers import namespaces, system
from fairlead.rpc import Call
from tests.frontend.served import Serving, code_and_message, serving


async def _raw(served: Serving, path: str, data: bytes) -> bytes:
    call = served.channel.unary_unary(path)
    answer: bytes = await call(data, timeout=10)
    return answer


async def test_a_method_without_a_handler_returns_unimplemented_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(system.METHODS, "GetClusterInfo")
    assert (len(method_names(WORKFLOW_SERVICE)), len(method_names(OPERATOR_SERVICE))) == (123, 12)
    async with serving() as served:
        missing = {
            f"/{name}/{method}": method
            for name in (WORKFLOW_SERVICE, OPERATOR_SERVICE)
            for method in method_names(name)
            if method not in handlers(name)
        }
        assert f"/{WORKFLOW_SERVICE}/GetClusterInfo" in missing
        for path, method in missing.items():
            assert await code_and_message(_raw(served, path, b"")) == (
                "UNIMPLEMENTED",
                f"method {method} not implemented",
            )


async def test_bytes_that_are_not_a_valid_message_return_invalid_argument() -> None:
    async with serving() as served:
        for name in (WORKFLOW_SERVICE, OPERATOR_SERVICE):
            for method in method_names(name):
                for malformed in (b"\xff\xff\xff", b"\x0a\x05x"):
                    code, _ = await code_and_message(_raw(served, f"/{name}/{method}", malformed))
                    assert code == "INVALID_ARGUMENT", (method, malformed)
        bad_text = b"\x0a\x02\xff\xff"
        code, message = await code_and_message(_raw(served, f"/{WORKFLOW_SERVICE}/DescribeNamespace", bad_text))
        assert code == "INVALID_ARGUMENT"
        assert message.startswith("grpc: error unmarshalling request: ")


async def test_health_and_reflection_include_both_services() -> None:
    async with serving() as served:
        health = HealthStub(served.channel)
        for name in ("", WORKFLOW_SERVICE, OPERATOR_SERVICE):
            answer = await health.Check(HealthCheckRequest(service=name))
            assert answer.status == HealthCheckResponse.SERVING
        served.health.drain()
        answer = await health.Check(HealthCheckRequest(service=WORKFLOW_SERVICE))
        assert answer.status == HealthCheckResponse.NOT_SERVING
        asked = iter([ServerReflectionRequest(list_services="")])
        reported = [answer async for answer in ServerReflectionStub(served.channel).ServerReflectionInfo(asked)]
        names = {listed.name for listed in reported[0].list_services_response.service}
        assert {WORKFLOW_SERVICE, OPERATOR_SERVICE, "grpc.health.v1.Health"} <= names


async def test_failed_calls_are_counted_by_their_status_code(monkeypatch: pytest.MonkeyPatch) -> None:
    raises: list[Exception] = [InvalidArgument("m"), TimeoutError(), GiveUp("m"), ZeroDivisionError()]

    async def get_system_info(_: Frontend, __: GetSystemInfoRequest, ___: Call) -> GetSystemInfoResponse:
        if raises:
            raise raises.pop()
        return GetSystemInfoResponse(server_version="a message")

    monkeypatch.setitem(system.METHODS, "GetSystemInfo", get_system_info)
    async with serving() as served:
        for code in ("INTERNAL", "INTERNAL", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await served.workflow.GetSystemInfo(GetSystemInfoRequest())
            assert raised.value.code().name == code
        assert (await served.workflow.GetSystemInfo(GetSystemInfoRequest())).server_version == "a message"
        [counted] = [calls for calls in served.metrics.snapshot().calls if calls.operation == "GetSystemInfo"]
        assert (counted.service, counted.requests) == ("frontend", 5)
        assert counted.errors == {"INTERNAL": 2, "DEADLINE_EXCEEDED": 1, "INVALID_ARGUMENT": 1}
        assert "OperatorListClusters" in {calls.operation for calls in served.metrics.snapshot().calls}


async def test_a_handler_is_cancelled_when_its_caller_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def get_system_info(_: Frontend, __: GetSystemInfoRequest, ___: Call) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    monkeypatch.setitem(system.METHODS, "GetSystemInfo", get_system_info)
    async with serving() as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.workflow.GetSystemInfo(GetSystemInfoRequest(), timeout=0.2)
        assert raised.value.code().name == "DEADLINE_EXCEEDED"
        async with asyncio.timeout(5):
            await ended.wait()


@pytest.mark.parametrize("name", ["GetClusterInfo", "NoSuchMethod"])
def test_a_method_in_no_topic_or_in_two_topics_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(namespaces.METHODS, name, system.METHODS["GetClusterInfo"])
    with pytest.raises(TopicsDisagree, match=name):
        handlers(WORKFLOW_SERVICE)
    assert issubclass(TopicsDisagree, FairleadError)
