"""Temporal's messages as JSON, as protobuf's JSON mapping has it, with payloads in short or long form.

Members are in the order of the API's declaration, and map entries are sorted by key, as Temporal's server writes them.
"""

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from struct import Struct
from typing import Any, cast

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from temporalio.api.common.v1 import Payload, Payloads

from fairlead.frontend.http.enums import with_full_names
from fairlead.frontend.http.payloads import NoShorthand, long_form, shorthand

# Levels of a request's JSON; deeper ones are refused, since they are parsed recursively.
DEPTH_MAX = 100

_PAYLOAD = Payload.DESCRIPTOR.full_name
_PAYLOADS = Payloads.DESCRIPTOR.full_name
_ANY = "google.protobuf.Any"
_FIELD = FieldDescriptor
_LONG_INTEGERS = frozenset(
    (_FIELD.TYPE_INT64, _FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED64, _FIELD.TYPE_SFIXED64, _FIELD.TYPE_SINT64)
)
# Packs a number as 32 bits.
_FLOAT = Struct("<f")
_AS_TEXT = frozenset(("google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask"))
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)
_STRUCTURES = frozenset(("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"))

_Write = Callable[[Any, bool], Any]


class InvalidJson(Exception):
    """A request's body is not the JSON of its message."""


def encode(message: Message, *, has_shorthand: bool, indent: int = 0) -> bytes:
    """Write a message as JSON, on one line or indented."""
    text = msgspec.json.encode(_writer(cast(Descriptor, message.DESCRIPTOR))(message, has_shorthand))
    return msgspec.json.format(text, indent=indent) if indent else text


def decode(body: bytes, message: Message) -> None:
    """Read a message from JSON with payloads in either form; raise `InvalidJson`, which says what is wrong."""
    try:
        value = msgspec.json.decode(body)
        if not isinstance(value, dict):
            raise InvalidJson("the body is not a JSON object")
        descriptor = cast(Descriptor, message.DESCRIPTOR)
        if _has_payloads(descriptor):
            value = _lengthened(descriptor, value, 0)
        before = type(message)()
        before.CopyFrom(message)
        try:
            json_format.ParseDict(value, message, max_recursion_depth=DEPTH_MAX)
        except json_format.ParseError:
            # Few clients send short names of enum values, so the body is searched for them only now.
            full = with_full_names(descriptor, value, DEPTH_MAX)
            if full == value:
                raise
            message.CopyFrom(before)
            json_format.ParseDict(full, message, max_recursion_depth=DEPTH_MAX)
    except msgspec.DecodeError as error:
        raise InvalidJson(f"the body is not JSON: {error}") from None
    except UnicodeDecodeError as error:
        raise InvalidJson(f"the body is not UTF-8: {error}") from None
    except (json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        # Keep the first line: the lines after it list every field of the message.
        raise InvalidJson(str(error).partition("\n")[0]) from None
    except RecursionError:
        raise InvalidJson(f"the body has more than {DEPTH_MAX} levels") from None


# Writing.


@cache
def _writer(descriptor: Descriptor) -> _Write:  # noqa: PLR0911 - one for each kind of message
    name = descriptor.full_name
    if name == _PAYLOAD:
        return _write_payload
    if name == _PAYLOADS:
        return _write_payloads
    if name in _AS_TEXT:
        return _write_text
    if name in _WRAPPERS:
        write = _value_writer(descriptor.fields_by_name["value"])
        return lambda message, has_shorthand: write(message.value, has_shorthand)
    if name in _STRUCTURES:
        return lambda message, _: json_format.MessageToDict(message)
    if name == _ANY:
        return _write_any
    return _message_writer(descriptor)


def _message_writer(descriptor: Descriptor) -> _Write:
    fields = descriptor.fields
    # Sort by the declaration: ListFields sorts by number, which rarely differs.
    is_sorted = [field.number for field in fields] == sorted(field.number for field in fields)
    writers: dict[int, tuple[str, _Write]] = {}

    def write(message: Any, has_shorthand: bool) -> dict[str, Any]:  # noqa: FBT001 - called for every message
        present = message.ListFields()
        if not is_sorted:
            present = sorted(present, key=_index)
        written: dict[str, Any] = {}
        for field, value in present:
            found = writers.get(field.number)
            if found is None:
                found = writers[field.number] = (field.json_name, _field_writer(field))
            written[found[0]] = found[1](value, has_shorthand)
        return written

    return write


def _index(field_and_value: tuple[FieldDescriptor, Any]) -> int:
    return field_and_value[0].index


def _field_writer(field: FieldDescriptor) -> _Write:
    if (entry := _entry_fields(field)) is not None:
        write_value, is_bool = _value_writer(entry["value"]), entry["key"].type == _FIELD.TYPE_BOOL

        def write_map(values: Any, has_shorthand: bool) -> dict[str, Any]:  # noqa: FBT001 - see above
            return {
                (str(key).lower() if is_bool else str(key)): write_value(values[key], has_shorthand)
                for key in sorted(values)
            }

        return write_map
    write = _value_writer(field)
    if field.is_repeated:
        return lambda values, has_shorthand: [write(value, has_shorthand) for value in values]
    return write


def _value_writer(field: FieldDescriptor) -> _Write:  # noqa: PLR0911 - one for each type
    kind = field.type
    if field.message_type is not None:
        return _writer(field.message_type)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda value, _: names.get(value, value)
    if kind in _LONG_INTEGERS:
        return lambda value, _: str(value)
    if kind == _FIELD.TYPE_BYTES:
        return lambda value, _: base64.b64encode(value).decode("ascii")
    if kind == _FIELD.TYPE_FLOAT:
        return lambda value, has_shorthand: _write_float(_shortest(value), has_shorthand)
    if kind == _FIELD.TYPE_DOUBLE:
        return _write_float
    return lambda value, _: value


def _write_float(value: float, _: bool) -> float | int | str:  # noqa: FBT001 - see above
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _shortest(value: float) -> float:
    """The number with the fewest digits that is the same in 32 bits: 0.1, not 0.10000000149011612."""
    if math.isfinite(value):
        packed = _FLOAT.pack(value)
        for digits in range(6, 9):
            shorter = float(f"{value:.{digits}g}")
            if abs(shorter) < 3.4e38 and _FLOAT.pack(shorter) == packed:
                return shorter
        return float(f"{value:.9g}")
    return value


def _write_text(message: Any, _: bool) -> str:  # noqa: FBT001 - see above
    return str(message.ToJsonString())


def _write_payload(payload: Payload, has_shorthand: bool) -> Any:  # noqa: FBT001 - see above
    if has_shorthand:
        try:
            return shorthand(payload)
        except NoShorthand:
            pass
    return _long_payload(payload, has_shorthand)


def _write_payloads(payloads: Payloads, has_shorthand: bool) -> Any:  # noqa: FBT001 - see above
    if has_shorthand and payloads.payloads:
        try:
            return [shorthand(payload) for payload in payloads.payloads]
        except NoShorthand:
            pass
    # At least one payload has no short form: write an object in which each payload has its short form if it has one.
    return (
        {"payloads": [_write_payload(payload, has_shorthand) for payload in payloads.payloads]}
        if payloads.payloads
        else {}
    )


def _write_any(message: Any, has_shorthand: bool) -> dict[str, Any]:  # noqa: FBT001 - see above
    url = message.type_url
    try:
        inner = GetMessageClass(Default().FindMessageTypeByName(url.rpartition("/")[2])).FromString(message.value)
    except (KeyError, DecodeError):
        # A type that this server does not know.
        return {"@type": url, "value": base64.b64encode(message.value).decode("ascii")}
    written = _writer(inner.DESCRIPTOR)(inner, has_shorthand)
    return {"@type": url, **(written if isinstance(written, dict) else {"value": written})}


_long_payload = _message_writer(Payload.DESCRIPTOR)


# Reading.


@cache
def _has_payloads(descriptor: Descriptor) -> bool:
    """Whether a message of this type can contain a payload, at any depth."""
    return any(found.full_name in {_PAYLOAD, _PAYLOADS} for found in _reachable(descriptor))


def _reachable(descriptor: Descriptor) -> Iterable[Descriptor]:
    seen: dict[str, Descriptor] = {}
    waiting = [descriptor]
    while waiting:
        one = waiting.pop()
        if one.full_name not in seen:
            seen[one.full_name] = one
            waiting += [field.message_type for field in one.fields if field.message_type is not None]
    return seen.values()


@cache
def _payload_fields(descriptor: Descriptor) -> dict[str, FieldDescriptor]:
    """Fields, by both of their names, below which there may be payloads."""
    fields = [field for field in descriptor.fields if field.message_type and _has_payloads(field.message_type)]
    return {name: field for field in fields for name in (field.name, field.json_name)}


def _lengthened(descriptor: Descriptor, value: Any, depth: int) -> Any:
    """The JSON of a message with every payload in its long form; values that don't fit the message stay unchanged."""
    if depth > DEPTH_MAX:
        raise InvalidJson(f"the body has more than {DEPTH_MAX} levels")
    if descriptor.full_name == _PAYLOAD:
        return long_form(value)
    if descriptor.full_name == _PAYLOADS and isinstance(value, list):
        return {"payloads": [long_form(one) for one in value]}
    if not isinstance(value, dict):
        return value
    fields = _payload_fields(descriptor)
    return {
        name: _lengthened_field(fields[name], member, depth) if name in fields else member
        for name, member in value.items()
    }


def _lengthened_field(field: FieldDescriptor, value: Any, depth: int) -> Any:
    below = field.message_type
    if below is None or (value is None and not field.is_repeated):
        return value
    if (entry := _entry_fields(field)) is not None:
        of_entry = entry["value"].message_type
        if of_entry is None or not isinstance(value, dict):
            return value
        return {key: _lengthened(of_entry, member, depth + 1) for key, member in value.items()}
    if field.is_repeated:
        return [_lengthened(below, one, depth + 1) for one in value] if isinstance(value, list) else value
    return _lengthened(below, value, depth + 1)


def _entry_fields(field: FieldDescriptor) -> Mapping[str, FieldDescriptor] | None:
    """The fields `key` and `value` of a map's entries; None if the field is not a map."""
    below = field.message_type
    return below.fields_by_name if below is not None and below.GetOptions().map_entry else None
