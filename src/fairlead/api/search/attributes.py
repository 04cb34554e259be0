"""Search attributes: conversion between payloads in requests and values in visibility rows."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from temporalio.api.common.v1 import Payload, SearchAttributes

from fairlead.api.namespaces import Namespace
from fairlead.api.search.literals import format_time, number_text, parse_time
from fairlead.api.search.names import (
    BOOL,
    DATETIME,
    DOUBLE,
    INT,
    KEYWORD,
    KEYWORD_LIST,
    SET_BY_SERVER,
    TEXT,
    TYPE_NAMES,
    type_of,
)
from fairlead.core.errors import FixRequest
from fairlead.storage.visibility import INT64_MAX, SearchValue, Text

# Temporal's default limits.
ATTRIBUTES_MAX = 100
VALUE_BYTES_MAX = 2 * 1024
TOTAL_BYTES_MAX = 40 * 1024

_ENCODING: Final = "encoding"
_TYPE: Final = "type"
_JSON: Final = b"json/plain"
_NULL: Final = b"binary/null"
_BINARY: Final = b"binary/plain"
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class WrongValue(FixRequest):
    """A payload is not a value of its attribute's type; the message shows the value."""


def problem_of(search_attributes: SearchAttributes, namespace: Namespace) -> str | None:
    """The problem with search attributes that a client sets, in Temporal's words; None if they are valid."""
    return value_problem_of(search_attributes, namespace) or size_problem_of(search_attributes)


def value_problem_of(search_attributes: SearchAttributes, namespace: Namespace) -> str | None:
    """The problem with the number of attributes, their names or their values; None if they are valid."""
    fields = search_attributes.indexed_fields
    for name in fields:
        if type_of(name, namespace.search_attributes) is None:
            return f"Namespace {namespace.name} has no mapping defined for search attribute {name}"
    if len(fields) > ATTRIBUTES_MAX:
        return f"number of search attributes {len(fields)} exceeds limit {ATTRIBUTES_MAX}"
    for name, payload in fields.items():
        problem = _value_problem(name, payload, namespace.search_attributes)
        if problem is not None:
            return problem
    return None


def size_problem_of(search_attributes: SearchAttributes) -> str | None:
    """The problem with the sizes of the attributes; None if they are valid."""
    for name, payload in search_attributes.indexed_fields.items():
        if len(payload.data) > VALUE_BYTES_MAX:
            return f"search attribute {name} value size {len(payload.data)} exceeds size limit {VALUE_BYTES_MAX}"
    size = search_attributes.ByteSize()
    if size > TOTAL_BYTES_MAX:
        return f"total size of search attributes {size} exceeds size limit {TOTAL_BYTES_MAX}"
    return None


def add_types(search_attributes: SearchAttributes, namespace: Namespace) -> None:
    """Add the type to each payload's metadata: readers of the history expect it."""
    for name, payload in search_attributes.indexed_fields.items():
        type_number = type_of(name, namespace.search_attributes)
        if type_number is not None and _TYPE not in payload.metadata:
            payload.metadata[_TYPE] = TYPE_NAMES[type_number].encode()


def _value_problem(name: str, payload: Payload, custom: Mapping[str, int]) -> str | None:
    if name in SET_BY_SERVER:
        return f"{name} attribute can't be set in SearchAttributes"
    type_number = type_of(name, custom)
    assert type_number is not None  # noqa: S101 - looked up before
    try:
        to_value(payload, type_number)
    except WrongValue as wrong:
        return f"invalid value for search attribute {name} of type {TYPE_NAMES[type_number]}: {wrong}"
    return None


def to_value(payload: Payload, type_number: int) -> SearchValue | None:
    """The value in a payload, None for null; raises `WrongValue` for another type.

    The type in the payload's own metadata is ignored, as in the reference server.
    """
    decoded = _decoded(payload)
    if decoded is None or decoded == []:
        return None
    # A list with one element counts as the element.
    single = decoded[0] if isinstance(decoded, list) and len(decoded) == 1 and type_number != KEYWORD_LIST else decoded
    value = _CONVERTERS[type_number](single)
    if value is None:
        raise WrongValue(_shown(decoded))
    return value


def to_payload(value: SearchValue, type_number: int) -> Payload:
    """Encode a value as a payload."""
    plain: object = value
    if type_number == DATETIME and isinstance(value, int):
        plain = format_time(value)
    elif isinstance(value, Text):
        plain = str(value)
    elif isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        plain = int(value)
    return Payload(metadata={_ENCODING: _JSON, _TYPE: TYPE_NAMES[type_number].encode()}, data=_encode(plain))


def custom_values(payloads: Mapping[str, Payload], custom: Mapping[str, int]) -> dict[str, SearchValue]:
    """The values to search by, without values whose attribute was removed or got another type."""
    values: dict[str, SearchValue] = {}
    for name, payload in payloads.items():
        type_number = type_of(name, custom)
        if type_number is None:
            continue
        try:
            value = to_value(payload, type_number)
        except WrongValue:
            continue
        if value is not None:
            values[name] = value
    return values


def custom_payloads(values: Mapping[str, SearchValue], custom: Mapping[str, int]) -> dict[str, Payload]:
    """The values of a visibility row as payloads, for lists."""
    types = {name: type_of(name, custom) for name in values}
    return {name: to_payload(values[name], number) for name, number in types.items() if number is not None}


def _decoded(payload: Payload) -> object:
    encoding = payload.metadata.get(_ENCODING, b"")
    if encoding == _NULL:
        return None
    if encoding == _BINARY:
        raise WrongValue(_shown(list(payload.data)))
    try:
        if encoding == _JSON:
            return _decode(payload.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    data = payload.data.decode(errors="backslashreplace")
    metadata = f'metadata:{{key:"{_ENCODING}"  value:"{encoding.decode(errors="replace")}"}}  ' if encoding else ""
    raise WrongValue(f'value from <{metadata}data:"{data}">')


def _keyword(value: object) -> str | None:
    if not isinstance(value, str) or "\0" in value:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def _text(value: object) -> Text | None:
    keyword = _keyword(value)
    return None if keyword is None else Text(keyword)


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -INT64_MAX <= value <= INT64_MAX else None


def _double(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _time(value: object) -> int | None:
    return parse_time(value) if isinstance(value, str) else None


def _keyword_list(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    keywords = [_keyword(one) for one in value]
    return None if None in keywords else tuple(keyword for keyword in keywords if keyword is not None)


_CONVERTERS: Final[dict[int, Callable[[object], SearchValue | None]]] = {
    TEXT: _text,
    KEYWORD: _keyword,
    INT: _integer,
    DOUBLE: _double,
    BOOL: _truth,
    DATETIME: _time,
    KEYWORD_LIST: _keyword_list,
}


def _shown(value: object) -> str:
    """A value in the format of Temporal's messages."""
    if isinstance(value, list):
        return f"[{' '.join(map(_shown, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{_shown(value[key])}' for key in sorted(value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "<nil>"
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return number_text(float(value)) if abs(value) < 10**300 else str(value)[:20]
    return number_text(value) if isinstance(value, int | float) else str(value)
