"""Meaning of a call's headers."""

import pytest

from fairlead.rpc import Code
from fairlead.rpc.head import TIMEOUT_S_MAX, request_head
from fairlead.rpc.header_block import Field
from fairlead.rpc.status import MESSAGE_CHARACTERS_MAX, percent_encoded
from tests.rpc.served import request_headers


def fields(*extra: tuple[str, str]) -> list[Field]:
    return [(name.encode(), value.encode("latin-1")) for name, value in request_headers("/a.B/C", extra)]


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("40m", 0.04),
        ("50u", 5e-5),
        ("6n", 6e-9),
        ("0S", 0),
        ("99999999H", TIMEOUT_S_MAX),
    ],
)
def test_a_timeout_is_read_in_every_unit(text: str, timeout_s: float) -> None:
    assert request_head(fields(("grpc-timeout", text)), list_bytes_max=9_999).timeout_s == pytest.approx(timeout_s)


@pytest.mark.parametrize("text", ["", "S", "1", "1s", "-1S", "123456789S", "1.5S", " 1S", "1S ", "1HS"])
def test_a_timeout_of_another_form_is_refused(text: str) -> None:
    head = request_head(fields(("grpc-timeout", text)), list_bytes_max=9_999)
    assert head.refusal is not None
    assert head.refusal.status.code is Code.INVALID_ARGUMENT


def test_metadata_has_the_callers_headers_and_not_the_transports() -> None:
    head = request_head(
        fields(("a", "1"), ("a", "2"), ("b", "\xe9"), ("c-bin", "AAH/"), ("d-bin", "AA=="), ("e-bin", "AA,AQ")),
        list_bytes_max=9_999,
    )
    assert head.metadata == {"a": "1,2", "b": "\xe9"}
    assert head.binary_metadata == {"c-bin": b"\x00\x01\xff", "d-bin": b"\x00", "e-bin": b"\x00"}
    assert (head.path, head.refusal) == ("/a.B/C", None)


def test_binary_metadata_that_is_not_base64_is_refused() -> None:
    head = request_head(fields(("c-bin", "A")), list_bytes_max=9_999)
    assert head.refusal is not None
    assert "c-bin" in str(head.refusal.status)


def test_a_status_message_is_percent_encoded_and_bounded() -> None:
    assert percent_encoded("plain text") == b"plain text"
    assert percent_encoded("50 %\né") == b"50 %25%0A%C3%A9"
    assert percent_encoded("\ud800") == b"?"
    assert len(percent_encoded("x" * 10_000)) == MESSAGE_CHARACTERS_MAX
