import math

import pytest

from fairlead.settings import InvalidValue
from fairlead.settings.duration import format_duration, parse_duration_s


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ("10s", 10.0),
        ("200ms", 0.2),
        ("1m30s", 90.0),
        ("1.5h", 5400.0),
        ("1d", 86_400.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("5ns", 5e-9),
        ("0s", 0.0),
        ("0", 0.0),
        ("10", 10.0),
        (10, 10.0),
        (0.5, 0.5),
    ],
)
def test_a_duration_can_have_units_or_be_a_number_of_seconds(raw: object, seconds: float) -> None:
    assert parse_duration_s(raw) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "raw",
    ["", "s", "10 s", "-5s", "1e3s", "10x", "ten", "٣s", "1m30", None, True, [], "9" * 65, math.nan, math.inf, 10**400],
)
def test_an_invalid_duration_is_rejected(raw: object) -> None:
    with pytest.raises(InvalidValue):
        parse_duration_s(raw)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.2, "200ms"),
        (0.01, "10ms"),
        (1.5, "1.5s"),
        (60, "1m"),
        (90, "1m30s"),
        (3600, "1h"),
        (5400, "1h30m"),
    ],
)
def test_a_duration_is_formatted_with_the_largest_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration_s(text) == pytest.approx(seconds)
