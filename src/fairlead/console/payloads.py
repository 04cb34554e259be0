"""Payloads as they are shown: JSON as text, other encodings for a codec server."""

import base64
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import Struct
from temporalio.api.common.v1 import Payload, Payloads

from fairlead.http import HttpFault

# Characters of one payload on a page.
SHOWN_CHARACTERS_MAX: Final = 20_000

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
    """One argument from a form: a JSON value, or nothing; raises `HttpFault` for a text that is not JSON."""
    if not text.strip():
        return Payloads()
    try:
        data = msgspec.json.format(text.encode(), indent=0)
    except (msgspec.DecodeError, UnicodeEncodeError) as wrong:
        raise HttpFault(400, f"the input is not JSON ({wrong}); a text needs quotes") from None
    return Payloads(payloads=[Payload(metadata={_ENCODING: b"json/plain"}, data=data)])
