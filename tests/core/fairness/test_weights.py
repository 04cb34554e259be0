import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import (
    InvalidFairnessKey,
    InvalidWeight,
    TooManyOverrides,
    WeightOverrides,
    check_key,
    check_weight,
    stride_of,
)


@pytest.mark.parametrize(
    ("weight", "stride"), [(1, 1000), (1.5, 667), (2, 500), (5, 200), (0.5, 2000), (0.001, 1_000_000)]
)
def test_the_stride_is_a_thousand_over_the_weight(weight: float, stride: int) -> None:
    """FL-37."""
    assert stride_of(weight) == stride


def test_a_weight_of_zero_is_unset_and_counts_as_one() -> None:
    assert stride_of(0) == stride_of(1.0)


def test_a_weight_below_the_smallest_counts_as_the_smallest() -> None:
    assert check_weight(1e-9) == 0.001


def test_the_stride_of_the_heaviest_key_is_positive() -> None:
    assert stride_of(1e9) == 1


@pytest.mark.parametrize("weight", [-1.0, -0.0001, math.nan, math.inf, -math.inf])
def test_an_invalid_weight_is_rejected(weight: float) -> None:
    with pytest.raises(InvalidWeight, match="give a positive number"):
        stride_of(weight)


@given(st.floats(min_value=0.001, max_value=100), st.floats(min_value=0.001, max_value=100))
def test_a_heavier_key_never_has_a_longer_stride(one: float, other: float) -> None:
    lighter, heavier = sorted((one, other))
    assert stride_of(heavier) <= stride_of(lighter)


def test_the_length_of_a_key_is_measured_in_bytes() -> None:
    assert check_key("é" * 32) == "é" * 32
    with pytest.raises(InvalidFairnessKey, match="66 bytes, more than 64"):
        check_key("é" * 33)


def test_a_key_that_cannot_be_encoded_is_rejected() -> None:
    with pytest.raises(InvalidFairnessKey, match="can't be stored as text"):
        check_key("\ud800")


def test_an_override_replaces_the_weight_of_the_task() -> None:
    overrides = WeightOverrides({"gold": 5.0})
    assert overrides.stride_of("gold", task_weight=1.0) == 200
    assert overrides.stride_of("other", task_weight=2.0) == 500
    assert dict(overrides) == {"gold": 5.0}


def test_overrides_are_checked_when_they_are_set_not_when_they_are_used() -> None:
    with pytest.raises(InvalidWeight):
        WeightOverrides({"a": math.nan})
    with pytest.raises(InvalidWeight, match="leave it out"):
        WeightOverrides({"a": 0})
    with pytest.raises(InvalidFairnessKey):
        WeightOverrides({"x" * 65: 1.0})
    assert len(WeightOverrides({str(number): 1.0 for number in range(1000)})) == 1000
    with pytest.raises(TooManyOverrides, match="1001 fairness weight overrides, more than 1000"):
        WeightOverrides({str(number): 1.0 for number in range(1001)})
