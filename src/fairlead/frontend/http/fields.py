"""Sets fields of a request from strings: the variables of its path, and its query parameters.

A parameter is a dotted path of field names, in camel case or snake case; a repeated one appends. Unknown parameters are
ignored, as in Temporal's server; the error messages are the same, too.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

_FIELD = FieldDescriptor
_MAP_KEY = re.compile(r"([^\[\]]+)\[([^\[\]]*)\]")
_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_FALSE = frozenset(("0", "f", "F", "false", "FALSE", "False"))
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BITS = {
    _FIELD.TYPE_INT32: (32, True),
    _FIELD.TYPE_SINT32: (32, True),
    _FIELD.TYPE_SFIXED32: (32, True),
    _FIELD.TYPE_UINT32: (32, False),
    _FIELD.TYPE_FIXED32: (32, False),
    _FIELD.TYPE_INT64: (64, True),
    _FIELD.TYPE_SINT64: (64, True),
    _FIELD.TYPE_SFIXED64: (64, True),
    _FIELD.TYPE_UINT64: (64, False),
    _FIELD.TYPE_FIXED64: (64, False),
}
_FROM_TEXT = frozenset(("google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask"))
_WRAPPER = re.compile(r"google\.protobuf\.(Bool|U?Int(32|64)|Float|Double|String|Bytes)Value")

# Digits of an integer: more would only take time.
_DIGITS_MAX = 40


class InvalidField(Exception):
    """A value does not fit its field."""


def set_variables(message: Message, names: Sequence[str], values: Sequence[str]) -> None:
    """Set the fields that the variables of a path name; they win over the body."""
    for name, value in zip(names, values, strict=True):
        owner, field = _resolve(message, name.split("."))
        if field is not None:
            owner.ClearField(field.name)
            _set(owner, field, [value])


def set_parameters(message: Message, parameters: Iterable[tuple[str, str]], variables: Sequence[str]) -> None:
    """Set the fields that query parameters name, except those that the path's variables name."""
    values: dict[str, list[str]] = {}
    for name, value in parameters:
        values.setdefault(name, []).append(value)
    taken = {tuple(name.split(".")) for name in variables}
    for name, given in values.items():
        with_key = _MAP_KEY.fullmatch(name)
        path = _proto_names(_descriptor(message), (with_key[1] if with_key else name).split("."))
        if path is None or any(tuple(path[: len(one)]) == one for one in taken):
            continue
        owner, field = _resolve(message, path)
        if field is None:
            continue
        if with_key is not None:
            _set_entry(owner, field, with_key[2], given)
        else:
            _set(owner, field, given)


def _descriptor(message: Any) -> Descriptor:
    found: Descriptor = message.DESCRIPTOR
    return found


def _proto_names(descriptor: Descriptor, names: Sequence[str]) -> list[str] | None:
    """Field names of a dotted path as in the API's declaration; None if a field is unknown."""
    found: list[str] = []
    below: Descriptor | None = descriptor
    for name in names:
        field = None if below is None else _fields(below).get(name)
        if field is None:
            return None
        found.append(field.name)
        below = field.message_type
    return found


@cache
def _fields(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    return {name: field for field in descriptor.fields for name in (field.json_name, field.name)}


def _resolve(message: Any, path: Sequence[str]) -> tuple[Any, FieldDescriptor | None]:
    """The message that has the last field of a path, and that field; parents are created."""
    owner = message
    for name in path[:-1]:
        field = owner.DESCRIPTOR.fields_by_name.get(name)
        if field is None or field.message_type is None or field.is_repeated:
            raise InvalidField(f'invalid path: "{name}" is not a message')
        owner = getattr(owner, name)
    return owner, owner.DESCRIPTOR.fields_by_name.get(path[-1])


def _set(owner: Any, field: FieldDescriptor, values: Sequence[str]) -> None:
    if field.is_repeated:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            raise InvalidField(f'parsing field "{field.name}": write {field.name}[key]=value')
        for value in values:
            if field.message_type is not None:
                getattr(owner, field.name).add().CopyFrom(_parsed(field, value))
            else:
                getattr(owner, field.name).append(_parsed(field, value))
        return
    if len(values) > 1:
        raise InvalidField(f'too many values for field "{field.name}": {", ".join(values)}')
    value = _parsed(field, values[0])
    if field.containing_oneof is not None and owner.WhichOneof(field.containing_oneof.name) not in {None, field.name}:
        raise InvalidField(f'field already set for oneof "{field.containing_oneof.name}"')
    if field.message_type is not None:
        getattr(owner, field.name).CopyFrom(value)
    else:
        setattr(owner, field.name, value)


def _set_entry(owner: Any, field: FieldDescriptor, key: str, values: Sequence[str]) -> None:
    if field.message_type is None or not field.message_type.GetOptions().map_entry:
        raise InvalidField(f'parsing field "{field.name}": it is not a map')
    if len(values) > 1:
        raise InvalidField(f'too many values for field "{field.name}": {", ".join(values)}')
    entry = field.message_type.fields_by_name
    parsed_key, value = _parsed(entry["key"], key), _parsed(entry["value"], values[0])
    if entry["value"].message_type is not None:
        getattr(owner, field.name)[parsed_key].CopyFrom(value)
    else:
        getattr(owner, field.name)[parsed_key] = value


def _parsed(field: FieldDescriptor, text: str) -> Any:
    try:
        return _value(field, text)
    except ValueError as error:
        raise InvalidField(f'parsing field "{field.name}": {error}') from None


def _value(field: FieldDescriptor, text: str) -> Any:  # noqa: PLR0911 - one for each type
    kind = field.type
    if kind == _FIELD.TYPE_STRING:
        # This raises an error for surrogates: bytes that were percent-encoded but are not UTF-8.
        text.encode()
        return text
    if kind == _FIELD.TYPE_BOOL:
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise ValueError(f'strconv.ParseBool: parsing "{text}": invalid syntax')
    if kind in _BITS:
        return _integer(text, *_BITS[kind])
    if field.enum_type is not None:
        return _enum(field.enum_type, text)
    if kind == _FIELD.TYPE_BYTES:
        return _bytes(text)
    if field.message_type is not None:
        return _message(field.message_type, text)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f'strconv.ParseFloat: parsing "{text}": invalid syntax') from None


def _message(descriptor: Descriptor, text: str) -> Message:
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - few requests need it

    message = GetMessageClass(descriptor)()
    name = descriptor.full_name
    if name in _FROM_TEXT:
        try:
            json_format.ParseDict(text, message)  # type: ignore[arg-type] # These types are strings in JSON.
        except json_format.ParseError as error:
            raise ValueError(str(error)) from None
        return message
    if _WRAPPER.fullmatch(name):
        message.value = _value(descriptor.fields_by_name["value"], text)  # type: ignore[attr-defined]
        return message
    raise ValueError(f'unsupported message type: "{name}"')


def _integer(text: str, bits: int, is_signed: bool) -> int:  # noqa: FBT001 - from the table above
    call = "strconv.ParseInt" if is_signed else "strconv.ParseUint"
    if not _INTEGER.fullmatch(text) or (not is_signed and not text[0].isdigit()):
        raise ValueError(f'{call}: parsing "{text}": invalid syntax')
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    value = int(text) if len(text) <= _DIGITS_MAX else high + 1
    if not low <= value <= high:
        raise ValueError(f'{call}: parsing "{text}": value out of range')
    return value


def _enum(descriptor: EnumDescriptor, text: str) -> int:
    named = descriptor.values_by_name.get(text)
    if named is not None:
        return named.number
    if _INTEGER.fullmatch(text) and len(text) <= _DIGITS_MAX and int(text) in descriptor.values_by_number:
        return int(text)
    raise ValueError(f'"{text}" is not a valid value')


def _bytes(text: str) -> bytes:
    standard = text.replace("-", "+").replace("_", "/")
    # The request had a "+" that was not percent-encoded, so it was decoded to a space.
    standard = standard.replace(" ", "+")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except binascii.Error:
        raise ValueError("illegal base64 data: write base64, with every + as %2B") from None
