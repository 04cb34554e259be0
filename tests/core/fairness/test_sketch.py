import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import PassSketch
from fairlead.core.fairness.sketch import NEVER


def test_a_key_never_met_has_no_last_pass() -> None:
    assert PassSketch().last_pass("a") == NEVER


def test_a_lone_key_is_remembered_exactly() -> None:
    sketch = PassSketch()
    sketch.remember("a", 0)
    assert sketch.last_pass("a") == 0
    sketch.remember("a", 7000)
    assert sketch.last_pass("a") == 7000


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 10**9)), max_size=50))
def test_the_sketch_is_never_below_the_truth(given_passes: list[tuple[str, int]]) -> None:
    sketch, truth = PassSketch(), dict[str, int]()
    for key, last_pass in given_passes:
        sketch.remember(key, last_pass)
        truth[key] = max(last_pass, truth.get(key, 0))
        assert sketch.last_pass(key) >= truth[key]


def test_light_keys_are_rarely_taken_for_heavy_ones() -> None:
    """200,000 light keys and 1,000 heavy ones: the four rows of a light key seldom all meet a heavy one."""
    sketch = PassSketch()
    chance = random.Random(1)
    for number in range(1000):
        sketch.remember(f"heavy-{number}", chance.randrange(10**6, 10**7))
    for number in range(200_000):
        sketch.remember(f"light-{number}", 1000)
    seen = Counter(sketch.last_pass(f"light-{number}") > 1000 for number in range(200_000))
    assert seen[True] <= 2
