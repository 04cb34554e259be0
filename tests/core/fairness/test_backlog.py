from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import (
    LEVEL_ZERO,
    BufferLimits,
    FairBacklog,
    IdNotAbove,
    Level,
    Share,
    WeightOverrides,
    stride_of,
)
from tests.core.fairness.table import Table

NO_OVERRIDES = WeightOverrides()


class Worked:
    """A backlog with its table, where every step succeeds at once."""

    def __init__(self, overrides: WeightOverrides = NO_OVERRIDES, limits: BufferLimits | None = None) -> None:
        self.table = Table()
        self.range_id = self.table.take_lease().range_id
        self.backlog = FairBacklog[str](ack_level=LEVEL_ZERO, max_level=LEVEL_ZERO, limits=limits)
        self.overrides = overrides
        self.next_id = 1
        self.now_s = 0.0

    def write(self, *shares: Share) -> None:
        ids = range(self.next_id, self.next_id + len(shares))
        self.next_id += len(shares)
        under_way = self.backlog.begin_write(shares, ids=ids, overrides=self.overrides)
        keys = [share.key for share in shares]
        self.table.insert(self.range_id, list(zip(under_way.levels, keys, strict=True)))
        self.backlog.buffer.write_succeeded(under_way, keys)

    def dispatch(self, tasks: int) -> list[str]:
        """Dispatch the lowest tasks, one after the other, and say whose they were."""
        keys = []
        buffer = self.backlog.buffer
        for _ in range(tasks):
            while (read := buffer.next_read()) is not None:
                buffer.read_succeeded(self.table.read(read.after, read.limit))
            if not buffer.loaded:
                break
            level = buffer.loaded[0]
            keys.append(self.table.rows[level])
            buffer.ack(level)
        self.now_s += 1
        if (through := self.backlog.next_delete(self.now_s)) is not None:
            self.table.delete_through(self.range_id, through)
            self.backlog.deletes.delete_succeeded()
        return keys


def one(key: str, weight: float = 1.0) -> Share:
    return Share(key, weight)


def test_small_keys_do_not_wait_behind_a_flood() -> None:
    """One key with 10,000 tasks, then 99 keys with 10: none waits behind more than two rounds of all keys."""
    worked = Worked()
    for _ in range(100):
        worked.write(*[one("flood")] * 100)
    small = [f"small-{number}" for number in range(99)]
    for key in small:
        worked.write(*[one(key)] * 10)
    order = worked.dispatch(11_000)
    assert len(order) == 10_000 + 990
    for key in small:
        places = [place for place, dispatched in enumerate(order) if dispatched == key]
        for task, place in enumerate(places):
            assert place < 2 * 100 * (task + 1)


def test_a_new_key_waits_only_behind_what_is_at_the_base_pass() -> None:
    """Facts, temporal-matching (b) 8."""
    worked = Worked()
    worked.write(*[one("old")] * 50)
    worked.dispatch(20)
    worked.write(one("new"))
    assert worked.dispatch(1) == ["new"]


def test_an_idle_key_banks_nothing() -> None:
    """Facts, temporal-matching (b) 8: a key that slept while others worked gets its share from now on, not more."""
    worked = Worked()
    worked.write(*[one("steady")] * 300)
    worked.write(one("sleeper"))
    worked.dispatch(200)
    worked.write(*[one("sleeper")] * 50)
    served = Counter(worked.dispatch(40))
    assert abs(served["sleeper"] - served["steady"]) <= 1


@pytest.mark.parametrize("from_override", [True, False])
def test_shares_follow_the_weights(from_override: bool) -> None:
    """Weights 1:2:5 give shares within one task of 1/8, 2/8 and 5/8, from the task or from an override."""
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    worked = Worked(WeightOverrides(weights) if from_override else NO_OVERRIDES)
    for key, weight in weights.items():
        worked.write(*[one(key, 1.0 if from_override else weight)] * 1000)
    served = Counter(worked.dispatch(800))
    assert abs(served["a"] - 100) <= 1
    assert abs(served["b"] - 200) <= 1
    assert abs(served["c"] - 500) <= 1


@given(
    weights=st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([0.5, 1.0, 2.0, 3.0, 5.0, 10.0]), min_size=2),
    order=st.lists(st.sampled_from("abcdef"), min_size=20, max_size=120),
    batch=st.integers(1, 7),
)
def test_backlogged_keys_are_served_in_the_ratio_of_their_weights_within_one_stride(
    weights: Mapping[str, float], order: Sequence[str], batch: int
) -> None:
    """Facts, temporal-matching (b) 8, in whatever order the tasks came and however little of them is in memory."""
    worked = Worked(limits=BufferLimits(batch_size=5, reload_at=2, acks_max=100, evicted_acks_max=5))
    shares = [one(key, weights[key]) for key in order if key in weights]
    for start in range(0, len(shares), batch):
        worked.write(*shares[start : start + batch])
    left = Counter(share.key for share in shares)
    stride = {key: stride_of(weight) for key, weight in weights.items()}
    served = dict.fromkeys(left, 0)
    for key in worked.dispatch(len(shares)):
        served[key] += 1
        left[key] -= 1
        backlogged = [other for other in left if left[other]]
        for other in backlogged:
            # Nobody who still has work is further behind than the step that was just taken.
            assert served[other] * stride[other] >= (served[key] - 1) * stride[key]
    assert not +left


def test_ids_must_rise() -> None:
    worked = Worked()
    worked.write(one("a"))
    with pytest.raises(IdNotAbove, match="task id 1 is not above 1"):
        worked.backlog.begin_write([one("a")], ids=[1], overrides=NO_OVERRIDES)


def test_a_new_owner_refuses_ids_that_an_old_one_may_have_given() -> None:
    backlog = FairBacklog[str](ack_level=Level(5, 90), max_level=Level(7, 120))
    with pytest.raises(IdNotAbove):
        backlog.begin_write([one("a")], ids=[120], overrides=NO_OVERRIDES)


def test_an_emptied_backlog_leaves_nothing_in_the_table() -> None:
    """Design, 'Adaptive scaler': drained means that the database holds no task."""
    worked = Worked()
    worked.write(*[one("a")] * 5)
    worked.dispatch(5)
    for _ in range(16):
        worked.dispatch(0)
    assert worked.table.rows == {}
