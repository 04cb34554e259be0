import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import (
    LEVEL_ZERO,
    BufferLimits,
    DeleteSchedule,
    FairBacklog,
    IdNotAbove,
    InvalidWeight,
    InvalidWrite,
    Level,
    Share,
    StoredKey,
    WeightOverrides,
    Write,
    stride_of,
)
from tests.core.fairness.table import Table

NO_OVERRIDES = WeightOverrides()


class Worked:
    """A backlog and its table; every step succeeds at once."""

    def __init__(
        self,
        overrides: WeightOverrides = NO_OVERRIDES,
        limits: BufferLimits | None = None,
        table: Table | None = None,
    ) -> None:
        self.table = table or Table()
        lease = self.table.take_lease()
        self.range_id = lease.range_id
        self.backlog = FairBacklog[str](
            ack_level=lease.ack_level,
            max_level=lease.max_level,
            stored=self.table.stored_keys(lease.ack_level),
            overrides=overrides,
            limits=limits,
        )
        self.deletes = DeleteSchedule()
        self.next_id = lease.range_id * 1_000_000
        self.now_s = 0.0

    def begin_write(self, *shares: Share) -> Write:
        ids = range(self.next_id, self.next_id + len(shares))
        self.next_id += len(shares)
        return self.backlog.begin_write(shares, ids=ids)

    def write(self, *shares: Share) -> list[int]:
        """Write tasks and return their passes."""
        under_way = self.begin_write(*shares)
        keys = [share.key for share in shares]
        self.table.insert(self.range_id, list(zip(under_way.levels, keys, strict=True)))
        self.backlog.write_succeeded(under_way, keys)
        return [level.pass_number for level in under_way.levels]

    def load(self, *, held: str) -> None:
        while True:
            parked = sum(self.table.rows[level] == held for level in self.backlog.loaded) if held else 0
            read = self.backlog.next_read(parked=parked)
            if read is None:
                return
            self.backlog.read_succeeded(read, self.table.read(read.after, read.limit))

    def dispatch(self, tasks: int, *, held: str = "") -> list[str]:
        """Dispatch the tasks with the lowest levels and return their keys; skip tasks of the key `held`."""
        keys = []
        for _ in range(tasks):
            self.load(held=held)
            level = next((level for level in self.backlog.loaded if not held or self.table.rows[level] != held), None)
            if level is None:
                break
            keys.append(self.table.rows[level])
            self.backlog.ack(level)
        return keys

    def delete(self) -> None:
        self.now_s += 20
        delete = self.deletes.next_delete(
            ack_level=self.backlog.ack_level, acks_passed=self.backlog.acks_passed, now_s=self.now_s
        )
        if delete is not None:
            self.table.delete_through(self.range_id, delete.through)
            self.deletes.delete_succeeded(delete)


def one(key: str, weight: float = 1.0) -> Share:
    return Share(key, weight)


def test_small_keys_do_not_wait_behind_a_flood() -> None:
    """One key with 10,000 tasks, then 99 keys with 10 tasks: no small key waits longer than two rounds of all keys."""
    worked = Worked()
    for _ in range(100):
        worked.write(*[one("flood")] * 100)
    small = [f"small-{number}" for number in range(99)]
    for key in small:
        worked.write(*[one(key)] * 10)
    order = worked.dispatch(11_000)
    assert len(order) == 10_000 + 990
    for key in small:
        positions = [position for position, dispatched in enumerate(order) if dispatched == key]
        for task, position in enumerate(positions):
            assert position < 2 * 100 * (task + 1)


def test_a_new_key_waits_only_behind_tasks_at_the_base_pass() -> None:
    """FL-38."""
    worked = Worked()
    worked.write(*[one("old")] * 50)
    worked.dispatch(20)
    worked.write(one("new"))
    assert worked.dispatch(1) == ["new"]


def test_an_idle_key_earns_no_credit() -> None:
    """FL-38: after an idle time a key gets its share, and no more."""
    worked = Worked()
    worked.write(*[one("steady")] * 300)
    worked.write(one("sleeper"))
    worked.dispatch(200)
    worked.write(*[one("sleeper")] * 50)
    served = Counter(worked.dispatch(40))
    assert abs(served["sleeper"] - served["steady"]) <= 1


@pytest.mark.parametrize("from_override", [True, False])
def test_shares_follow_the_weights(from_override: bool) -> None:
    """Weights 1:2:5 give 1/8, 2/8 and 5/8 of the tasks to within one, for weights of tasks and for overrides."""
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
    """FL-39, for any order of tasks and any number of them in memory."""
    worked = Worked(limits=BufferLimits(batch_size=5, reload_at=2, evicted_acks_max=5))
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
            # No backlogged key is further behind than the stride of the key that was just served.
            assert served[other] * stride[other] >= (served[key] - 1) * stride[key]
    assert not +left


def test_a_rate_limited_key_does_not_let_new_keys_overtake_the_others() -> None:
    """A waiting task of a rate-limited key keeps the ack level low; new keys must still join at the served pass."""
    worked = Worked()
    worked.write(one("limited"))
    worked.write(*[one("x")] * 4000, *[one("y")] * 4000)
    worked.dispatch(4000, held="limited")
    assert worked.backlog.ack_level.pass_number == 0
    worked.write(*[one("late")] * 3000)
    served = Counter(worked.dispatch(900, held="limited"))
    assert max(served.values()) - min(served[key] for key in ("x", "y", "late")) <= 1


def test_a_rate_limited_key_does_not_block_the_others() -> None:
    """The limited key has the lowest tasks, more than one batch of them."""
    worked = Worked(limits=BufferLimits(batch_size=20, reload_at=5, parked_max=100))
    worked.write(*[one("limited", 1000.0)] * 80)
    worked.write(*[one("x")] * 200)
    assert len(worked.dispatch(1000, held="limited")) == 200


def test_a_new_owner_continues_the_passes_of_each_key() -> None:
    """FL-41: a new owner rebuilds the counters from the tasks in the backlog."""
    worked = Worked()
    worked.write(*[one("flood")] * 1000, *[one("small")] * 3)
    worked.dispatch(10)
    successor = Worked(table=worked.table)
    passes = successor.write(one("flood"), one("small"), one("new"))
    assert passes == [1_000_000, 3000, 0]


def test_a_new_owner_starts_new_keys_at_the_lowest_stored_pass() -> None:
    """The saved ack level may be old. A new key that joined there would take all polls for a while."""
    worked = Worked()
    worked.write(*[one("x")] * 3000, *[one("y")] * 3000)
    worked.dispatch(4000)
    worked.delete()
    # Undo the saved ack level, as if the delete had not saved it.
    worked.table.ack_level = LEVEL_ZERO
    successor = Worked(table=worked.table)
    successor.write(*[one("new")] * 1500)
    served = Counter(successor.dispatch(1500))
    assert [served[key] for key in ("x", "y", "new")] == [500, 500, 500]


def test_a_write_that_fails_is_not_charged_to_its_keys() -> None:
    worked = Worked()
    for _ in range(1000):
        worked.backlog.write_failed(worked.begin_write(one("a"), one("a"), one("b", 5.0)))
    assert worked.write(one("a"), one("b", 5.0)) == [0, 0]


def test_a_rejected_write_changes_nothing() -> None:
    worked = Worked()
    for _ in range(5):
        with pytest.raises(InvalidWeight):
            worked.backlog.begin_write([one("good"), one("bad", math.nan)], ids=[5_000_000, 5_000_001])
        with pytest.raises(InvalidWrite, match="2 tasks with 1 ids"):
            worked.backlog.begin_write([one("good"), one("good")], ids=[5_000_000])
        with pytest.raises(InvalidWrite, match="0 tasks"):
            worked.backlog.begin_write([], ids=[])
    assert worked.write(one("good")) == [0]


@pytest.mark.parametrize("ids", [[1_000_000], [2_000_001, 2_000_001], [2_000_002, 2_000_001]])
def test_task_ids_must_increase(ids: list[int]) -> None:
    worked = Worked()
    worked.write(one("a"))
    with pytest.raises(IdNotAbove, match="which was used before it"):
        worked.backlog.begin_write([one("a")] * len(ids), ids=ids)


@pytest.mark.parametrize(("ack_id", "max_id"), [(90, 120), (120, 90)])
def test_a_new_owner_rejects_ids_that_an_old_owner_may_have_used(ack_id: int, max_id: int) -> None:
    backlog = FairBacklog[str](
        ack_level=Level(5, ack_id), max_level=Level(7, max_id), stored=[], overrides=NO_OVERRIDES
    )
    with pytest.raises(IdNotAbove, match="task id 120 is not above 120"):
        backlog.begin_write([one("a")], ids=[120])
    backlog.begin_write([one("a")], ids=[121])
    with pytest.raises(IdNotAbove, match="task id 121 is not above 121"):
        backlog.begin_write([one("a")], ids=[121])


def test_new_weight_overrides_apply_from_the_next_write() -> None:
    worked = Worked()
    assert worked.write(*[one("a")] * 2) == [0, 1000]
    worked.backlog.override_weights(WeightOverrides({"a": 10.0}))
    assert worked.write(*[one("a")] * 2) == [1100, 1200]


def test_keys_that_are_restored_in_parts_get_the_same_passes_as_all_at_once() -> None:
    stored = [StoredKey(f"key-{number}", 40 + number, 90 + 7 * number, 1.0) for number in range(20)]
    new = partial(
        FairBacklog[str], ack_level=Level(30, 1), max_level=Level(300, 20), overrides=NO_OVERRIDES, keys_max=8
    )
    at_once, in_parts = new(stored=stored), new(stored=(), first_pass=40)
    for start in range(0, 20, 3):
        in_parts.restore(stored[start : start + 3])
    shares = [one(key.key) for key in stored] + [one("new")]
    ids = range(21, 42)
    assert in_parts.begin_write(shares, ids=ids).levels == at_once.begin_write(shares, ids=ids).levels


def test_keys_above_the_bound_share_a_sketch() -> None:
    backlog = FairBacklog[str](
        ack_level=LEVEL_ZERO, max_level=LEVEL_ZERO, stored=[], overrides=NO_OVERRIDES, keys_max=2
    )
    backlog.begin_write([one("a"), one("b"), one("c")], ids=[1, 2, 3])
    assert (backlog.counter.keys, backlog.counter.is_exact) == (2, False)


def test_an_emptied_backlog_leaves_nothing_in_the_table() -> None:
    """FL-26: a drained partition has no task in the database."""
    worked = Worked()
    worked.delete()
    worked.write(*[one("a")] * 5)
    worked.dispatch(5)
    worked.delete()
    assert worked.table.rows == {}
