"""Makes values safe to log: no secrets, no payloads, and a limited length."""

import dataclasses
import math
import re
from collections.abc import Mapping
from datetime import date
from enum import Enum
from pathlib import PurePath
from uuid import UUID

TEXT_CHARACTERS_MAX = 4_000
INTEGER_BITS_MAX = 256
ITEMS_MAX = 50
DEPTH_MAX = 6

REDACTED = "[redacted]"
SECRET_WORDS = frozenset(
    {"authorization", "cookie", "credential", "credentials", "dsn", "passwd", "password", "secret", "token"}
)

# "dbPassword", "db_password" and "DB-PASSWORD" have the same words; "tokens_left" does not have the word "token".
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# All repetitions are bounded, so that no text makes a search slow.
_USER_INFO = re.compile(r"(?P<before>[a-z][a-z0-9+.-]{0,30}://[^\s/?#:@]{0,200}):\S{0,200}@", re.IGNORECASE)
_SAID = re.compile(
    r"(?P<before>(?:authorization|credentials?|dsn|passwd|password|secret|token)[\"']?\s{0,5}[=:]\s{0,5})"
    r"(?:(?:bearer|basic)\s{1,5})?(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<before>\bbearer\s{1,5})[\w.~+/=-]+", re.IGNORECASE)
# Characters that start a new line or control a terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def redact_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Make the fields of an event safe to log; only plain values remain."""
    return {name: REDACTED if is_secret(name) else redact(value) for name, value in list(fields.items())[:ITEMS_MAX]}


def is_secret(name: str) -> bool:
    """Whether a field of this name holds a secret."""
    return any(word.lower() in SECRET_WORDS for word in _WORDS.findall(name))


def redact(value: object, depth: int = 0) -> object:
    """Make a value safe to log. An object that is neither plain nor made of named fields is replaced by its type."""
    match value:
        case Enum():
            written: object = redact_text(value.value if isinstance(value.value, str) else value.name)
        case None | bool():
            written = value
        case int():
            written = value if value.bit_length() <= INTEGER_BITS_MAX else f"[{value.bit_length()} bits]"
        case float():
            written = value if math.isfinite(value) else str(value)
        case str():
            written = redact_text(value)
        case bytes() | bytearray() | memoryview():
            written = f"[{len(value)} bytes]"
        case BaseException():
            written = redact_text(f"{type(value).__name__}: {value}")
        case PurePath() | date() | UUID():
            written = redact_text(str(value))
        case _:
            written = _redact_whole(value, depth) if depth < DEPTH_MAX else f"[{type(value).__name__}]"
    return written


def redact_text(text: str) -> str:
    """Put a text on one line, cut it, and remove secrets that are written in a known way."""
    # Search the beginning: if the cut splits a secret, the secret's name is still before it.
    cut = max(0, len(text) - TEXT_CHARACTERS_MAX)
    text = text[:TEXT_CHARACTERS_MAX]
    text = _USER_INFO.sub(rf"\g<before>:{REDACTED}@", text)
    text = _SAID.sub(rf"\g<before>{REDACTED}", text)
    text = _BEARER.sub(rf"\g<before>{REDACTED}", text)
    text = text.translate(_CONTROLS)
    return f"{text} [{cut} more characters]" if cut else text


def _redact_whole(value: object, depth: int) -> object:
    named = _named_parts(value)
    if named is not None:
        return {
            str(name): REDACTED if is_secret(str(name)) else redact(part, depth + 1)
            for name, part in list(named.items())[:ITEMS_MAX]
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(part, depth + 1) for part in list(value)[:ITEMS_MAX]]
    return f"[{type(value).__name__}]"


def _named_parts(value: object) -> Mapping[object, object] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    # A named tuple or a msgspec struct.
    names = getattr(type(value), "_fields", None) or getattr(type(value), "__struct_fields__", None)
    return {name: getattr(value, name) for name in names} if names is not None else None
