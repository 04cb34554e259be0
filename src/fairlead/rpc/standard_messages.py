"""Messages of gRPC's standard services, health and reflection, built from their published definitions.

The packages that have them (`grpcio-health-checking`, `grpcio-reflection`) need grpcio, which a server does not. The
descriptors have a pool of their own: another copy of these files in the process's default pool would clash with them.
"""

from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    EnumValueDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

HEALTH_PACKAGE: Final = "grpc.health.v1"
REFLECTION_PACKAGES: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_STRING = FieldDescriptorProto.TYPE_STRING
_BYTES = FieldDescriptorProto.TYPE_BYTES
_INT32 = FieldDescriptorProto.TYPE_INT32


def _field(
    name: str,
    number: int,
    kind: "FieldDescriptorProto.Type.ValueType | str",
    *,
    is_repeated: bool = False,
    in_oneof: bool = False,
) -> FieldDescriptorProto:
    """`kind` is a scalar type, or the full name of a message."""
    field = FieldDescriptorProto(
        name=name,
        number=number,
        label=FieldDescriptorProto.LABEL_REPEATED if is_repeated else FieldDescriptorProto.LABEL_OPTIONAL,
    )
    if isinstance(kind, str):
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{kind}"
    else:
        field.type = kind
    if in_oneof:
        field.oneof_index = 0
    return field


def _health() -> FileDescriptorProto:
    request, response = f".{HEALTH_PACKAGE}.HealthCheckRequest", f".{HEALTH_PACKAGE}.HealthCheckResponse"
    statuses = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
    status = FieldDescriptorProto(
        name="status",
        number=1,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_ENUM,
        type_name=f"{response}.ServingStatus",
    )
    values = [EnumValueDescriptorProto(name=name, number=number) for number, name in enumerate(statuses)]
    return FileDescriptorProto(
        name="grpc/health/v1/health.proto",
        package=HEALTH_PACKAGE,
        message_type=[
            DescriptorProto(name="HealthCheckRequest", field=[_field("service", 1, _STRING)]),
            DescriptorProto(
                name="HealthCheckResponse",
                field=[status],
                enum_type=[EnumDescriptorProto(name="ServingStatus", value=values)],
            ),
        ],
        service=[
            ServiceDescriptorProto(
                name="Health",
                method=[
                    MethodDescriptorProto(name="Check", input_type=request, output_type=response),
                    MethodDescriptorProto(
                        name="Watch", input_type=request, output_type=response, server_streaming=True
                    ),
                ],
            )
        ],
        syntax="proto3",
    )


def _reflection(package: str) -> FileDescriptorProto:
    request = DescriptorProto(
        name="ServerReflectionRequest",
        field=[
            _field("host", 1, _STRING),
            _field("file_by_filename", 3, _STRING, in_oneof=True),
            _field("file_containing_symbol", 4, _STRING, in_oneof=True),
            _field("file_containing_extension", 5, f"{package}.ExtensionRequest", in_oneof=True),
            _field("all_extension_numbers_of_type", 6, _STRING, in_oneof=True),
            _field("list_services", 7, _STRING, in_oneof=True),
        ],
        oneof_decl=[OneofDescriptorProto(name="message_request")],
    )
    response = DescriptorProto(
        name="ServerReflectionResponse",
        field=[
            _field("valid_host", 1, _STRING),
            _field("original_request", 2, f"{package}.ServerReflectionRequest"),
            _field("file_descriptor_response", 4, f"{package}.FileDescriptorResponse", in_oneof=True),
            _field("all_extension_numbers_response", 5, f"{package}.ExtensionNumberResponse", in_oneof=True),
            _field("list_services_response", 6, f"{package}.ListServiceResponse", in_oneof=True),
            _field("error_response", 7, f"{package}.ErrorResponse", in_oneof=True),
        ],
        oneof_decl=[OneofDescriptorProto(name="message_response")],
    )
    parts: dict[str, list[FieldDescriptorProto]] = {
        "ExtensionRequest": [_field("containing_type", 1, _STRING), _field("extension_number", 2, _INT32)],
        "FileDescriptorResponse": [_field("file_descriptor_proto", 1, _BYTES, is_repeated=True)],
        "ExtensionNumberResponse": [
            _field("base_type_name", 1, _STRING),
            _field("extension_number", 2, _INT32, is_repeated=True),
        ],
        "ListServiceResponse": [_field("service", 1, f"{package}.ServiceResponse", is_repeated=True)],
        "ServiceResponse": [_field("name", 1, _STRING)],
        "ErrorResponse": [_field("error_code", 1, _INT32), _field("error_message", 2, _STRING)],
    }
    method = MethodDescriptorProto(
        name="ServerReflectionInfo",
        input_type=f".{package}.ServerReflectionRequest",
        output_type=f".{package}.ServerReflectionResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return FileDescriptorProto(
        name=f"{package.replace('.', '/')}/reflection.proto",
        package=package,
        message_type=[
            request,
            response,
            *(DescriptorProto(name=name, field=fields) for name, fields in parts.items()),
        ],
        service=[ServiceDescriptorProto(name="ServerReflection", method=[method])],
        syntax="proto3",
    )


POOL: Final = DescriptorPool()
for _file in (_health(), *(_reflection(_package) for _package in REFLECTION_PACKAGES)):
    POOL.Add(_file)


def _message(name: str) -> Any:
    """Class of a message; protobuf creates it, so its fields have no static types."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


HealthCheckRequest: Final = _message(f"{HEALTH_PACKAGE}.HealthCheckRequest")
HealthCheckResponse: Final = _message(f"{HEALTH_PACKAGE}.HealthCheckResponse")
# Both versions of reflection have the same messages on the wire.
ServerReflectionRequest: Final = _message(f"{REFLECTION_PACKAGES[0]}.ServerReflectionRequest")
ServerReflectionResponse: Final = _message(f"{REFLECTION_PACKAGES[0]}.ServerReflectionResponse")
