from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.search.literals import format_time, number_text, parse_duration, parse_time
from fairlead.storage.visibility import INT64_MAX

SECOND_NS = 10**9
TIMES_NS = st.integers(-INT64_MAX, INT64_MAX)


@given(TIMES_NS)
def test_a_time_survives_the_round_trip_through_text(time_ns: int) -> None:
    assert parse_time(format_time(time_ns)) == time_ns


@given(st.integers(-9_000_000_000, 9_000_000_000))
def test_times_are_formatted_as_rfc_3339(time_s: int) -> None:
    text = datetime.fromtimestamp(time_s, UTC).isoformat()
    assert parse_time(text) == time_s * SECOND_NS
    assert format_time(time_s * SECOND_NS) == text.replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00.5+01:00", SECOND_NS // 2),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("1970-01-01T00:00:00.1234567899Z", 123_456_789),
        ("0001-01-01T00:00:00Z", -INT64_MAX),
        ("0001-01-01T00:00:00+23:59", -INT64_MAX),
        ("9999-12-31T23:59:59-23:59", INT64_MAX),
    ],
)
def test_times_are_truncated_to_nanoseconds_and_limited_to_64_bits(text: str, time_ns: int) -> None:
    assert parse_time(text) == time_ns


@pytest.mark.parametrize(
    "text", ["", "2024-01-01", "2024-01-01T00:00:00", "2024-01-01T00:00:00+24:00", "2024-02-30T00:00:00Z", "x" * 500]
)
def test_other_texts_are_not_times(text: str) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("1h30m", 5400 * SECOND_NS),
        ("-1.5s", -1_500_000_000),
        ("1d", 86400 * SECOND_NS),
        ("1ms1us1µs1μs1ns", 1_003_001),
        ("100:00:01", 360_001 * SECOND_NS),
        ("-0:01:00.25", -60_250_000_000),
        ("17", 17),
        ("-17", -17),
        ("", None),
        ("1w", None),
        ("1h 30m", None),
        ("00:60:00", None),
        ("9223372036854775808", None),
        ("9" * 101, None),
        (".s", None),
    ],
)
def test_a_duration_has_one_of_three_forms(text: str, duration_ns: int | None) -> None:
    assert parse_duration(text) == duration_ns


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (5, "5"),
        (5.0, "5"),
        (0.0, "0"),
        (-1.5, "-1.5"),
        (100000.0, "100000"),
        (1e6, "1e+06"),
        (123456789.5, "1.234567895e+08"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-9.223372036854776e18, "-9.223372036854776e+18"),
    ],
)
def test_numbers_are_formatted_as_by_the_reference_server(number: float, text: str) -> None:
    assert number_text(number) == text
