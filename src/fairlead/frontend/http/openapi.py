"""Descriptions of the HTTP API for tools, OpenAPI 3 and Swagger 2, made from the API's descriptors."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from fairlead import __version__
from fairlead.frontend.http.bindings import Binding

TITLE = "Temporal's API, served by Fairlead"

_FIELD = FieldDescriptor
_SCALARS: dict[int, dict[str, Any]] = {
    _FIELD.TYPE_BOOL: {"type": "boolean"},
    _FIELD.TYPE_STRING: {"type": "string"},
    _FIELD.TYPE_BYTES: {"type": "string", "format": "byte"},
    _FIELD.TYPE_DOUBLE: {"type": "number", "format": "double"},
    _FIELD.TYPE_FLOAT: {"type": "number", "format": "float"},
    _FIELD.TYPE_INT32: {"type": "integer", "format": "int32"},
    _FIELD.TYPE_UINT32: {"type": "integer", "format": "int64"},
    _FIELD.TYPE_INT64: {"type": "string", "format": "int64"},
    _FIELD.TYPE_UINT64: {"type": "string", "format": "uint64"},
}
_WELL_KNOWN: dict[str, dict[str, Any]] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"},
    "google.protobuf.FieldMask": {"type": "string"},
    "google.protobuf.BoolValue": {"type": "boolean"},
    "google.protobuf.Struct": {"type": "object"},
    "google.protobuf.Any": {
        "type": "object",
        "properties": {"@type": {"type": "string"}},
        "additionalProperties": {},
    },
    # Both forms are accepted: the value itself, or an object with metadata and data.
    "temporal.api.common.v1.Payload": {},
}
_STATUS = "temporal.api.common.v1.GrpcStatus"
# Levels of nested messages whose fields are listed as query parameters.
_PARAMETER_DEPTH_MAX = 3


def openapi_yaml(bindings: Sequence[Binding]) -> bytes:
    """The OpenAPI 3 document."""
    schemas = _Schemas("#/components/schemas/")
    document = {
        "openapi": "3.0.3",
        "info": {"title": TITLE, "version": __version__},
        "paths": _paths(bindings, schemas, _operation_3),
        "components": {"schemas": schemas.collect()},
    }
    return "".join(_yaml(document, "")).encode()


def swagger_json(bindings: Sequence[Binding]) -> bytes:
    """The Swagger 2 document."""
    schemas = _Schemas("#/definitions/")
    document = {
        "swagger": "2.0",
        "info": {"title": TITLE, "version": __version__},
        "consumes": ["application/json"],
        "produces": ["application/json"],
        "paths": _paths(bindings, schemas, _operation_2),
        "definitions": schemas.collect(),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


class _Schemas:
    """The schemas of all messages to which a document refers."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._wanted: dict[str, Descriptor | EnumDescriptor] = {}

    def of(self, descriptor: Descriptor) -> dict[str, Any]:
        """Schema of a message: a reference, or the schema itself for types that have a JSON form of their own."""
        name = descriptor.full_name
        if name in _WELL_KNOWN:
            return _WELL_KNOWN[name]
        self._wanted.setdefault(name, descriptor)
        return {"$ref": self._prefix + name}

    def of_field(self, field: FieldDescriptor) -> dict[str, Any]:
        """Schema of a field."""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return {
                "type": "object",
                "additionalProperties": self._of_value(field.message_type.fields_by_name["value"]),
            }
        value = self._of_value(field)
        return {"type": "array", "items": value} if field.is_repeated else value

    def status(self) -> dict[str, Any]:
        """Schema of an error."""
        from temporalio.api.common.v1 import GrpcStatus  # noqa: PLC0415 - few servers are asked for this document

        return self.of(GrpcStatus.DESCRIPTOR)

    def collect(self) -> dict[str, Any]:
        """All schemas by name, with those to which they refer."""
        made: dict[str, Any] = {}
        while waiting := [name for name in self._wanted if name not in made]:
            for name in waiting:
                found = self._wanted[name]
                made[name] = self._enum(found) if isinstance(found, EnumDescriptor) else self._object(found)
        return dict(sorted(made.items()))

    def _of_value(self, field: FieldDescriptor) -> dict[str, Any]:
        if field.enum_type is not None:
            self._wanted.setdefault(field.enum_type.full_name, field.enum_type)
            return {"$ref": self._prefix + field.enum_type.full_name}
        if field.message_type is not None:
            return self.of(field.message_type)
        return _SCALARS.get(field.type, {"type": "integer"})

    def _object(self, descriptor: Descriptor) -> dict[str, Any]:
        properties = {field.json_name: self.of_field(field) for field in descriptor.fields}
        return {"type": "object", "properties": properties} if properties else {"type": "object"}

    def _enum(self, descriptor: EnumDescriptor) -> dict[str, Any]:
        return {"type": "string", "enum": [value.name for value in descriptor.values]}


def _paths(bindings: Iterable[Binding], schemas: _Schemas, operation: Any) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    uses: dict[str, int] = {}
    for binding in bindings:
        uses[binding.method.name] = count = uses.get(binding.method.name, 0) + 1
        operation_id = binding.method.name + ("" if count == 1 else str(count))
        made: dict[str, Any] = {"tags": [binding.method.containing_service.name], "operationId": operation_id}
        made |= operation(binding, schemas)
        if binding.method.GetOptions().deprecated:
            made["deprecated"] = True
        paths.setdefault(binding.template, {})[binding.verb.lower()] = made
    return dict(sorted(paths.items()))


def _operation_3(binding: Binding, schemas: _Schemas) -> dict[str, Any]:
    def content(schema: dict[str, Any]) -> dict[str, Any]:
        return {"application/json": {"schema": schema}}

    made: dict[str, Any] = {
        "parameters": [
            {"name": name, "in": place, "required": place == "path", "schema": schema}
            for name, place, schema in _parameters(binding, schemas)
        ]
    }
    if binding.has_body:
        made["requestBody"] = {"required": True, "content": content(schemas.of(binding.method.input_type))}
    made["responses"] = {
        "200": {"description": "The response", "content": content(schemas.of(binding.method.output_type))},
        "default": {"description": "An error", "content": content(schemas.status())},
    }
    return made


def _operation_2(binding: Binding, schemas: _Schemas) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = []
    for name, place, schema in _parameters(binding, schemas):
        # Swagger 2 has no references in parameters that are not bodies.
        kind = schema if "$ref" not in schema else {"type": "string"}
        if kind.get("type") == "array":
            items = kind["items"] if "$ref" not in kind["items"] else {"type": "string"}
            kind = {"type": "array", "items": items, "collectionFormat": "multi"}
        parameters.append({"name": name, "in": place, "required": place == "path", **kind})
    if binding.has_body:
        parameters.append(
            {"name": "body", "in": "body", "required": True, "schema": schemas.of(binding.method.input_type)}
        )
    return {
        "parameters": parameters,
        "responses": {
            "200": {"description": "The response", "schema": schemas.of(binding.method.output_type)},
            "default": {"description": "An error", "schema": schemas.status()},
        },
    }


def _parameters(binding: Binding, schemas: _Schemas) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Name, place and schema of each parameter in the path and the query."""
    for name in binding.variables:
        yield name, "path", {"type": "string"}
    if not binding.has_body:
        taken = set(binding.variables)
        for (name, json_name), field in _leaves(binding.method.input_type, "", "", 0):
            if name not in taken:
                yield json_name, "query", schemas.of_field(field)


def _leaves(
    descriptor: Descriptor, prefix: str, json_prefix: str, depth: int
) -> Iterable[tuple[tuple[str, str], FieldDescriptor]]:
    """Fields that a query parameter can set, with their dotted names in snake case and in camel case."""
    for field in descriptor.fields:
        names = (prefix + field.name, json_prefix + field.json_name)
        below = field.message_type
        if below is None or (below.full_name in _WELL_KNOWN and _WELL_KNOWN[below.full_name].get("type") != "object"):
            if below is None or _WELL_KNOWN[below.full_name]:
                yield names, field
        elif not field.is_repeated and depth < _PARAMETER_DEPTH_MAX and below.full_name not in _WELL_KNOWN:
            yield from _leaves(below, names[0] + ".", names[1] + ".", depth + 1)


def _yaml(value: Any, margin: str) -> Iterable[str]:
    """YAML in block style; strings are quoted as in JSON, which YAML also accepts."""
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield f"{margin}{_scalar(name)}:"
            yield from _below(member, margin)
    elif isinstance(value, list) and value:
        for item in value:
            yield f"{margin}-"
            yield from _below(item, margin)
    else:
        yield f"{margin}{_scalar(value)}\n"


def _below(value: Any, margin: str) -> Iterable[str]:
    if isinstance(value, dict | list) and value:
        yield "\n"
        yield from _yaml(value, margin + "  ")
    else:
        yield f" {_scalar(value)}\n"


def _scalar(value: Any) -> str:
    return msgspec.json.encode(value).decode()
