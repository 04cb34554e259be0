import pytest

from fairlead.core.fairness import Delete, DeleteNotUnderWay, DeleteSchedule, Level

A = Level(10, 1)


class Schedule:
    """A schedule at one ack level, of which the last delete is remembered."""

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


def test_the_first_delete_is_due_at_once_for_what_a_crashed_owner_left() -> None:
    assert Schedule(is_begun=False).next(acks_passed=0, now_s=0.0) == A


def test_there_is_one_delete_at_a_time() -> None:
    schedule = Schedule(is_begun=False)
    assert schedule.next(acks_passed=0, now_s=0.0) == A
    assert schedule.next(acks_passed=500, now_s=100.0) is None


def test_enough_acked_tasks_make_a_delete_due() -> None:
    """Seed 003: 'periodically based on time or when the number of acked tasks passes a threshold'."""
    schedule = Schedule()
    assert schedule.next(acks_passed=99, now_s=1.0) is None
    assert schedule.next(acks_passed=100, now_s=1.0, ack_level=Level(20, 5)) == Level(20, 5)


def test_a_few_acked_tasks_are_deleted_when_time_has_passed_and_none_are_not() -> None:
    """An idle partition must come to hold nothing, or it could never be drained."""
    schedule = Schedule()
    assert schedule.next(acks_passed=1, now_s=14.9) is None
    assert schedule.next(acks_passed=1, now_s=15.0) == A
    schedule.succeed()
    assert schedule.next(acks_passed=1, now_s=1000.0) is None


def test_a_failed_delete_is_tried_again_after_the_interval_however_many_wait() -> None:
    schedule = Schedule()
    assert schedule.next(acks_passed=3, now_s=20.0) == A
    schedule.fail()
    assert schedule.next(acks_passed=300, now_s=21.0) is None
    assert schedule.next(acks_passed=300, now_s=35.0) == A
    schedule.succeed()
    # All is well again: enough acks suffice.
    assert schedule.next(acks_passed=400, now_s=36.0) == A


def test_what_was_acked_during_a_delete_waits_for_the_next() -> None:
    schedule = Schedule()
    assert schedule.next(acks_passed=100, now_s=1.0) == A
    schedule.succeed()
    assert schedule.next(acks_passed=199, now_s=2.0) is None
    assert schedule.next(acks_passed=200, now_s=2.0) == A


def test_an_outcome_is_told_once_and_of_its_own_delete() -> None:
    schedule = Schedule()
    with pytest.raises(DeleteNotUnderWay, match="tell each outcome once"):
        schedule.succeed()
