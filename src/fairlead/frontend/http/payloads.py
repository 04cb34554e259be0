"""Payload shorthand of the HTTP API: a JSON payload is written as the value itself.

In a response, a JSON payload is written as its value, a null payload is null, and a payload of protobuf JSON is an
object with the member `_protoMessageType`. All other payloads keep the long form, with `metadata` and `data`.
`Payloads` is an array if each item has a short form. In a request all forms are accepted.
"""

import base64
import binascii
from typing import Any

import msgspec
from temporalio.api.common.v1 import Payload

TYPE_MEMBER = "_protoMessageType"

_ENCODING = "encoding"
_MESSAGE_TYPE = "messageType"
_NULL = b"binary/null"
_JSON = b"json/plain"
_PROTO_JSON = b"json/protobuf"
_LONG_FORM = {"metadata", "data"}


class NoShorthand(Exception):
    """A payload has no short form."""


def shorthand(payload: Payload) -> Any:
    """The short form of a payload; raises `NoShorthand`.

    JSON is embedded as it is, so that numbers keep all their digits.
    """
    metadata = payload.metadata
    encoding = metadata.get(_ENCODING)
    if encoding == _NULL:
        return None
    if encoding == _JSON and len(metadata) == 1:
        return msgspec.Raw(_compact(payload.data))
    if encoding == _PROTO_JSON and len(metadata) == 2 and metadata.get(_MESSAGE_TYPE):
        text = _compact(payload.data)
        if text.startswith(b"{"):
            member = msgspec.json.encode({TYPE_MEMBER: metadata[_MESSAGE_TYPE].decode("utf-8", "replace")})
            # Spliced: {"a":1} and {"_protoMessageType":"x"} become one object.
            return msgspec.Raw(member if text == b"{}" else text[:-1] + b"," + member[1:])
    raise NoShorthand


def long_form(value: Any) -> dict[str, Any]:
    """The long form of a payload in a request, as protobuf JSON has it; `value` is of either form."""
    if value is None:
        return {"metadata": {_ENCODING: _base64(_NULL)}}
    if isinstance(value, dict):
        if _is_long(value):
            return value
        kind = value.get(TYPE_MEMBER)
        if isinstance(kind, str):
            rest = {name: member for name, member in value.items() if name != TYPE_MEMBER}
            return {
                "metadata": {_ENCODING: _base64(_PROTO_JSON), _MESSAGE_TYPE: _base64(kind.encode())},
                "data": _base64(msgspec.json.encode(rest)),
            }
        if TYPE_MEMBER in value:
            raise ValueError(f'"{TYPE_MEMBER}" is not a string: give the name of a message')
    return {"metadata": {_ENCODING: _base64(_JSON)}, "data": _base64(msgspec.json.encode(value))}


def _is_long(value: dict[str, Any]) -> bool:
    metadata, data = value.get("metadata"), value.get("data")
    return (
        value.keys() == _LONG_FORM
        and isinstance(metadata, dict)
        and _ENCODING in metadata
        and all(_is_base64(text) for text in (data, *metadata.values()))
    )


def _is_base64(text: Any) -> bool:
    if not isinstance(text, str):
        return False
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


def _compact(data: bytes) -> bytes:
    try:
        data.decode()
        return msgspec.json.format(data, indent=-1)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        raise NoShorthand from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
