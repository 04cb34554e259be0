from fairlead.core.fairness import DeleteSchedule, Level

A = Level(10, 1)


def test_the_first_delete_is_due_at_once_for_what_a_crashed_owner_left() -> None:
    schedule = DeleteSchedule()
    assert schedule.next_delete(ack_level=A, acks_passed=0, now_s=0.0) == A


def test_there_is_one_delete_at_a_time() -> None:
    schedule = DeleteSchedule()
    schedule.next_delete(ack_level=A, acks_passed=0, now_s=0.0)
    assert schedule.next_delete(ack_level=A, acks_passed=500, now_s=100.0) is None


def test_enough_acked_tasks_make_a_delete_due() -> None:
    """Seed 003: 'periodically based on time or when the number of acked tasks passes a threshold'."""
    schedule = DeleteSchedule(acked_min=100, interval_s=15.0)
    schedule.next_delete(ack_level=A, acks_passed=0, now_s=0.0)
    schedule.delete_succeeded()
    assert schedule.next_delete(ack_level=A, acks_passed=99, now_s=1.0) is None
    assert schedule.next_delete(ack_level=Level(20, 5), acks_passed=100, now_s=1.0) == Level(20, 5)


def test_a_few_acked_tasks_are_deleted_when_time_has_passed_and_none_are_not() -> None:
    """An idle partition must come to hold nothing, or it could never be drained."""
    schedule = DeleteSchedule(acked_min=100, interval_s=15.0)
    schedule.next_delete(ack_level=A, acks_passed=0, now_s=0.0)
    schedule.delete_succeeded()
    assert schedule.next_delete(ack_level=A, acks_passed=1, now_s=14.9) is None
    assert schedule.next_delete(ack_level=A, acks_passed=1, now_s=15.0) == A
    schedule.delete_succeeded()
    assert schedule.next_delete(ack_level=A, acks_passed=1, now_s=1000.0) is None


def test_a_failed_delete_is_tried_again_after_the_interval() -> None:
    schedule = DeleteSchedule(acked_min=100, interval_s=15.0)
    schedule.next_delete(ack_level=A, acks_passed=0, now_s=0.0)
    schedule.delete_succeeded()
    assert schedule.next_delete(ack_level=A, acks_passed=3, now_s=20.0) == A
    schedule.delete_failed()
    assert schedule.next_delete(ack_level=A, acks_passed=300, now_s=21.0) is None
    assert schedule.next_delete(ack_level=A, acks_passed=3, now_s=35.0) == A


def test_what_was_acked_during_a_delete_waits_for_the_next() -> None:
    schedule = DeleteSchedule(acked_min=10, interval_s=15.0)
    schedule.next_delete(ack_level=A, acks_passed=5, now_s=0.0)
    schedule.delete_succeeded()
    assert schedule.next_delete(ack_level=A, acks_passed=14, now_s=1.0) is None
    assert schedule.next_delete(ack_level=A, acks_passed=15, now_s=1.0) == A
