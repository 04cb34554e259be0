import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from msgspec import Struct

from fairlead.core.partitions import TaskType
from fairlead.telemetry import Component
from fairlead.telemetry.redaction import (
    DEPTH_MAX,
    ITEMS_MAX,
    REDACTED,
    TEXT_CHARACTERS_MAX,
    redact,
    redact_fields,
    redact_text,
)


@pytest.mark.parametrize(
    "name",
    [
        *("password", "Password", "db_password", "dbPassword", "DB-PASSWORD", "passwd", "token", "task_token"),
        *("Authorization", "dsn", "DSN", "client_secret", "clientSecret", "credentials", "cookie"),
    ],
)
def test_fields_with_names_of_secrets_are_redacted(name: str) -> None:
    assert redact_fields({name: "hunter2"}) == {name: REDACTED}
    assert redact({"inner": [{name: "hunter2"}]}) == {"inner": [{name: REDACTED}]}


@pytest.mark.parametrize("name", ["tokens_left", "secretary", "partition", "task_queue", "keyboard"])
def test_other_fields_are_not_redacted(name: str) -> None:
    assert redact_fields({name: "hunter2"}) == {name: "hunter2"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://app:hunter2@db:5432/fairlead", f"postgresql://app:{REDACTED}@db:5432/fairlead"),
        ("at http://u:p@ss/w?rd@host/x then", f"at http://u:{REDACTED}@host/x then"),
        ("redis://:hunter2@host", f"redis://:{REDACTED}@host"),
        ("host=db password=hunter2 user=app", f"host=db password={REDACTED} user=app"),
        ("host=db password='two words' user=app", f"host=db password={REDACTED} user=app"),
        ("https://host/x?access_token=abc&y=1", f"https://host/x?access_token={REDACTED}&y=1"),
        ('{"password": "hunter2", "x": 1}', f'{{"password": {REDACTED}, "x": 1}}'),
        ("Authorization: Bearer abc.def-ghi", f"Authorization: {REDACTED}"),
        ("sent with bearer abc.def-ghi", f"sent with bearer {REDACTED}"),
        ("http://host:8080/path", "http://host:8080/path"),
        ("nothing secret here", "nothing secret here"),
    ],
)
def test_secrets_within_a_text_are_redacted(text: str, expected: str) -> None:
    assert redact_text(text) == expected
    assert redact(ValueError(text)) == f"ValueError: {expected}"


def test_payloads_are_replaced_by_their_length() -> None:
    assert redact(b"payload") == "[7 bytes]"
    assert redact(bytearray(3)) == "[3 bytes]"
    assert redact([memoryview(b"ab")]) == ["[2 bytes]"]


@dataclass
class Task:
    payload: bytes
    token: str


class Named(NamedTuple):
    payload: bytes
    token: str


class Message(Struct, frozen=True):
    payload: bytes
    token: str


class Opaque:
    def __repr__(self) -> str:
        return "Opaque(payload=b'secret')"


@pytest.mark.parametrize("whole", [Task(b"abc", "x"), Named(b"abc", "x"), Message(b"abc", "x")])
def test_an_object_with_fields_is_redacted_field_by_field(whole: object) -> None:
    assert redact(whole) == {"payload": "[3 bytes]", "token": REDACTED}
    assert redact([whole]) == [{"payload": "[3 bytes]", "token": REDACTED}]


def test_an_object_of_unknown_type_is_replaced_by_its_type() -> None:
    assert redact(Opaque()) == "[Opaque]"
    assert redact(Task) == "[type]"


def test_plain_values_stay_as_they_are() -> None:
    for plain in (None, True, 3, 2.5, "text"):
        assert redact(plain) == plain
    assert redact(math.nan) == "nan"
    assert redact(-math.inf) == "-inf"
    assert redact(TaskType.ACTIVITY) == "ACTIVITY"
    assert redact(Component.ROOT) == "root"
    assert redact(Path("/a/b")) == "/a/b"
    assert redact(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02 00:00:00+00:00"
    assert redact(UUID(int=1)) == "00000000-0000-0000-0000-000000000001"


def test_line_breaks_and_terminal_sequences_are_escaped() -> None:
    assert redact_text("a\nb\r\x1b[2J\x9b\u2028c") == r"a\nb\r\x1b[2J\x9b\u2028c"


def test_the_sizes_of_redacted_values_are_bounded() -> None:
    text = redact_text("x" * (TEXT_CHARACTERS_MAX + 5))
    assert text == f"{'x' * TEXT_CHARACTERS_MAX} [5 more characters]"
    assert len(redact_fields({f"f{number}": number for number in range(ITEMS_MAX + 5)})) == ITEMS_MAX
    assert redact(list(range(ITEMS_MAX + 5))) == list(range(ITEMS_MAX))
    assert redact(1 << 20_000) == "[20001 bits]"
    deep: list[object] = []
    deep.append(deep)
    found, depth = redact(deep), 0
    while isinstance(found, list):
        (found,), depth = found, depth + 1
    assert (found, depth) == ("[list]", DEPTH_MAX)


def test_a_secret_at_the_cut_of_a_long_text_is_redacted() -> None:
    text = redact_text("x" * (TEXT_CHARACTERS_MAX - 14) + " password=hunter2 and more")
    assert "hunt" not in text
    assert "more characters" in text


@pytest.mark.parametrize("piece", ["a.", "a-", "://a:", "password", "token=", "bearer ", "a://", "'", "token:'"])
def test_the_search_for_secrets_takes_bounded_time(piece: str) -> None:
    started_s = time.process_time()
    redact_text(piece * 10_000)
    assert time.process_time() - started_s < 1.0
