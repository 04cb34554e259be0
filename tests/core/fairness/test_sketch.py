import random
from collections import Counter
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import PassSketch
from fairlead.core.fairness.sketch import NEVER, cells_of


def test_an_unknown_key_has_no_last_pass() -> None:
    assert PassSketch().last_pass(cells_of("a")) == NEVER


def test_a_single_key_is_exact() -> None:
    sketch = PassSketch()
    sketch.remember(cells_of("a"), 0)
    assert sketch.last_pass(cells_of("a")) == 0
    sketch.remember(cells_of("a"), 7000)
    assert sketch.last_pass(cells_of("a")) == 7000


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 10**9)), max_size=50))
def test_the_sketch_never_underestimates(given_passes: list[tuple[str, int]]) -> None:
    sketch, truth = PassSketch(), dict[str, int]()
    for key, last_pass in given_passes:
        sketch.remember(cells_of(key), last_pass)
        truth[key] = max(last_pass, truth.get(key, 0))
        assert sketch.last_pass(cells_of(key)) >= truth[key]


def test_light_keys_are_rarely_overestimated() -> None:
    """50,000 light keys and 300 heavy ones: rarely do all four cells of a light key collide with heavy keys."""
    sketch = PassSketch()
    chance = random.Random(1)
    for number in range(300):
        sketch.remember(cells_of(f"heavy-{number}"), chance.randrange(10**6, 10**7))
    for number in range(50_000):
        sketch.remember(cells_of(f"light-{number}"), 1000)
    seen = Counter(sketch.last_pass(cells_of(f"light-{number}")) > 1000 for number in range(50_000))
    assert seen[True] <= 2


def test_a_key_has_one_cell_in_each_row_and_two_keys_rarely_share_more_than_one() -> None:
    positions = [cells_of(f"key-{number}") for number in range(2000)]
    for position in positions:
        assert [cell >> 16 for cell in position] == [0, 1, 2, 3]
    shared = Counter(
        sum(mine == theirs for mine, theirs in zip(one, other, strict=True))
        for one, other in combinations(positions, 2)
    )
    assert shared[3] == shared[4] == 0
    assert shared[2] <= 1
