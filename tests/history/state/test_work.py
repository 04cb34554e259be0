"""The work of a run that is in flight, and when a run with its own clock skips time."""

import pytest
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import FastForwardConfig, RetryPolicy, TimeSkippingConfig
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import SECOND_NS, from_timestamp, to_duration
from fairlead.core.partitions import TaskType
from fairlead.history.events import Transaction
from fairlead.history.events.write_activities import fail_activity, start_activity
from fairlead.history.events.write_options import Options, pause_run, update_options
from fairlead.history.events.write_time_skipping import end_fast_forward, skip_time
from fairlead.history.state.tasks import ActivityRetry, FastForwardEnd, RunTimeout, UserTimer
from fairlead.history.state.work import NO_WORK, WaitingTask, Work, work_of
from tests.history.scenario import Scenario, activity, command, failure, timer

HOUR_NS = 3600 * SECOND_NS
TRANSITIONED = "WORKFLOW_EXECUTION_TIME_SKIPPING_TRANSITIONED"
SKIPPING = TimeSkippingConfig(enabled=True, max_session_skip_count=200)
FIRST_ACTIVITY = 5


def workflow_task(*queues: str) -> Work:
    return Work(waiting=(WaitingTask("namespace-id", TaskType.WORKFLOW, queues),))


def test_a_workflow_task_is_waiting_then_running_then_done() -> None:
    run = Scenario()
    assert work_of(run.state, run.now_ns) == workflow_task("queue", "queue")
    run.start_task()
    assert work_of(run.state, run.now_ns) == Work(workflow_tasks=1)
    run.answer(timer("one", 60))
    assert work_of(run.state, run.now_ns) == NO_WORK


def test_an_activity_is_waiting_then_running_then_backing_off() -> None:
    run = Scenario()
    run.work(activity("one", retry_policy=RetryPolicy(initial_interval=to_duration(HOUR_NS))))
    waiting = WaitingTask("namespace-id", TaskType.ACTIVITY, ("queue",))
    assert work_of(run.state, run.now_ns) == Work(waiting=(waiting,))
    run.step(lambda step: start_activity(step, FIRST_ACTIVITY, request_id="r", identity="worker"))
    assert work_of(run.state, run.now_ns) == Work(activities=1)
    fail(run)
    assert work_of(run.state, run.now_ns) == NO_WORK
    assert work_of(run.state, run.now_ns + HOUR_NS) == Work(waiting=(waiting,))


def test_nothing_waits_for_workers_while_the_run_is_paused() -> None:
    run = Scenario()
    run.work(activity("one"))
    run.step(lambda step: pause_run(step, identity="", reason="", request_id=""))
    assert work_of(run.state, run.now_ns) == NO_WORK


def fail(run: Scenario) -> None:
    run.step(
        lambda step: fail_activity(
            step, FIRST_ACTIVITY, attempt=None, failure=failure("application", type="Error"), identity="worker"
        )
    )


def skip(run: Scenario) -> list[HistoryEvent]:
    """Skip time as a shard does at the end of a step; returns the events of the skip."""
    since = len(run.history)
    run.now_ns += run.state.skipped_ns
    run.step(skip_time)
    run.now_ns -= run.state.skipped_ns
    return run.history[since:]


def test_time_is_skipped_to_the_first_timer_and_all_timers_are_set_again() -> None:
    run = Scenario(time_skipping_config=SKIPPING)
    run.work(timer("late", 7200), timer("soon", 3600))
    (event,) = skip(run)
    attributes = event.workflow_execution_time_skipping_transitioned_event_attributes
    soon = run.state.timers["soon"]
    assert from_timestamp(attributes.target_time) == soon.fire_at_ns
    assert run.state.skipped_ns == soon.fire_at_ns - from_timestamp(event.event_time)
    assert {task.timer_id for task in run.tasks if isinstance(task, UserTimer)} == {"late", "soon"}
    assert run.state.time_skipping is not None
    assert run.state.time_skipping.skips == 1


@pytest.mark.parametrize(
    "busy",
    [
        activity("one"),
        command("start_child_workflow_execution", workflow_id="child", workflow_type={"name": "Child"}),
        command("signal_external_workflow_execution", execution={"workflow_id": "other"}, signal_name="s"),
        command("request_cancel_external_workflow_execution", workflow_id="other"),
        command("schedule_nexus_operation", endpoint="desk", service="s", operation="o"),
    ],
)
def test_nothing_is_skipped_while_something_is_in_flight(busy: Command) -> None:
    run = Scenario(time_skipping_config=SKIPPING)
    run.work(timer("one", 3600), busy)
    assert skip(run) == []


def test_nothing_is_skipped_while_a_workflow_task_is_there_or_the_run_is_paused_or_skipping_is_off() -> None:
    run = Scenario(time_skipping_config=SKIPPING, workflow_run_timeout=to_duration(HOUR_NS))
    assert skip(run) == []
    run.work()
    run.step(lambda step: pause_run(step, identity="", reason="", request_id=""))
    assert skip(run) == []
    off = Scenario(time_skipping_config=TimeSkippingConfig(max_session_skip_count=200))
    off.work(timer("one", 60))
    assert skip(off) == []


def test_the_backoff_of_an_activity_and_the_timeout_of_a_run_are_skipped_to() -> None:
    run = Scenario(time_skipping_config=SKIPPING, workflow_run_timeout=to_duration(10 * HOUR_NS))
    run.work(activity("one", retry_policy=RetryPolicy(initial_interval=to_duration(HOUR_NS))))
    run.step(lambda step: start_activity(step, FIRST_ACTIVITY, request_id="r", identity="worker"))
    fail(run)
    (event,) = skip(run)
    target_ns = from_timestamp(event.workflow_execution_time_skipping_transitioned_event_attributes.target_time)
    assert run.task(ActivityRetry).fire_at_ns == target_ns
    assert run.task(RunTimeout).fire_at_ns == run.state.started.run_expires_at_ns


def test_skipping_ends_with_the_last_skip_that_is_allowed() -> None:
    run = Scenario(time_skipping_config=TimeSkippingConfig(enabled=True, max_session_skip_count=1))
    run.work(timer("one", 3600))
    assert len(skip(run)) == 1
    assert run.state.time_skipping is not None
    assert not run.state.time_skipping.is_enabled
    assert skip(run) == []


def fast_forward(seconds: int) -> TimeSkippingConfig:
    config = TimeSkippingConfig(enabled=True, max_session_skip_count=200)
    config.fast_forward_config.CopyFrom(FastForwardConfig(id="x", duration=to_duration(seconds * SECOND_NS)))
    return config


def test_a_fast_forward_ends_before_a_timer_that_is_later() -> None:
    run = Scenario()
    run.work(timer("one", 7200))

    def configure(step: Transaction) -> None:
        update_options(step, Options.of(step.state), identity="", time_skipping=fast_forward(3600))

    run.step(configure)
    due = run.task(FastForwardEnd)
    (event,) = skip(run)
    attributes = event.workflow_execution_time_skipping_transitioned_event_attributes
    assert attributes.disabled_after_fast_forward
    assert from_timestamp(attributes.target_time) == due.fire_at_ns
    clock = run.state.time_skipping
    assert clock is not None
    assert (clock.has_completed, clock.is_enabled) == (True, False)
    assert skip(run) == []
    # The timer of the fast-forward then has nothing to do.
    assert run.step(lambda step: end_fast_forward(step, due)) is False


def test_a_fast_forward_ends_at_its_time_though_nothing_can_be_skipped() -> None:
    run = Scenario(time_skipping_config=fast_forward(3600))
    due = run.task(FastForwardEnd)
    run.work(activity("one"))
    assert skip(run) == []
    run.now_ns = due.fire_at_ns
    assert run.step(lambda step: end_fast_forward(step, due))
    assert run.types()[-1] == TRANSITIONED
    assert run.state.skipped_ns == 0
    assert run.state.time_skipping is not None
    assert run.state.time_skipping.has_completed


def test_the_end_of_a_fast_forward_waits_for_the_end_of_a_workflow_task() -> None:
    run = Scenario(time_skipping_config=fast_forward(3600))
    due = run.task(FastForwardEnd)
    run.start_task()
    run.now_ns = due.fire_at_ns
    run.step(lambda step: end_fast_forward(step, due))
    assert TRANSITIONED not in run.types()
    run.answer(timer("one", 60))
    assert TRANSITIONED in run.types()
