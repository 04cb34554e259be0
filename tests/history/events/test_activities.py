"""Activities: their timeouts, their attempts, and their end."""

import pytest
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure

from fairlead.api.times import SECOND_NS, from_duration, to_duration
from fairlead.history.events import (
    cancel_activity,
    complete_activity,
    end_activity_backoff,
    fail_activity,
    find_activity,
    heartbeat_activity,
    pause_activity,
    reset_activity,
    start_activity,
    time_out_activity,
    unpause_activity,
)
from fairlead.history.state import BadRequest, NotPending
from fairlead.history.state.tasks import ActivityRetry, ActivityTimeout, ActivityTimeoutKind, PushActivityTask
from tests.history.scenario import Scenario, activity, command, failure, payloads

Kind = ActivityTimeoutKind
AT = 5


def scheduled(**attributes: object) -> Scenario:
    run = Scenario()
    run.work(activity("a", **attributes))
    return run


def start(run: Scenario, request_id: str = "r") -> None:
    run.step(lambda t: start_activity(t, AT, request_id=request_id, identity="worker"))


def fail(run: Scenario, failed: Failure) -> RetryState.ValueType:
    return run.step(lambda t: fail_activity(t, AT, attempt=None, failure=failed, identity="worker"))


def limits(run: Scenario) -> dict[ActivityTimeoutKind, int]:
    return {task.kind: task.fire_at_ns - run.now_ns for task in run.tasks if isinstance(task, ActivityTimeout)}


def test_an_activity_writes_no_event_until_it_ends() -> None:
    run = scheduled()
    start(run)
    assert run.types(AT) == []
    run.step(lambda t: complete_activity(t, AT, attempt=1, result=payloads("1"), identity="worker"))
    assert run.types(AT) == ["ACTIVITY_TASK_STARTED", "ACTIVITY_TASK_COMPLETED", "WORKFLOW_TASK_SCHEDULED"]
    assert run.history[AT + 1].activity_task_completed_event_attributes.started_event_id == AT + 1


def test_an_attempt_is_started_once() -> None:
    run = scheduled()
    start(run)
    start(run)
    with pytest.raises(NotPending, match="already started"):
        start(run, "another")


def test_unset_timeouts_follow_from_the_others() -> None:
    run = Scenario(workflow_run_timeout=to_duration(60 * SECOND_NS))
    run.work(
        activity(
            "a", start_to_close_timeout=to_duration(90 * SECOND_NS), heartbeat_timeout=to_duration(70 * SECOND_NS)
        ),
        activity("b", start_to_close_timeout=None, schedule_to_close_timeout=to_duration(20 * SECOND_NS)),
    )
    first = run.history[4].activity_task_scheduled_event_attributes
    second = run.history[5].activity_task_scheduled_event_attributes
    names = ("schedule_to_close_timeout", "schedule_to_start_timeout", "start_to_close_timeout", "heartbeat_timeout")
    assert [from_duration(getattr(first, name)) // SECOND_NS for name in names] == [60, 60, 60, 60]
    assert [from_duration(getattr(second, name)) // SECOND_NS for name in names] == [20, 20, 20, 0]
    assert second.retry_policy.backoff_coefficient == 2
    assert second.task_queue.name == "queue"


def test_each_timeout_is_set_when_its_time_begins() -> None:
    options = {"schedule_to_close_timeout": 60, "schedule_to_start_timeout": 30, "heartbeat_timeout": 5}
    run = scheduled(**{name: to_duration(seconds * SECOND_NS) for name, seconds in options.items()})
    assert limits(run) == {Kind.SCHEDULE_TO_CLOSE: 60 * SECOND_NS, Kind.SCHEDULE_TO_START: 30 * SECOND_NS}
    start(run)
    assert limits(run) == {Kind.START_TO_CLOSE: 10 * SECOND_NS, Kind.HEARTBEAT: 5 * SECOND_NS}


def test_a_failed_attempt_is_followed_by_another_after_its_backoff() -> None:
    run = scheduled(retry_policy={"initial_interval": to_duration(SECOND_NS), "backoff_coefficient": 3})
    start(run)
    assert fail(run, Failure(message="one")) == RetryState.RETRY_STATE_IN_PROGRESS
    due = run.task(ActivityRetry)
    assert (due.attempt, due.fire_at_ns - run.now_ns) == (2, SECOND_NS)
    run.step(lambda t: end_activity_backoff(t, due))
    assert run.task(PushActivityTask).attempt == 2
    start(run, "second")
    assert not run.step(lambda t: end_activity_backoff(t, due))
    fail(run, Failure(message="two"))
    assert run.task(ActivityRetry).fire_at_ns - run.now_ns == 3 * SECOND_NS
    start(run, "third")
    run.step(lambda t: complete_activity(t, AT, attempt=3, result=None, identity="worker"))
    started = run.history[AT].activity_task_started_event_attributes
    assert (started.attempt, started.last_failure.message) == (3, "two")


def test_a_response_of_an_earlier_attempt_is_refused() -> None:
    run = scheduled()
    start(run)
    fail(run, Failure(message="one"))
    with pytest.raises(NotPending):
        run.step(lambda t: complete_activity(t, AT, attempt=1, result=None, identity="worker"))
    start(run, "second")
    with pytest.raises(NotPending):
        run.step(lambda t: complete_activity(t, AT, attempt=1, result=None, identity="worker"))


@pytest.mark.parametrize(
    ("policy", "failed", "state"),
    [
        ({"maximum_attempts": 1}, Failure(message="x"), RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED),
        (
            {"non_retryable_error_types": ["Bad"]},
            failure("application", type="Bad"),
            RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE,
        ),
        ({}, failure("application", non_retryable=True), RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE),
        ({"initial_interval": {"seconds": 90}}, Failure(message="x"), RetryState.RETRY_STATE_TIMEOUT),
    ],
)
def test_an_activity_that_is_not_retried_has_failed(
    policy: dict[str, object], failed: Failure, state: RetryState.ValueType
) -> None:
    run = scheduled(retry_policy=policy, schedule_to_close_timeout=to_duration(60 * SECOND_NS))
    start(run)
    assert fail(run, failed) == state
    assert run.types(AT) == ["ACTIVITY_TASK_STARTED", "ACTIVITY_TASK_FAILED", "WORKFLOW_TASK_SCHEDULED"]
    assert run.history[AT + 1].activity_task_failed_event_attributes.retry_state == state


def test_a_worker_may_set_the_delay_of_the_next_attempt() -> None:
    run = scheduled()
    start(run)
    fail(run, failure("application", next_retry_delay=to_duration(42 * SECOND_NS)))
    assert run.task(ActivityRetry).fire_at_ns - run.now_ns == 42 * SECOND_NS


def test_a_heartbeat_postpones_its_timeout() -> None:
    run = scheduled(heartbeat_timeout=to_duration(5 * SECOND_NS), retry_policy={"maximum_attempts": 1})
    start(run)
    due = next(task for task in run.tasks if isinstance(task, ActivityTimeout) and task.kind is Kind.HEARTBEAT)
    run.step(lambda t: heartbeat_activity(t, AT, attempt=1, details=payloads('"here"')), after_s=4)
    assert run.step(lambda t: time_out_activity(t, due), after_s=1)
    moved = run.task(ActivityTimeout)
    assert run.types(AT) == []
    assert moved.fire_at_ns - run.now_ns == 4 * SECOND_NS
    assert run.step(lambda t: time_out_activity(t, moved), after_s=4)
    timed_out = run.history[AT + 1].activity_task_timed_out_event_attributes.failure
    assert timed_out.timeout_failure_info.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    assert timed_out.timeout_failure_info.last_heartbeat_details == payloads('"here"')


def test_the_details_of_the_last_heartbeat_are_kept_after_the_attempt() -> None:
    run = scheduled()
    start(run)
    run.step(lambda t: heartbeat_activity(t, AT, attempt=1, details=payloads("7")))
    fail(run, Failure(message="x"))
    assert run.state.live.activities[AT].heartbeat_details == payloads("7").SerializeToString()


def test_a_timeout_of_an_ended_attempt_has_no_effect() -> None:
    run = scheduled()
    start(run)
    due = run.task(ActivityTimeout)
    fail(run, Failure(message="x"))
    start(run, "second")
    assert not run.step(lambda t: time_out_activity(t, due))
    assert run.types(AT) == []


def test_an_activity_without_time_for_another_attempt_ends() -> None:
    run = scheduled(
        schedule_to_close_timeout=to_duration(12 * SECOND_NS), retry_policy={"initial_interval": {"seconds": 5}}
    )
    start(run)
    due = next(task for task in run.tasks if isinstance(task, ActivityTimeout) and task.kind is Kind.START_TO_CLOSE)
    assert run.step(lambda t: time_out_activity(t, due), after_s=10)
    timed_out = run.history[AT + 1].activity_task_timed_out_event_attributes
    assert timed_out.failure.message == "activity ScheduleToClose timeout"
    assert timed_out.retry_state == RetryState.RETRY_STATE_TIMEOUT


def test_an_activity_with_a_requested_cancellation_is_notified_and_not_retried() -> None:
    run = scheduled()
    start(run)
    with pytest.raises(BadRequest, match="without activity being request canceled"):
        run.step(lambda t: cancel_activity(t, AT, attempt=1, details=None, identity="worker"))
    run.signal()
    run.work(command("request_cancel_activity_task", scheduled_event_id=AT))
    answer = run.step(lambda t: heartbeat_activity(t, AT, attempt=1, details=None))
    assert answer.cancel_requested
    assert fail(run, Failure(message="x")) == RetryState.RETRY_STATE_CANCEL_REQUESTED


def test_an_activity_without_a_worker_is_canceled_at_once() -> None:
    run = scheduled()
    run.signal()
    length = len(run.history)
    run.work(command("request_cancel_activity_task", scheduled_event_id=AT), command("record_marker", marker_name="m"))
    assert run.types(length + 2) == [
        "ACTIVITY_TASK_CANCEL_REQUESTED",
        "MARKER_RECORDED",
        "ACTIVITY_TASK_CANCELED",
        "WORKFLOW_TASK_SCHEDULED",
    ]
    with pytest.raises(NotPending):
        start(run)


def test_a_second_end_of_an_activity_is_refused_while_the_first_waits() -> None:
    run = scheduled()
    start(run)
    run.signal()
    run.start_task()
    run.step(lambda t: complete_activity(t, AT, attempt=1, result=None, identity="worker"))
    for _ in range(2):
        with pytest.raises(NotPending):
            run.step(lambda t: complete_activity(t, AT, attempt=None, result=None, identity="worker"))
    with pytest.raises(NotPending):
        find_activity(run.state, "a")
    # A cancel request is still written, but comes too late.
    completion = run.answer(command("request_cancel_activity_task", scheduled_event_id=AT))
    assert completion.failed is None
    assert run.types(8) == [
        "WORKFLOW_TASK_COMPLETED",
        "ACTIVITY_TASK_CANCEL_REQUESTED",
        "ACTIVITY_TASK_STARTED",
        "ACTIVITY_TASK_COMPLETED",
        "WORKFLOW_TASK_SCHEDULED",
    ]


def test_eager_activities_are_returned_to_the_worker_in_the_response() -> None:
    run = Scenario()
    completion = run.work(activity("a", request_eager_execution=True), activity("b"))
    assert completion.eager_activities == (AT,)
    assert run.task(PushActivityTask).scheduled_event_id == AT + 1
    assert run.state.live.activities[AT].started_identity == "worker"


def test_a_paused_activity_has_no_attempts_until_it_is_unpaused() -> None:
    run = scheduled()
    start(run)
    run.step(lambda t: pause_activity(t, AT))
    assert run.step(lambda t: heartbeat_activity(t, AT, attempt=1, details=None)).paused
    fail(run, Failure(message="x"))
    assert run.tasks == []
    run.step(lambda t: unpause_activity(t, AT), after_s=60)
    due = run.task(ActivityRetry)
    assert due.fire_at_ns == run.now_ns
    assert run.step(lambda t: end_activity_backoff(t, due))
    run.step(lambda t: reset_activity(t, AT))
    assert run.state.live.activities[AT].attempt == 1
    assert not run.step(lambda t: end_activity_backoff(t, due))


def test_a_large_failure_is_truncated() -> None:
    run = scheduled()
    start(run)
    fail(run, Failure(message="m" * 10_000, stack_trace="s" * 100_000))
    kept = Failure.FromString(run.state.live.activities[AT].last_failure or b"")
    assert kept.ByteSize() < 4096
    assert kept.message == "Failure exceeds size limit."
