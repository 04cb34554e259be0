import random
from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import PassSketch
from fairlead.core.fairness.sketch import NEVER, places_of


def test_a_key_never_met_has_no_last_pass() -> None:
    assert PassSketch().last_pass(places_of("a")) == NEVER


def test_a_lone_key_is_remembered_exactly() -> None:
    sketch = PassSketch()
    sketch.remember(places_of("a"), 0)
    assert sketch.last_pass(places_of("a")) == 0
    sketch.remember(places_of("a"), 7000)
    assert sketch.last_pass(places_of("a")) == 7000


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 10**9)), max_size=50))
def test_the_sketch_is_never_below_the_truth(given_passes: list[tuple[str, int]]) -> None:
    sketch, truth = PassSketch(), dict[str, int]()
    for key, last_pass in given_passes:
        sketch.remember(places_of(key), last_pass)
        truth[key] = max(last_pass, truth.get(key, 0))
        assert sketch.last_pass(places_of(key)) >= truth[key]


def test_light_keys_are_rarely_taken_for_heavy_ones() -> None:
    """50,000 light keys and 300 heavy ones: the four rows of a light key seldom all meet a heavy one."""
    sketch = PassSketch()
    chance = random.Random(1)
    for number in range(300):
        sketch.remember(places_of(f"heavy-{number}"), chance.randrange(10**6, 10**7))
    for number in range(50_000):
        sketch.remember(places_of(f"light-{number}"), 1000)
    seen = Counter(sketch.last_pass(places_of(f"light-{number}")) > 1000 for number in range(50_000))
    assert seen[True] <= 2


def test_a_key_has_one_place_in_each_row_and_meets_another_rarely_in_more_than_one() -> None:
    places = [places_of(f"key-{number}") for number in range(2000)]
    for place in places:
        assert [cell >> 16 for cell in place] == [0, 1, 2, 3]
    shared = Counter(
        sum(mine == theirs for mine, theirs in zip(one, other, strict=True)) for one, other in combinations(places, 2)
    )
    assert shared[3] == shared[4] == 0
    assert shared[2] <= 1
