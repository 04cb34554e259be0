"""Both versions of the reflection service."""

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2  # noqa: F401 - puts its messages in the pool
from grpc_reflection.v1alpha.reflection_pb2 import ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse

from fairlead.rpc import HEALTH_SERVICE, REFLECTION_SERVICES, Reflection
from tests.rpc.served import channel, serving

EXTENDED = "google.protobuf.MethodOptions"


@pytest.mark.parametrize("service", REFLECTION_SERVICES)
async def test_services_files_and_symbols_are_found(service: str) -> None:
    questions = [
        ServerReflectionRequest(host="h", list_services=""),
        ServerReflectionRequest(file_containing_symbol=HEALTH_SERVICE),
        ServerReflectionRequest(file_by_filename="grpc_health/v1/health.proto"),
        ServerReflectionRequest(file_containing_symbol="no.such.Thing"),
        ServerReflectionRequest(all_extension_numbers_of_type="no.such.Thing"),
        ServerReflectionRequest(all_extension_numbers_of_type=EXTENDED),
        ServerReflectionRequest(
            file_containing_extension=ExtensionRequest(containing_type=EXTENDED, extension_number=99_999)
        ),
        ServerReflectionRequest(),
    ]

    async def requests() -> AsyncIterator[bytes]:
        for question in questions:
            yield question.SerializeToString()

    async with serving() as served:
        Reflection([HEALTH_SERVICE]).add_to(served.server)
        async with channel(served.address) as client:
            call = client.stream_stream(f"/{service}/ServerReflectionInfo")(requests())
            answers = [ServerReflectionResponse.FromString(data) async for data in call]
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                [_ async for _ in client.stream_stream(f"/{service}/ServerReflectionInfo")(iter([b"\xff"]))]
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [answer.original_request for answer in answers] == questions
    services, by_symbol, by_name, no_symbol, no_type, numbers, no_extension, nothing = answers
    assert services.valid_host == "h"
    names = {found.name for found in services.list_services_response.service}
    assert names == {HEALTH_SERVICE, *REFLECTION_SERVICES}
    for answer in (by_symbol, by_name):
        files = [FileDescriptorProto.FromString(data) for data in answer.file_descriptor_response.file_descriptor_proto]
        assert [file.package for file in files] == ["grpc.health.v1"]
    assert [answer.error_response.error_code for answer in (no_symbol, no_type, no_extension, nothing)] == [5, 5, 5, 3]
    assert numbers.all_extension_numbers_response.base_type_name == EXTENDED


async def test_a_file_is_returned_with_all_its_dependencies() -> None:
    from temporalio.api.workflowservice.v1 import service_pb2  # noqa: F401, PLC0415 - puts its messages in the pool

    async with serving() as served:
        Reflection([]).add_to(served.server)
        async with channel(served.address) as client:
            question = ServerReflectionRequest(file_containing_symbol="temporal.api.workflowservice.v1.WorkflowService")
            call = client.stream_stream(f"/{REFLECTION_SERVICES[0]}/ServerReflectionInfo")()
            await call.write(question.SerializeToString())
            data = await call.read()
            assert isinstance(data, bytes)
            await call.done_writing()
    answer = ServerReflectionResponse.FromString(data).file_descriptor_response
    files = [FileDescriptorProto.FromString(file) for file in answer.file_descriptor_proto]
    assert {name for file in files for name in file.dependency} <= {file.name for file in files}
    assert len(files) > 20
