"""Outlines of events for the journal: payloads without their data, headers without their values."""

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from temporalio.api.common.v1 import Callback, Payload
from temporalio.api.history.v1 import HistoryEvent

# Metadata key for the number of bytes that the data of an outlined payload had.
SIZE_KEY = "fairlead-data-bytes"

_PAYLOAD = Payload.DESCRIPTOR.full_name
_INTERNAL_CALLBACK = Callback.Internal.DESCRIPTOR.full_name
# Fields that map names of Nexus headers to values, which may be credentials.
_HEADERS = frozenset(("header", "nexus_header"))


def outline_event(event: HistoryEvent) -> None:
    """Remove the data of all payloads of an event, in place; metadata and sizes stay."""
    _outline(event)


def _outline(message: Any) -> None:
    descriptor = cast(Descriptor, message.DESCRIPTOR)
    if descriptor.full_name == _PAYLOAD:
        _outline_payload(message)
        return
    if descriptor.full_name == _INTERNAL_CALLBACK:
        message.ClearField("data")
        return
    below = _fields_below(descriptor)
    for field, value in message.ListFields():
        if field.number not in below:
            continue
        if _is_text_map(field):
            for name in value:
                value[name] = ""
        else:
            for one in _messages(field, value):
                _outline(one)


def _outline_payload(payload: Payload) -> None:
    payload.metadata[SIZE_KEY] = str(len(payload.data)).encode()
    payload.ClearField("data")


def _messages(field: FieldDescriptor, value: Any) -> Iterable[Any]:
    if _is_map(field):
        return cast(Iterable[Any], value.values())
    return cast(Iterable[Any], value) if field.is_repeated else (value,)


@cache
def _fields_below(descriptor: Descriptor) -> frozenset[int]:
    """Numbers of the fields that may contain payload data or header values."""
    return frozenset(field.number for field in descriptor.fields if _leads_to_data(field))


@cache
def _leads_to_data(field: FieldDescriptor) -> bool:
    if _is_text_map(field):
        return True
    seen: set[str] = set()
    waiting = [field.message_type]
    while waiting:
        one = waiting.pop()
        if one is None or one.full_name in seen:
            continue
        seen.add(one.full_name)
        if one.full_name in {_PAYLOAD, _INTERNAL_CALLBACK} or any(_is_text_map(inner) for inner in one.fields):
            return True
        waiting += [inner.message_type for inner in one.fields]
    return False


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


@cache
def _is_text_map(field: FieldDescriptor) -> bool:
    entry = field.message_type
    if entry is None or not _is_map(field) or field.name not in _HEADERS:
        return False
    return entry.fields_by_name["value"].message_type is None
