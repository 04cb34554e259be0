from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import PassCounter


@dataclass
class NeverForgets:
    """The rule of `PassCounter` with nothing left out for speed or space."""

    base: int = 0
    known: dict[str, tuple[int, int]] = field(default_factory=dict)

    def next_pass(self, key: str, *, stride: int, base: int) -> int:
        self.base = max(self.base, base)
        last_pass, idle_from = self.known.get(key, (0, 0))
        chosen = self.base if idle_from <= self.base else max(self.base, last_pass + stride)
        self.known[key] = (chosen, chosen + stride)
        return chosen


def test_a_new_key_joins_at_the_base() -> None:
    """Design, 'Fairness': no credit is banked, and no debt."""
    counter = PassCounter()
    assert counter.next_pass("a", stride=1000, base=0) == 0
    assert counter.next_pass("b", stride=500, base=7000) == 7000


def test_the_tasks_of_a_key_are_a_stride_apart() -> None:
    counter = PassCounter()
    assert [counter.next_pass("a", stride=1000, base=0) for _ in range(4)] == [0, 1000, 2000, 3000]
    assert [counter.next_pass("b", stride=200, base=0) for _ in range(4)] == [0, 200, 400, 600]


def test_a_pass_is_never_below_the_base() -> None:
    """Seed 003: 'All new task levels must be > A! (I.e. their pass must be >= A.pass.)'"""
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=0)
    assert counter.next_pass("a", stride=1000, base=50_000) == 50_000


def test_a_base_that_goes_back_gives_no_lower_pass() -> None:
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=5000)
    assert counter.next_pass("b", stride=1000, base=4000) == 5000


def test_a_new_weight_counts_from_the_next_task_on() -> None:
    counter = PassCounter()
    assert counter.next_pass("a", stride=1_000_000, base=0) == 0
    assert counter.next_pass("a", stride=100, base=0) == 100


def test_idle_keys_are_forgotten_while_others_are_written() -> None:
    """Design, 'Fairness': the counter is as large as the keys in the backlog, not as all keys ever seen."""
    counter = PassCounter()
    for number in range(50_000):
        counter.next_pass(f"key-{number}", stride=1000, base=number * 100)
    # Each key waits for 10 others, and forgetting lags behind by no more than the work it spreads out.
    assert counter.keys <= 20
    assert counter.is_exact


CALLS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([1, 100, 200, 1000, 5000]), st.integers(-500, 3000)),
    max_size=200,
)


@given(CALLS)
def test_forgetting_changes_no_pass(calls: list[tuple[str, int, int]]) -> None:
    """Design, 'Fairness': a key is forgotten *exactly*."""
    counter, model, base = PassCounter(), NeverForgets(), 0
    for key, stride, step in calls:
        base = max(0, base + step)
        assert counter.next_pass(key, stride=stride, base=base) == model.next_pass(key, stride=stride, base=base)


@given(CALLS)
def test_past_the_bound_passes_are_never_lower_than_exact_ones(calls: list[tuple[str, int, int]]) -> None:
    small, exact, base = PassCounter(keys_max=3), PassCounter(), 0
    for key, stride, step in calls:
        base = max(0, base + step)
        assert small.next_pass(key, stride=stride, base=base) >= exact.next_pass(key, stride=stride, base=base)
        assert small.keys <= 3


def test_the_sketch_keeps_the_spacing_of_the_keys_it_holds() -> None:
    counter = PassCounter(keys_max=1)
    counter.next_pass("first", stride=1000, base=0)
    assert [counter.next_pass("second", stride=1000, base=0) for _ in range(3)] == [0, 1000, 2000]
    assert not counter.is_exact


def test_the_counter_is_exact_again_when_the_time_of_the_sketch_has_passed() -> None:
    """Better than the systems of today, which never leave their sketch."""
    counter = PassCounter(keys_max=2)
    for key in "abcd":
        counter.next_pass(key, stride=1000, base=0)
    assert not counter.is_exact
    counter.next_pass("a", stride=1000, base=999)
    assert not counter.is_exact
    counter.next_pass("a", stride=1000, base=1000)
    assert counter.is_exact


def test_a_key_that_leaves_the_sketch_keeps_its_place() -> None:
    counter = PassCounter(keys_max=1)
    counter.next_pass("a", stride=10, base=0)
    assert [counter.next_pass("b", stride=1000, base=0) for _ in range(3)] == [0, 1000, 2000]
    # By now "a" is idle, so there is room for "b"; its next pass still follows the one that the sketch remembers.
    assert counter.next_pass("b", stride=1000, base=10) == 3000
    assert counter.next_pass("b", stride=1000, base=10) == 4000


@given(CALLS, st.integers(0, 200))
def test_a_new_owner_goes_on_where_the_old_one_stopped(calls: list[tuple[str, int, int]], taken_over_at: int) -> None:
    """Design, 'Fairness': a new owner rebuilds the counters from the backlog's own rows.

    Each key has one weight here, as a row tells the weight that it was written with.
    """
    stride_of = dict(zip("abcdefgh", (1, 100, 200, 500, 1000, 2000, 5000, 9000), strict=True))
    old, new, base = PassCounter(), PassCounter(), 0
    rows: list[tuple[str, int]] = []
    for key, _, step in calls[:taken_over_at]:
        base = max(base, base + step)
        rows.append((key, old.next_pass(key, stride=stride_of[key], base=base)))
    for key, last_pass in reversed(rows):
        # What is at or below the base was dispatched and deleted.
        if last_pass > base:
            new.restore(key, last_pass=last_pass, stride=stride_of[key])
    for key, _, step in calls[taken_over_at:]:
        base = max(base, base + step)
        expected = old.next_pass(key, stride=stride_of[key], base=base)
        got = new.next_pass(key, stride=stride_of[key], base=base)
        # A key whose last row was dispatched at the very base is new to the new owner: at most one stride is forgiven.
        assert expected - stride_of[key] <= got <= expected


@pytest.mark.parametrize("rows", [[("a", 3000), ("a", 9000), ("a", 6000)], [("a", 9000), ("a", 3000)]])
def test_the_highest_row_of_a_key_counts_in_whatever_order_rows_come(rows: list[tuple[str, int]]) -> None:
    counter = PassCounter()
    for key, last_pass in rows:
        counter.restore(key, last_pass=last_pass, stride=1000)
    assert counter.next_pass("a", stride=1000, base=0) == 10_000


def test_a_stored_row_counts_as_much_as_one_that_was_just_given() -> None:
    counter = PassCounter()
    counter.restore("a", last_pass=1000, stride=1000)
    counter.restore("a", last_pass=2000, stride=1000)
    assert counter.next_pass("a", stride=1000, base=2000) == 3000


def test_a_restored_key_is_never_below_what_the_sketch_remembers_of_it() -> None:
    counter = PassCounter(keys_max=2)
    counter.next_pass("a", stride=10, base=0)
    counter.next_pass("c", stride=1000, base=0)
    counter.restore("b", last_pass=9000, stride=1000)
    assert not counter.is_exact
    # "a" is idle by now, so there is room for "b" when the next of its rows comes.
    counter.next_pass("c", stride=1000, base=50)
    counter.restore("b", last_pass=3000, stride=1000)
    assert counter.next_pass("b", stride=1000, base=50) == 10_000


def test_a_key_is_idle_from_the_very_pass_on_that_it_would_have_been_given_next() -> None:
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=0)
    # At 999 it still owes for its last task; at 1000 it is as good as new, whatever its weight is now.
    assert counter.next_pass("a", stride=5000, base=999) == 5000
    counter.next_pass("b", stride=1000, base=5000)
    assert counter.next_pass("b", stride=5000, base=6000) == 6000


def test_a_key_that_is_idle_from_this_pass_on_is_forgotten() -> None:
    counter = PassCounter()
    counter.next_pass("a", stride=1000, base=0)
    counter.next_pass("b", stride=1000, base=1000)
    assert counter.keys == 1


def test_the_room_is_looked_for_before_the_sketch_is_used() -> None:
    counter = PassCounter(keys_max=20)
    for number in range(10):
        counter.next_pass(f"busy-{number}", stride=1_000_000, base=0)
    for number in range(200):
        counter.next_pass(f"passing-{number}", stride=1000, base=number * 1000)
        assert counter.is_exact
        assert counter.keys <= 20


def test_what_was_not_written_is_not_charged() -> None:
    counter = PassCounter()
    given = [counter.next_pass("a", stride=1000, base=0) for _ in range(3)]
    for pass_number in reversed(given):
        counter.give_back("a", pass_number=pass_number, stride=1000)
    assert counter.next_pass("a", stride=1000, base=0) == 0


def test_a_pass_is_not_given_back_when_the_key_has_gone_on() -> None:
    counter = PassCounter()
    first = counter.next_pass("a", stride=1000, base=0)
    counter.next_pass("a", stride=1000, base=0)
    counter.give_back("a", pass_number=first, stride=1000)
    counter.give_back("never seen", pass_number=first, stride=1000)
    assert counter.next_pass("a", stride=1000, base=0) == 2000
