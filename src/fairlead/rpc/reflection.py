"""Server reflection, by which tools such as grpcurl learn the services of a server and their messages."""

from collections.abc import AsyncIterator, Callable, Iterable

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha.reflection_pb2 import (
    ErrorResponse,
    ExtensionNumberResponse,
    FileDescriptorResponse,
    ListServiceResponse,
    ServerReflectionRequest,
    ServerReflectionResponse,
    ServiceResponse,
)

from fairlead.rpc.call import Call
from fairlead.rpc.server import RpcServer
from fairlead.rpc.status import Code, RpcStatus

# The two differ in nothing but their names, so one set of messages serves both.
REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class Reflection:
    """Tells of `services`, and of whatever else the descriptor pool knows."""

    def __init__(self, services: Iterable[str], *, pool: DescriptorPool | None = None) -> None:
        self._services = sorted({*services, *REFLECTION_SERVICES})
        self._pool = pool or Default()

    def add_to(self, server: RpcServer) -> None:
        """Answer there, in both versions."""
        for service in REFLECTION_SERVICES:
            server.add_duplex(f"/{service}/ServerReflectionInfo", self._info)

    async def _info(self, requests: AsyncIterator[bytes], _: Call) -> AsyncIterator[bytes]:
        async for data in requests:
            try:
                request = ServerReflectionRequest.FromString(data)
            except DecodeError as error:
                raise RpcStatus(Code.INVALID_ARGUMENT, f"this is no ServerReflectionRequest: {error}") from None
            response = self._response(request)
            response.valid_host = request.host
            response.original_request.CopyFrom(request)
            yield response.SerializeToString()

    def _response(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        pool = self._pool
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            services = [ServiceResponse(name=name) for name in self._services]
            return ServerReflectionResponse(list_services_response=ListServiceResponse(service=services))
        if kind == "file_by_filename":
            return _files(lambda: pool.FindFileByName(request.file_by_filename))
        if kind == "file_containing_symbol":
            return _files(lambda: pool.FindFileContainingSymbol(request.file_containing_symbol))
        if kind == "file_containing_extension":
            return _files(lambda: self._file_of_extension(request))
        if kind == "all_extension_numbers_of_type":
            return self._extension_numbers(request.all_extension_numbers_of_type)
        return _error(Code.INVALID_ARGUMENT, "the request asks for nothing")

    def _file_of_extension(self, request: ServerReflectionRequest) -> FileDescriptor:
        asked = request.file_containing_extension
        extended = self._pool.FindMessageTypeByName(asked.containing_type)
        extension = self._pool.FindExtensionByNumber(extended, asked.extension_number)
        return self._pool.FindFileContainingSymbol(extension.full_name)

    def _extension_numbers(self, name: str) -> ServerReflectionResponse:
        try:
            extended = self._pool.FindMessageTypeByName(name)
        except KeyError:
            return _error(Code.NOT_FOUND, f"no message {name!r}")
        numbers = sorted(extension.number for extension in self._pool.FindAllExtensions(extended))
        return ServerReflectionResponse(
            all_extension_numbers_response=ExtensionNumberResponse(base_type_name=name, extension_number=numbers)
        )


def _files(find: Callable[[], FileDescriptor]) -> ServerReflectionResponse:
    """The file that was asked for, and all that it builds on."""
    try:
        asked = find()
    except KeyError as error:
        return _error(Code.NOT_FOUND, f"not found: {error}")
    found = {asked.name: asked}
    unread = [asked]
    while unread:
        for dependency in unread.pop().dependencies:
            if dependency.name not in found:
                found[dependency.name] = dependency
                unread.append(dependency)
    return ServerReflectionResponse(
        file_descriptor_response=FileDescriptorResponse(
            file_descriptor_proto=[_serialized(file) for file in found.values()]
        )
    )


def _serialized(file: FileDescriptor) -> bytes:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto.SerializeToString()


def _error(code: Code, message: str) -> ServerReflectionResponse:
    return ServerReflectionResponse(error_response=ErrorResponse(error_code=code, error_message=message))
