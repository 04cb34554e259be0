import math
from typing import Any

import pytest

from fairlead.core.balancing import Strategy
from fairlead.core.fairness import WeightOverrides
from fairlead.core.routing import GradualChange
from fairlead.settings import InvalidValue, Plain
from fairlead.settings.dynamic.kinds import Bool, Choice, Duration, Float, GradualInt, Int, Kind, Weights

CHANGE: dict[str, Plain] = {"old": 0, "new": 8, "start": "2026-11-15T20:00:00Z", "end": "2026-11-15T22:00:00+01:00"}


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (Bool(), True, True),
        (Int(1, 5), 5, 5),
        (Float(0.0, 1.0), 1, 1.0),
        (Duration(0.0, 60.0), "1m", 60.0),
        (Choice(Strategy), "Round-Robin", Strategy.ROUND_ROBIN),
        (GradualInt(0, 64), 64, 64),
        (Weights(), {"a": 2, "b": 0.5}, WeightOverrides({"a": 2.0, "b": 0.5})),
    ],
)
def test_a_value_is_parsed_and_survives_a_round_trip(kind: Kind[Any], raw: Plain, value: object) -> None:
    assert kind.parse(raw) == value
    assert kind.parse(kind.plain(kind.parse(raw))) == value


@pytest.mark.parametrize(
    ("kind", "raw", "complaint"),
    [
        (Bool(), 1, "is not a bool"),
        (Bool(), "true", "is not a bool"),
        (Int(1, 5), 0, "is out of bounds: choose 1 to 5"),
        (Int(1, 5), 6, "is out of bounds: choose 1 to 5"),
        (Int(1, 5), True, "is not a whole number"),
        (Int(1, 5), 2.0, "is not a whole number"),
        (Int(1, 5), "2", "is not a whole number"),
        (Int(1, 5), None, "is not a whole number"),
        (Int(1, 5), math.nan, "is not a whole number"),
        (Float(0.0, 1.0), -0.1, "is out of bounds: choose 0 to 1"),
        (Float(0.0, 1.0), 1.1, "is out of bounds"),
        (Float(0.0, 1.0), math.nan, "is out of bounds"),
        (Float(0.0, 1.0), math.inf, "is out of bounds"),
        (Float(0.0, 1.0), 10**400, "is out of bounds"),
        (Float(0.0, 1.0), False, "is not a number"),
        (Float(0.0, 1.0), "0.5", "is not a number"),
        (Duration(0.1, 60.0), "61s", "is out of bounds: choose 100ms to 1m"),
        (Duration(0.1, 60.0), 0.05, "is out of bounds"),
        (Duration(0.1, 60.0), math.nan, "is not finite"),
        (Choice(Strategy), "isolation", "is not one of the choices: random, round-robin"),
        (Choice(Strategy), 1, "is not one of the choices"),
        (GradualInt(0, 64), 65, "is out of bounds"),
        (GradualInt(0, 64), CHANGE | {"new": 65}, "is not a gradual change: new is out of bounds"),
        (GradualInt(0, 64), CHANGE | {"old": "0"}, "old is not a whole number"),
        (GradualInt(0, 64), CHANGE | {"start": "2026-11-15T20:00:00"}, "start is not a time"),
        (GradualInt(0, 64), CHANGE | {"end": "later"}, "end is not a time"),
        (GradualInt(0, 64), CHANGE | {"end": 5}, "end is not a time"),
        (GradualInt(0, 64), CHANGE | {"end": "2026-11-15T19:00:00Z"}, "before it starts"),
        (GradualInt(0, 64), CHANGE | {"then": 1}, "give old, new, start and end, and nothing else"),
        (GradualInt(0, 64), {"old": 0}, "give old, new, start and end"),
        (Weights(), [1], "is not a mapping"),
        (Weights(), {"a": 0}, "'a' a weight that is not above 0"),
        (Weights(), {"a": -1}, "not above 0"),
        (Weights(), {"a": math.nan}, "not above 0"),
        (Weights(), {"a": math.inf}, "not above 0"),
        (Weights(), {"a": 10**400}, "at most 1e9"),
        (Weights(), {"a": "1"}, "not a number"),
        (Weights(), {"a" * 65: 1}, "fairness key has 65 bytes"),
        (Weights(), {str(number): 1 for number in range(1001)}, "more than 1000"),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_bounds_is_rejected(kind: Kind[Any], raw: Plain, complaint: str) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        kind.parse(raw)


def test_the_times_of_a_gradual_change_are_parsed_with_time_zone_and_written_in_utc() -> None:
    """MC-15: every host must read the same time, in any time zone."""
    kind = GradualInt(0, 64)
    start_s = 1_794_772_800.0
    assert kind.parse(CHANGE) == GradualChange(old=0, new=8, start_s=start_s, end_s=start_s + 3600)
    assert kind.plain(kind.parse(CHANGE)) == CHANGE | {"end": "2026-11-15T21:00:00Z"}
