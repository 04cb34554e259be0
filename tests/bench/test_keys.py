import random
from collections import Counter

import pytest

from fairlead.bench.keys import KeyChooser, KeyPlan


def test_weights_and_tasks_are_assigned_to_keys_in_turn() -> None:
    plan = KeyPlan(count=5, weights=(1.0, 2.0, 5.0))
    assert [plan.weight(key) for key in range(5)] == [1.0, 2.0, 5.0, 1.0, 2.0]
    chooser = KeyChooser(plan, random.Random(1).random)
    assert [chooser.key_of(number) for number in range(7)] == [0, 1, 2, 3, 4, 0, 1]


def test_a_single_key_is_the_empty_key() -> None:
    assert KeyPlan().name(0) == ""
    assert len({KeyPlan(count=100).name(key) for key in range(100)}) == 100


@pytest.mark.parametrize("skew", [0.5, 1.1])
def test_the_shares_of_keys_follow_a_zipf_distribution(skew: float) -> None:
    plan = KeyPlan(count=20, zipf=skew)
    chooser = KeyChooser(plan, random.Random(3).random)
    times = Counter(chooser.key_of(number) for number in range(100_000))
    whole = sum((key + 1) ** -skew for key in range(20))
    for key in range(20):
        assert times[key] / 100_000 == pytest.approx((key + 1) ** -skew / whole, abs=0.005)


def test_the_highest_random_number_maps_to_the_last_key() -> None:
    chooser = KeyChooser(KeyPlan(count=3, zipf=1.0), lambda: 1.0)
    assert chooser.key_of(0) == 2
