"""gRPC server reflection: tools such as grpcurl use it to list services and their messages."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError

from fairlead.rpc.call import Call
from fairlead.rpc.server import RpcServer
from fairlead.rpc.standard_messages import POOL, REFLECTION_PACKAGES, ServerReflectionRequest, ServerReflectionResponse
from fairlead.rpc.status import Code, RpcStatus

# Both versions have the same messages, so one handler serves both.
REFLECTION_SERVICES = tuple(f"{package}.ServerReflection" for package in REFLECTION_PACKAGES)


class Reflection:
    """Lists `services`, and describes every type in the descriptor pool and in that of gRPC's standard services."""

    def __init__(self, services: Iterable[str], *, pool: DescriptorPool | None = None) -> None:
        self._services = sorted({*services, *REFLECTION_SERVICES})
        self._pool = pool or Default()

    def add_to(self, server: RpcServer) -> None:
        """Register both versions of reflection with the server."""
        for service in REFLECTION_SERVICES:
            server.add_duplex(f"/{service}/ServerReflectionInfo", self._info)

    async def _info(self, requests: AsyncIterator[bytes], _: Call) -> AsyncIterator[bytes]:
        async for data in requests:
            try:
                request = ServerReflectionRequest.FromString(data)
            except DecodeError as error:
                raise RpcStatus(
                    Code.INVALID_ARGUMENT, f"the request is not a ServerReflectionRequest: {error}"
                ) from None
            response = self._response(request)
            response.valid_host = request.host
            response.original_request.CopyFrom(request)
            yield response.SerializeToString()

    def _response(self, request: Any) -> Any:
        pool = self._pool
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            services = [{"name": name} for name in self._services]
            return ServerReflectionResponse(list_services_response={"service": services})
        if kind == "file_by_filename":
            return _files(lambda pool: pool.FindFileByName(request.file_by_filename), pool)
        if kind == "file_containing_symbol":
            return _files(lambda pool: pool.FindFileContainingSymbol(request.file_containing_symbol), pool)
        if kind == "file_containing_extension":
            return _files(lambda pool: _file_of_extension(request.file_containing_extension, pool), pool)
        if kind == "all_extension_numbers_of_type":
            return self._extension_numbers(request.all_extension_numbers_of_type)
        return _error(Code.INVALID_ARGUMENT, "the request asks for nothing")

    def _extension_numbers(self, name: str) -> Any:
        try:
            extended = self._pool.FindMessageTypeByName(name)
        except KeyError:
            return _error(Code.NOT_FOUND, f"no message {name!r}")
        numbers = sorted(extension.number for extension in self._pool.FindAllExtensions(extended))
        return ServerReflectionResponse(
            all_extension_numbers_response={"base_type_name": name, "extension_number": numbers}
        )


def _file_of_extension(asked: Any, pool: DescriptorPool) -> FileDescriptor:
    extended = pool.FindMessageTypeByName(asked.containing_type)
    extension = pool.FindExtensionByNumber(extended, asked.extension_number)
    return pool.FindFileContainingSymbol(extension.full_name)


def _files(find: Callable[[DescriptorPool], FileDescriptor], pool: DescriptorPool) -> Any:
    """Response with the requested file and all its dependencies."""
    try:
        try:
            asked = find(pool)
        except KeyError:
            asked = find(POOL)
    except KeyError as error:
        return _error(Code.NOT_FOUND, f"not found: {error}")
    found = {asked.name: asked}
    unread = [asked]
    while unread:
        for dependency in unread.pop().dependencies:
            if dependency.name not in found:
                found[dependency.name] = dependency
                unread.append(dependency)
    files = [_serialized(file) for file in found.values()]
    return ServerReflectionResponse(file_descriptor_response={"file_descriptor_proto": files})


def _serialized(file: FileDescriptor) -> bytes:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto.SerializeToString()


def _error(code: Code, message: str) -> Any:
    return ServerReflectionResponse(error_response={"error_code": code, "error_message": message})
