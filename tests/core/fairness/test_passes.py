from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import PassCounter


@dataclass
class NeverForgets:
    """The rule of `PassCounter`, without its optimizations for speed and space."""

    base: int = 0
    known: dict[str, tuple[int, int]] = field(default_factory=dict)

    def next_pass(self, key: str, *, stride: int, base: int) -> int:
        self.base = max(self.base, base)
        last_pass, idle_from = self.known.get(key, (0, 0))
        chosen = self.base if idle_from <= self.base else max(self.base, last_pass + stride)
        self.known[key] = (chosen, chosen + stride)
        return chosen


def test_a_new_key_joins_at_the_base() -> None:
    """FL-38: a new key joins with neither an advantage nor a disadvantage."""
    counter = PassCounter()
    assert counter.next_pass("a", stride=1000, base=0) == 0
    assert counter.next_pass("b", stride=500, base=7000) == 7000


def test_the_tasks_of_a_key_are_a_stride_apart() -> None:
    counter = PassCounter()
    assert [counter.next_pass("a", stride=1000, base=0) for _ in range(4)] == [0, 1000, 2000, 3000]
    assert [counter.next_pass("b", stride=200, base=0) for _ in range(4)] == [0, 200, 400, 600]


def test_a_pass_is_never_below_the_base() -> None:
    """FB-9, FL-37: every pass is at least the pass of A."""
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=0)
    assert counter.next_pass("a", stride=1000, base=50_000) == 50_000


def test_a_lower_base_gives_no_lower_pass() -> None:
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=5000)
    assert counter.next_pass("b", stride=1000, base=4000) == 5000


def test_a_new_weight_applies_from_the_next_task() -> None:
    counter = PassCounter()
    assert counter.next_pass("a", stride=1_000_000, base=0) == 0
    assert counter.next_pass("a", stride=100, base=0) == 100


def test_idle_keys_are_forgotten_while_others_are_written() -> None:
    """FL-40: the counter holds the keys in the backlog, not all keys ever seen."""
    counter = PassCounter()
    for number in range(50_000):
        counter.next_pass(f"key-{number}", stride=1000, base=number * 100)
    # Each key waits for 10 others; keys are forgotten in small steps, so a few more remain.
    assert counter.keys <= 20
    assert counter.is_exact


CALLS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([1, 100, 200, 1000, 5000]), st.integers(-500, 3000)),
    max_size=200,
)


@given(CALLS)
def test_forgetting_a_key_changes_no_pass(calls: list[tuple[str, int, int]]) -> None:
    """FL-40."""
    counter, model, base = PassCounter(), NeverForgets(), 0
    for key, stride, step in calls:
        base = max(0, base + step)
        assert counter.next_pass(key, stride=stride, base=base) == model.next_pass(key, stride=stride, base=base)


@given(CALLS)
def test_passes_from_the_sketch_are_never_lower_than_exact_ones(calls: list[tuple[str, int, int]]) -> None:
    """FL-40: the sketch gives later passes, never earlier ones."""
    small, exact, base = PassCounter(keys_max=3), PassCounter(), 0
    for key, stride, step in calls:
        base = max(0, base + step)
        assert small.next_pass(key, stride=stride, base=base) >= exact.next_pass(key, stride=stride, base=base)
        assert small.keys <= 3


def test_tasks_of_a_key_in_the_sketch_are_a_stride_apart() -> None:
    counter = PassCounter(keys_max=1)
    counter.next_pass("first", stride=1000, base=0)
    assert [counter.next_pass("second", stride=1000, base=0) for _ in range(3)] == [0, 1000, 2000]
    assert not counter.is_exact


def test_the_counter_is_exact_again_when_the_base_has_passed_the_sketch() -> None:
    """The counter doesn't stay with the sketch for ever."""
    counter = PassCounter(keys_max=2)
    for key in "abcd":
        counter.next_pass(key, stride=1000, base=0)
    assert not counter.is_exact
    counter.next_pass("a", stride=1000, base=999)
    assert not counter.is_exact
    counter.next_pass("a", stride=1000, base=1000)
    assert counter.is_exact


def test_a_key_that_leaves_the_sketch_keeps_its_pass() -> None:
    counter = PassCounter(keys_max=1)
    counter.next_pass("a", stride=10, base=0)
    assert [counter.next_pass("b", stride=1000, base=0) for _ in range(3)] == [0, 1000, 2000]
    # "a" is idle now, so "b" gets its own counter, which continues after the last pass in the sketch.
    assert counter.next_pass("b", stride=1000, base=10) == 3000
    assert counter.next_pass("b", stride=1000, base=10) == 4000


@given(CALLS, st.integers(0, 200))
def test_a_new_owner_continues_the_passes_of_the_old_one(calls: list[tuple[str, int, int]], taken_over_at: int) -> None:
    """FL-41: a new owner rebuilds the counters from the tasks in the backlog.

    Each key keeps one weight here, because a row keeps the weight that it was written with.
    """
    stride_of = dict(zip("abcdefgh", (1, 100, 200, 500, 1000, 2000, 5000, 9000), strict=True))
    old, new, base = PassCounter(), PassCounter(), 0
    rows: list[tuple[str, int]] = []
    for key, _, step in calls[:taken_over_at]:
        base = max(base, base + step)
        rows.append((key, old.next_pass(key, stride=stride_of[key], base=base)))
    for key, last_pass in reversed(rows):
        # Rows at or below the base were dispatched and deleted.
        if last_pass > base:
            new.restore(key, last_pass=last_pass, stride=stride_of[key])
    for key, _, step in calls[taken_over_at:]:
        base = max(base, base + step)
        expected = old.next_pass(key, stride=stride_of[key], base=base)
        got = new.next_pass(key, stride=stride_of[key], base=base)
        # If the last row of a key was at the base, the key is new to the new owner: its pass is up to one stride lower.
        assert expected - stride_of[key] <= got <= expected


@pytest.mark.parametrize("rows", [[("a", 3000), ("a", 9000), ("a", 6000)], [("a", 9000), ("a", 3000)]])
def test_the_highest_row_of_a_key_counts_in_any_order_of_rows(rows: list[tuple[str, int]]) -> None:
    counter = PassCounter()
    for key, last_pass in rows:
        counter.restore(key, last_pass=last_pass, stride=1000)
    assert counter.next_pass("a", stride=1000, base=0) == 10_000


def test_a_restored_row_counts_like_a_new_one() -> None:
    counter = PassCounter()
    counter.restore("a", last_pass=1000, stride=1000)
    counter.restore("a", last_pass=2000, stride=1000)
    assert counter.next_pass("a", stride=1000, base=2000) == 3000


def test_a_restored_key_is_never_below_its_pass_in_the_sketch() -> None:
    counter = PassCounter(keys_max=2)
    counter.next_pass("a", stride=10, base=0)
    counter.next_pass("c", stride=1000, base=0)
    counter.restore("b", last_pass=9000, stride=1000)
    assert not counter.is_exact
    # "a" is idle now, so "b" gets its own counter with its next row.
    counter.next_pass("c", stride=1000, base=50)
    counter.restore("b", last_pass=3000, stride=1000)
    assert counter.next_pass("b", stride=1000, base=50) == 10_000


def test_a_key_is_idle_once_the_base_reaches_its_next_pass() -> None:
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=0)
    # At 999 the next pass of the key is still in the future; at 1000 the key is like a new one, with any weight.
    assert counter.next_pass("a", stride=5000, base=999) == 5000
    counter.next_pass("b", stride=1000, base=5000)
    assert counter.next_pass("b", stride=5000, base=6000) == 6000


def test_an_idle_key_is_forgotten() -> None:
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=0)
    counter.next_pass("b", stride=1000, base=1000)
    assert counter.keys == 1


def test_idle_keys_are_forgotten_before_the_sketch_is_used() -> None:
    counter = PassCounter(keys_max=20)
    for number in range(10):
        counter.next_pass(f"busy-{number}", stride=1_000_000, base=0)
    for number in range(200):
        counter.next_pass(f"passing-{number}", stride=1000, base=number * 1000)
        assert counter.is_exact
        assert counter.keys <= 20


def test_passes_of_a_failed_write_are_given_back() -> None:
    counter = PassCounter()
    given = [counter.next_pass("a", stride=1000, base=0) for _ in range(3)]
    for pass_number in reversed(given):
        counter.give_back("a", pass_number=pass_number, stride=1000)
    assert counter.next_pass("a", stride=1000, base=0) == 0


def test_a_pass_is_not_given_back_if_the_key_has_a_later_one() -> None:
    counter = PassCounter()
    first = counter.next_pass("a", stride=1000, base=0)
    counter.next_pass("a", stride=1000, base=0)
    counter.give_back("a", pass_number=first, stride=1000)
    counter.give_back("never seen", pass_number=first, stride=1000)
    assert counter.next_pass("a", stride=1000, base=0) == 2000
