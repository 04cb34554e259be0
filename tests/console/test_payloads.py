"""Arguments from forms, as JSON."""

import pytest

from fairlead.console.payloads import ARGUMENTS_MAX, parsed
from fairlead.http import HttpFault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n", []),
        ('"enough"', [b'"enough"']),
        ('"text" 5 {"a": [1,\n2]}\n[]', [b'"text"', b"5", b'{"a":[1,2]}', b"[]"]),
        ("123456789012345678901234567890", [b"123456789012345678901234567890"]),
        ('"\u00fc"null', ['"\u00fc"'.encode(), b"null"]),
    ],
)
def test_a_form_has_several_json_values_one_after_another(text: str, expected: list[bytes]) -> None:
    found = [payload.data.replace(b"\n", b"").replace(b" ", b"") for payload in parsed(text).payloads]
    assert found == expected


@pytest.mark.parametrize("text", ["enough", '"open', "{1: 2}", "NaN", "1, 2", "[" * 100_000, '"\ud800"'])
def test_a_text_that_is_not_json_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(HttpFault, match=r"the input is not JSON .*; a text needs quotes"):
        parsed(text)


def test_the_number_of_arguments_is_bounded() -> None:
    assert len(parsed("1 " * ARGUMENTS_MAX).payloads) == ARGUMENTS_MAX
    with pytest.raises(HttpFault, match="more than 100 arguments"):
        parsed("1 " * (ARGUMENTS_MAX + 1))
