"""Operator commands on an activity of a workflow: pause, unpause, reset and update of options, step by step."""

from functools import partial

import msgspec
from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.failure.v1 import Failure

from fairlead.api.times import SECOND_NS, to_duration
from fairlead.history.events import (
    change_activity_options,
    end_activity_backoff,
    fail_activity,
    heartbeat_activity,
    pause_activity,
    reset_activity,
    start_activity,
    time_out_activity,
    unpause_activity,
)
from fairlead.history.state import ActivityProgress
from fairlead.history.state.pending import ActivityOptions
from fairlead.history.state.tasks import ActivityRetry, ActivityTimeout, ActivityTimeoutKind, PushActivityTask
from tests.history.scenario import Scenario, activity, payloads

AT = 5


def scheduled(**attributes: object) -> Scenario:
    run = Scenario()
    run.work(activity("a", **attributes))
    return run


def started(**attributes: object) -> Scenario:
    run = scheduled(**attributes)
    start(run)
    return run


def start(run: Scenario) -> None:
    run.step(lambda t: start_activity(t, AT, request_id=f"r{run.now_ns}", identity="worker"))


def fail(run: Scenario) -> None:
    run.step(lambda t: fail_activity(t, AT, attempt=None, failure=Failure(message="x"), identity="worker"))


def progress(run: Scenario) -> ActivityProgress:
    return run.state.live.activities[AT]


def change(run: Scenario, **options: object) -> None:
    present = run.state.open_activity(AT)
    now = ActivityOptions(*(getattr(present, name) for name in ActivityOptions.__struct_fields__))
    changed = msgspec.structs.replace(now, **options)
    run.step(lambda t: change_activity_options(t, AT, changed))


def limits(run: Scenario) -> dict[ActivityTimeoutKind, int]:
    return {task.kind: task.fire_at_ns for task in run.tasks if isinstance(task, ActivityTimeout)}


def test_a_running_attempt_that_is_reset_counts_as_the_first_one() -> None:
    run = started(retry_policy=RetryPolicy(initial_interval=to_duration(5 * SECOND_NS), maximum_attempts=2))
    fail(run)
    start(run)
    old = [task for task in run.tasks if isinstance(task, ActivityTimeout)]
    assert old
    run.step(lambda t: heartbeat_activity(t, AT, attempt=2, details=payloads("1")))
    run.step(lambda t: reset_activity(t, AT, reset_heartbeat=True))
    assert progress(run).attempt == 2
    assert run.step(lambda t: heartbeat_activity(t, AT, attempt=2, details=payloads("2"))).reset
    fail(run)
    assert progress(run).attempt == 2
    assert progress(run).heartbeat_details is None
    assert run.task(ActivityRetry).fire_at_ns == run.now_ns + 5 * SECOND_NS
    start(run)
    for due in old:
        assert not run.step(partial(time_out_activity, due=due))
    assert not run.step(lambda t: heartbeat_activity(t, AT, attempt=2, details=None)).reset
    fail(run)
    assert run.state.open_activity(AT) is None


def test_an_activity_with_one_attempt_still_has_one_after_a_reset() -> None:
    run = started(retry_policy=RetryPolicy(maximum_attempts=1))
    run.step(lambda t: reset_activity(t, AT))
    fail(run)
    assert run.state.open_activity(AT) is None


def test_an_unpaused_activity_is_due_at_once_despite_its_backoff() -> None:
    run = started(retry_policy=RetryPolicy(initial_interval=to_duration(3600 * SECOND_NS)))
    fail(run)
    late = run.task(ActivityRetry)
    run.step(lambda t: pause_activity(t, AT, identity="me", reason="why", request_id="r"))
    assert (progress(run).pause_identity, progress(run).pause_reason) == ("me", "why")
    run.step(lambda t: unpause_activity(t, AT, jitter_ns=5), after_s=1)
    due = run.task(ActivityRetry)
    assert due.fire_at_ns == run.now_ns + 5
    assert not run.step(lambda t: end_activity_backoff(t, late))
    assert run.step(lambda t: end_activity_backoff(t, due))
    assert run.task(PushActivityTask).attempt == 2


def test_a_reset_that_keeps_the_pause_begins_nothing() -> None:
    run = started()
    fail(run)
    run.step(lambda t: pause_activity(t, AT))
    run.step(lambda t: reset_activity(t, AT, keep_paused=True))
    assert (progress(run).attempt, progress(run).paused) == (1, True)
    assert not [task for task in run.tasks if isinstance(task, ActivityRetry)]


def test_changed_timeouts_apply_to_the_attempt_that_a_worker_has() -> None:
    run = started(heartbeat_timeout=to_duration(5 * SECOND_NS))
    began_ns = run.now_ns
    change(run, start_to_close_ns=100 * SECOND_NS, heartbeat_ns=50 * SECOND_NS)
    assert limits(run) == {
        ActivityTimeoutKind.START_TO_CLOSE: began_ns + 100 * SECOND_NS,
        ActivityTimeoutKind.HEARTBEAT: began_ns + 50 * SECOND_NS,
    }
    stamp = progress(run).stamp
    old = ActivityTimeout(0, began_ns + 5 * SECOND_NS, AT, ActivityTimeoutKind.HEARTBEAT, 1, stamp - 1)
    assert not run.step(lambda t: time_out_activity(t, old), after_s=6)
    # The worker's own response still counts.
    fail(run)
    assert progress(run).attempt == 2


def test_a_new_timeout_for_all_attempts_replaces_the_old_one() -> None:
    run = scheduled(schedule_to_close_timeout=to_duration(10 * SECOND_NS))
    began_ns = run.state.activities[AT].scheduled_ns
    before = ActivityTimeout(0, began_ns + 10 * SECOND_NS, AT, ActivityTimeoutKind.SCHEDULE_TO_CLOSE, 1, 0)
    assert before in run.tasks
    change(run, schedule_to_close_ns=60 * SECOND_NS)
    after = run.task(ActivityTimeout)
    assert after.fire_at_ns == began_ns + 60 * SECOND_NS
    assert not run.step(lambda t: time_out_activity(t, before), after_s=11)
    assert run.step(lambda t: time_out_activity(t, after), after_s=60)


def test_a_new_retry_policy_reschedules_the_waiting_attempt() -> None:
    run = started(retry_policy=RetryPolicy(initial_interval=to_duration(3600 * SECOND_NS)))
    fail(run)
    ended_ns = run.now_ns
    policy = RetryPolicy(initial_interval=to_duration(7 * SECOND_NS), backoff_coefficient=2.0)
    change(run, retry_policy=policy.SerializeToString(), task_queue="other")
    due = run.task(ActivityRetry)
    assert due.fire_at_ns == ended_ns + 7 * SECOND_NS
    assert run.step(lambda t: end_activity_backoff(t, due), after_s=7)
    assert run.task(PushActivityTask).task_queue == "other"
    run.step(lambda t: change_activity_options(t, AT, None))
    restored = run.state.open_activity(AT)
    assert restored is not None
    assert restored.task_queue == "queue"
