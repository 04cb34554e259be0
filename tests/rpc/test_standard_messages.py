"""Our messages for health checks and reflection have the same fields as those of grpcio's packages."""

import pytest
from google.protobuf.descriptor import Descriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fairlead.rpc.standard_messages import POOL, REFLECTION_PACKAGES

# The package has a method that is not here yet.
NOT_OURS = {"HealthListRequest", "HealthListResponse"}


def shape(message: Descriptor) -> list[object]:
    return [
        (
            field.name,
            field.number,
            field.type,
            field.is_repeated,
            field.containing_oneof and field.containing_oneof.name,
        )
        for field in message.fields
    ]


def theirs() -> list[tuple[str, Descriptor]]:
    found = [(f"grpc.health.v1.{name}", each) for name, each in health_pb2.DESCRIPTOR.message_types_by_name.items()]
    for package in REFLECTION_PACKAGES:
        messages = reflection_pb2.DESCRIPTOR.message_types_by_name
        found += [(f"{package}.{name}", each) for name, each in messages.items()]
    return [(name, each) for name, each in found if each.name not in NOT_OURS]


@pytest.mark.parametrize(("name", "message"), theirs())
def test_a_message_has_the_published_fields(name: str, message: Descriptor) -> None:
    ours = POOL.FindMessageTypeByName(name)
    assert shape(ours) == shape(message)
    for field, other in zip(ours.fields, message.fields, strict=True):
        if other.message_type is not None:
            assert field.message_type is not None
            assert field.message_type.name == other.message_type.name
        if other.enum_type is not None:
            assert field.enum_type is not None
            values = {value.name: value.number for value in other.enum_type.values}
            assert {value.name: value.number for value in field.enum_type.values} == values


@pytest.mark.parametrize("package", REFLECTION_PACKAGES)
def test_the_services_are_described(package: str) -> None:
    method = POOL.FindServiceByName(f"{package}.ServerReflection").methods_by_name["ServerReflectionInfo"]
    assert method.client_streaming
    assert method.server_streaming
    assert {"Check", "Watch"} == set(POOL.FindServiceByName("grpc.health.v1.Health").methods_by_name)
