import pytest

from fairlead.core.fairness import Delete, DeleteNotUnderWay, DeleteSchedule, Level

A = Level(10, 1)


class Schedule:
    """A schedule for one ack level; it keeps the last delete."""

    def __init__(self, *, is_begun: bool = True) -> None:
        self.schedule = DeleteSchedule(acked_min=100, interval_s=15.0)
        self.last: Delete | None = None
        if is_begun:
            assert self.next(acks_passed=0, now_s=0.0) == A
            self.succeed()

    def next(self, *, acks_passed: int, now_s: float, ack_level: Level = A) -> Level | None:
        delete = self.schedule.next_delete(ack_level=ack_level, acks_passed=acks_passed, now_s=now_s)
        if delete is None:
            return None
        self.last = delete
        return delete.through

    def succeed(self) -> None:
        assert self.last is not None
        self.schedule.delete_succeeded(self.last)

    def fail(self) -> None:
        assert self.last is not None
        self.schedule.delete_failed(self.last)


def test_the_first_delete_is_due_at_once_to_remove_the_tasks_of_a_crashed_owner() -> None:
    assert Schedule(is_begun=False).next(acks_passed=0, now_s=0.0) == A


def test_only_one_delete_runs_at_a_time() -> None:
    schedule = Schedule(is_begun=False)
    assert schedule.next(acks_passed=0, now_s=0.0) == A
    assert schedule.next(acks_passed=500, now_s=100.0) is None


def test_enough_acked_tasks_make_a_delete_due() -> None:
    """FB-13: a delete is due after a number of acks."""
    schedule = Schedule()
    assert schedule.next(acks_passed=99, now_s=1.0) is None
    assert schedule.next(acks_passed=100, now_s=1.0, ack_level=Level(20, 5)) == Level(20, 5)


def test_a_few_acked_tasks_are_deleted_after_the_interval() -> None:
    """FB-13: a delete is due after an interval, otherwise an idle partition could never be drained."""
    schedule = Schedule()
    assert schedule.next(acks_passed=1, now_s=14.9) is None
    assert schedule.next(acks_passed=1, now_s=15.0) == A
    schedule.succeed()
    assert schedule.next(acks_passed=1, now_s=1000.0) is None


def test_a_failed_delete_is_retried_after_the_interval_even_if_many_tasks_wait() -> None:
    schedule = Schedule()
    assert schedule.next(acks_passed=3, now_s=20.0) == A
    schedule.fail()
    assert schedule.next(acks_passed=300, now_s=21.0) is None
    assert schedule.next(acks_passed=300, now_s=35.0) == A
    schedule.succeed()
    # After a success, the number of acks makes a delete due again.
    assert schedule.next(acks_passed=400, now_s=36.0) == A


def test_acks_during_a_delete_count_for_the_next_one() -> None:
    schedule = Schedule()
    assert schedule.next(acks_passed=100, now_s=1.0) == A
    schedule.succeed()
    assert schedule.next(acks_passed=199, now_s=2.0) is None
    assert schedule.next(acks_passed=200, now_s=2.0) == A


def test_an_outcome_that_is_reported_twice_is_rejected() -> None:
    schedule = Schedule()
    with pytest.raises(DeleteNotUnderWay, match="report each outcome once"):
        schedule.succeed()
