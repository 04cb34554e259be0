"""Payloads as they are shown: JSON as text, other encodings for a codec server."""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct
from temporalio.api.common.v1 import Payload, Payloads

from fairlead.http import HttpFault

# Characters of one payload on a page.
SHOWN_CHARACTERS_MAX: Final = 20_000

# Arguments of one signal, update or query.
ARGUMENTS_MAX: Final = 100

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_ENCODING: Final = "encoding"
_JSON: Final = frozenset(("json/plain", "json/protobuf"))
_NULL: Final = "binary/null"
_PLAIN: Final = "binary/plain"


class ShownPayload(Struct, frozen=True):
    """A payload: its text, or its size and its message for a codec server if it is encoded."""

    encoding: str
    text: str
    is_cut: bool = False
    # The payload as JSON of protobuf, which a codec server takes; empty if the text is readable.
    encoded: str = ""


def shown(payload: Payload) -> ShownPayload:
    """A payload for people."""
    encoding = payload.metadata.get(_ENCODING, b"").decode("utf-8", "replace")
    if encoding == _NULL:
        return ShownPayload(encoding, "null")
    if encoding in _JSON:
        try:
            text = msgspec.json.format(payload.data, indent=2).decode()
            if text.startswith('"') and "\\n" in text:
                # A text of several lines, such as a stack trace, is read more easily without quotes and escapes.
                text = str(msgspec.json.decode(payload.data))
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = payload.data.decode("utf-8", "replace")
        return ShownPayload(encoding, text[:SHOWN_CHARACTERS_MAX], len(text) > SHOWN_CHARACTERS_MAX)
    if encoding == _PLAIN and not payload.metadata.get("messageType"):
        return ShownPayload(encoding, f"{len(payload.data)} bytes")
    if len(payload.data) > SHOWN_CHARACTERS_MAX:
        return ShownPayload(encoding or "unknown", f"{len(payload.data)} encoded bytes")
    message = {
        "metadata": {name: base64.b64encode(value).decode() for name, value in payload.metadata.items()},
        "data": base64.b64encode(payload.data).decode(),
    }
    text = f"{len(payload.data)} encoded bytes"
    return ShownPayload(encoding or "unknown", text, encoded=msgspec.json.encode(message).decode())


def all_shown(payloads: Payloads | Iterable[Payload]) -> list[ShownPayload]:
    """Several payloads as they are shown."""
    return [shown(one) for one in (payloads.payloads if isinstance(payloads, Payloads) else payloads)]


def named(payloads: Mapping[str, Payload]) -> dict[str, ShownPayload]:
    """Payloads by name, such as a memo."""
    return {name: shown(payloads[name]) for name in sorted(payloads)}


def parsed(text: str) -> Payloads:
    """Arguments from a form: JSON values one after another, or none; raises `HttpFault` for a text that is not JSON."""
    found: list[Payload] = []
    start = _after_space(text, 0)
    while start < len(text):
        if len(found) == ARGUMENTS_MAX:
            raise HttpFault(400, f"the input has more than {ARGUMENTS_MAX} arguments: give fewer, or one list")
        try:
            _, end = _DECODER.raw_decode(text, start)
            data = msgspec.json.format(text[start:end].encode(), indent=0)
        except (ValueError, RecursionError, msgspec.DecodeError) as wrong:
            raise HttpFault(400, f"the input is not JSON ({wrong}); a text needs quotes") from None
        found.append(Payload(metadata={_ENCODING: b"json/plain"}, data=data))
        start = _after_space(text, end)
    return Payloads(payloads=found)


def _after_space(text: str, start: int) -> int:
    """The position of the first character at or after `start` that is not JSON white space."""
    match = _SPACE.match(text, start)
    return start if match is None else match.end()
