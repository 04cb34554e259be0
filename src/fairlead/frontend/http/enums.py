"""Short names of enum values in JSON, which Temporal's web pages send: Skip for SCHEDULE_OVERLAP_POLICY_SKIP."""

import re
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

# Where a word begins within a short name, such as BufferOne.
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def with_full_names(descriptor: Descriptor, value: Any, depth_max: int) -> Any:
    """The JSON of a message with the full names of enum values; unknown names and deeper levels stay as they are."""
    if not isinstance(value, dict) or depth_max <= 0:
        return value
    fields = _fields(descriptor)
    return {
        name: _field(fields[name], member, depth_max - 1) if name in fields else member
        for name, member in value.items()
    }


def _field(field: FieldDescriptor, value: Any, depth_max: int) -> Any:
    below = field.message_type
    if below is not None and below.GetOptions().map_entry:
        entry = below.fields_by_name["value"]
        return {key: _one(entry, one, depth_max) for key, one in value.items()} if isinstance(value, dict) else value
    if field.is_repeated:
        return [_one(field, one, depth_max) for one in value] if isinstance(value, list) else value
    return _one(field, value, depth_max)


def _one(field: FieldDescriptor, value: Any, depth_max: int) -> Any:
    if field.message_type is not None:
        return with_full_names(field.message_type, value, depth_max)
    if field.enum_type is not None and isinstance(value, str):
        return _full_name(field.enum_type, value)
    return value


def _full_name(descriptor: EnumDescriptor, name: str) -> str:
    full = f"{_upper(descriptor.name)}_{_upper(name)}"
    return full if name not in descriptor.values_by_name and full in descriptor.values_by_name else name


def _upper(name: str) -> str:
    return _WORD.sub("_", name).upper()


@cache
def _fields(descriptor: Descriptor) -> dict[str, FieldDescriptor]:
    """Fields, by both of their names, that are enums or messages."""
    fields = [field for field in descriptor.fields if field.enum_type is not None or field.message_type is not None]
    return {name: field for field in fields for name in (field.name, field.json_name)}
