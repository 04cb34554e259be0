"""The state machine of a standalone activity, with a clock that the test sets."""

from dataclasses import dataclass, field

import pytest
from temporalio.api.activity.v1 import ActivityExecutionOutcome
from temporalio.api.common.v1 import Payload, Payloads, RetryPolicy
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure

from fairlead.api.errors import ApiError
from fairlead.api.times import SECOND_NS, to_duration
from fairlead.history.entities.entity import EntityStep
from fairlead.history.entities.standalone_activities import controls, machine
from fairlead.history.entities.standalone_activities.machine import HeartbeatResponse, Step
from fairlead.history.entities.standalone_activities.state import ActivityState, Asked, Phase
from fairlead.history.entities.standalone_activities.tasks import AnyTask, Dispatch, TimeOut, decode_task
from fairlead.history.messages.activity_options import Options
from fairlead.history.state.errors import NotPending

START_NS = 1_700_000_000 * SECOND_NS


def payloads(text: str) -> Payloads:
    return Payloads(payloads=[Payload(data=text.encode())])


def failure(message: str = "no", *, non_retryable: bool = False, delay_s: int = 0) -> Failure:
    failed = Failure(message=message)
    failed.application_failure_info.non_retryable = non_retryable
    if delay_s:
        failed.application_failure_info.next_retry_delay.FromSeconds(delay_s)
    return failed


@dataclass
class Activity:
    """An activity with its pending tasks and their due times."""

    to_close_s: int = 0
    to_start_s: int = 0
    work_s: int = 10
    heartbeat_s: int = 0
    attempts_max: int = 0
    delay_s: int = 0
    now_ns: int = START_NS
    tasks: list[tuple[int, AnyTask]] = field(default_factory=list)

    def __post_init__(self) -> None:
        policy = RetryPolicy(
            initial_interval=to_duration(SECOND_NS),
            backoff_coefficient=2,
            maximum_interval=to_duration(100 * SECOND_NS),
            maximum_attempts=self.attempts_max,
        )
        options = Options(
            task_queue="q",
            schedule_to_close_ns=self.to_close_s * SECOND_NS,
            schedule_to_start_ns=self.to_start_s * SECOND_NS,
            start_to_close_ns=self.work_s * SECOND_NS,
            heartbeat_ns=self.heartbeat_s * SECOND_NS,
            retry_policy=policy.SerializeToString(),
            start_delay_ns=self.delay_s * SECOND_NS,
        )
        due_ns = START_NS + options.start_delay_ns
        self.state = ActivityState("a", "run", "type", options, options, START_NS, due_ns)
        machine.schedule(self.step())

    def step(self) -> Step:
        step: Step = EntityStep(self.state, self.now_ns)
        step.tasks = _Recorder(self)
        return step

    def start(self, identity: str = "worker") -> int:
        machine.start(self.step(), stamp=self.state.stamp, identity=identity)
        return self.state.starts

    def wait(self, seconds: float) -> None:
        """Advance the clock and fire the timeouts that become due; the test itself starts dispatched attempts."""
        until_ns = self.now_ns + int(seconds * SECOND_NS)
        while True:
            due = [one for one in self.tasks if one[0] <= until_ns and isinstance(one[1], TimeOut)]
            if not due:
                break
            first = min(due, key=lambda one: one[0])
            self.tasks.remove(first)
            self.now_ns = max(self.now_ns, first[0])
            assert isinstance(first[1], TimeOut)
            machine.time_out(self.step(), first[1])
        self.now_ns = until_ns

    def phase(self) -> Phase:
        return self.state.phase

    @property
    def outcome(self) -> ActivityExecutionOutcome:
        return ActivityExecutionOutcome.FromString(self.state.outcome)

    @property
    def dispatched_s(self) -> float:
        """Seconds between the start of the activity and the dispatch of the waiting attempt."""
        found = [at for at, task in self.tasks if task == Dispatch(self.state.stamp)]
        assert len(found) == 1
        return (max(found[0], self.now_ns) - START_NS) / SECOND_NS


class _Recorder(list[tuple[bytes, int]]):
    """Records the tasks of a step as they are added."""

    def __init__(self, activity: Activity) -> None:
        super().__init__()
        self._activity = activity

    def append(self, task: tuple[bytes, int]) -> None:
        super().append(task)
        self._activity.tasks.append((task[1], decode_task(task[0])))


def test_an_attempt_is_started_by_one_worker_only() -> None:
    activity = Activity()
    stamp = activity.state.stamp
    activity.start()
    with pytest.raises(NotPending):
        machine.start(activity.step(), stamp=stamp, identity="another")


def test_a_result_ends_the_activity_and_a_second_one_is_refused() -> None:
    activity = Activity()
    number = activity.start()
    machine.complete(activity.step(), number=number, result=payloads("yes"), identity="worker")
    assert activity.phase() is Phase.COMPLETED
    assert activity.outcome.result == payloads("yes")
    with pytest.raises(ApiError, match="activity not found for ID: a"):
        machine.complete(activity.step(), number=number, result=None, identity="worker")
    with pytest.raises(ApiError, match="invalid transition from Completed"):
        machine.complete(activity.step(), number=None, result=None, identity="worker")


def test_each_failure_doubles_the_wait_until_the_attempts_are_over() -> None:
    activity = Activity(attempts_max=3)
    for attempt, offered_s in ((2, 1.0), (3, 3.0)):
        machine.fail(activity.step(), number=activity.start(), failure=failure(), last_details=None)
        assert (activity.state.attempt, activity.dispatched_s) == (attempt, offered_s)
        activity.wait(2 ** (attempt - 2))
    machine.fail(activity.step(), number=activity.start(), failure=failure("last"), last_details=None)
    assert activity.phase() is Phase.FAILED
    assert activity.outcome.failure == failure("last")
    assert activity.outcome.retry_state == RetryState.RETRY_STATE_MAXIMUM_ATTEMPTS_REACHED


def test_a_non_retryable_failure_ends_the_activity() -> None:
    activity = Activity()
    machine.fail(activity.step(), number=activity.start(), failure=failure(non_retryable=True), last_details=None)
    assert activity.phase() is Phase.FAILED
    assert activity.outcome.retry_state == RetryState.RETRY_STATE_NON_RETRYABLE_FAILURE


def test_the_delay_of_a_worker_may_exceed_the_maximum_interval() -> None:
    activity = Activity()
    machine.fail(activity.step(), number=activity.start(), failure=failure(delay_s=1000), last_details=None)
    assert activity.dispatched_s == 1000


def test_the_response_of_an_earlier_attempt_is_refused() -> None:
    activity = Activity()
    first = activity.start()
    machine.fail(activity.step(), number=first, failure=failure(), last_details=None)
    activity.wait(1)
    activity.start()
    for act in (
        lambda: machine.heartbeat(activity.step(), number=first, details=None),
        lambda: machine.complete(activity.step(), number=first, result=None, identity=""),
        lambda: machine.fail(activity.step(), number=first, failure=None, last_details=None),
        lambda: machine.cancel_by_worker(activity.step(), number=first, details=None),
    ):
        with pytest.raises(ApiError, match="activity not found for ID: a"):
            act()


def test_a_schedule_to_start_timeout_ends_the_activity_without_a_retry() -> None:
    activity = Activity(to_start_s=5)
    activity.wait(5)
    assert activity.phase() is Phase.TIMED_OUT
    information = activity.outcome.failure.timeout_failure_info
    assert information.timeout_type == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
    assert activity.outcome.retry_state == RetryState.RETRY_STATE_TIMEOUT


def test_an_attempt_that_times_out_is_retried() -> None:
    activity = Activity(work_s=10, attempts_max=2)
    activity.start()
    activity.wait(9.9)
    assert activity.phase() is Phase.STARTED
    activity.wait(0.1)
    assert (activity.phase(), activity.state.attempt) == (Phase.SCHEDULED, 2)
    activity.wait(1)
    activity.start()
    activity.wait(10)
    assert activity.phase() is Phase.TIMED_OUT
    assert activity.outcome.failure.message == "activity StartToClose timeout"
    assert activity.outcome.failure.cause.message == "activity StartToClose timeout"


def test_heartbeats_keep_an_attempt_alive_and_missing_ones_end_it() -> None:
    activity = Activity(work_s=100, heartbeat_s=2, attempts_max=1)
    number = activity.start()
    for beat in range(5):
        activity.wait(1.5)
        assert machine.heartbeat(activity.step(), number=number, details=payloads(str(beat))) == HeartbeatResponse(
            cancel_requested=False, paused=False
        )
    activity.wait(1.9)
    assert activity.phase() is Phase.STARTED
    activity.wait(0.1)
    assert activity.phase() is Phase.TIMED_OUT
    information = activity.outcome.failure.timeout_failure_info
    assert information.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT
    assert information.last_heartbeat_details == payloads("4")


def test_the_schedule_to_close_timeout_ends_a_running_attempt() -> None:
    activity = Activity(to_close_s=15, work_s=10)
    activity.start()
    activity.wait(10)
    activity.wait(1)
    activity.start()
    activity.wait(4)
    assert activity.phase() is Phase.TIMED_OUT
    assert activity.outcome.failure.message == "activity ScheduleToClose timeout"


def test_an_activity_without_time_for_another_attempt_ends_at_once() -> None:
    activity = Activity(to_close_s=11, work_s=10)
    activity.wait(0.5)
    activity.start()
    activity.wait(10)
    assert activity.phase() is Phase.TIMED_OUT
    assert activity.outcome.failure.message.startswith("Not enough time to schedule next retry")
    assert activity.outcome.retry_state == RetryState.RETRY_STATE_TIMEOUT


def test_a_start_delay_is_waited_for_and_does_not_count_against_the_timeouts() -> None:
    activity = Activity(delay_s=30, to_start_s=5, to_close_s=20)
    assert activity.dispatched_s == 30
    activity.wait(34.9)
    assert activity.phase() is Phase.SCHEDULED
    activity.wait(0.1)
    assert activity.phase() is Phase.TIMED_OUT


def test_a_cancellation_ends_an_activity_without_a_worker_at_once() -> None:
    activity = Activity()
    machine.request_cancel(activity.step(), Asked("r", "me", "why"), details=payloads("why"))
    assert activity.phase() is Phase.CANCELED
    assert activity.outcome.failure.canceled_failure_info.identity == "me"
    assert activity.outcome.failure.canceled_failure_info.details == payloads("why")


def test_a_worker_is_notified_of_a_cancellation_and_may_end_the_activity_in_any_way() -> None:
    activity = Activity()
    number = activity.start()
    with pytest.raises(ApiError, match="without activity being request canceled first"):
        machine.cancel_by_worker(activity.step(), number=number, details=None)
    machine.request_cancel(activity.step(), Asked("r"), details=payloads(""))
    with pytest.raises(ApiError, match="cancellation already requested with request ID r"):
        machine.request_cancel(activity.step(), Asked("s"), details=payloads(""))
    again = activity.step()
    machine.request_cancel(again, Asked("r"), details=payloads(""))
    assert again.skip_write
    assert machine.heartbeat(activity.step(), number=number, details=None).cancel_requested
    machine.cancel_by_worker(activity.step(), number=number, details=payloads("done"))
    assert activity.phase() is Phase.CANCELED
    assert activity.outcome.failure.canceled_failure_info.details == payloads("done")


def test_an_activity_with_a_requested_cancellation_is_not_retried() -> None:
    activity = Activity()
    number = activity.start()
    machine.request_cancel(activity.step(), Asked("r"), details=payloads(""))
    machine.fail(activity.step(), number=number, failure=failure(), last_details=None)
    assert activity.phase() is Phase.FAILED
    assert activity.outcome.retry_state == RetryState.RETRY_STATE_CANCEL_REQUESTED


def test_an_activity_can_be_terminated_once() -> None:
    activity = Activity()
    number = activity.start()
    machine.terminate(activity.step(), request_id="t", identity="me", reason="enough")
    assert activity.outcome.failure.message == "enough"
    again = activity.step()
    machine.terminate(again, request_id="t", identity="me", reason="enough")
    assert again.skip_write
    with pytest.raises(ApiError, match="already terminated with request ID t"):
        machine.terminate(activity.step(), request_id="u", identity="me", reason="enough")
    with pytest.raises(ApiError, match="activity not found"):
        machine.heartbeat(activity.step(), number=number, details=None)


def test_a_paused_activity_is_not_dispatched_until_it_is_unpaused() -> None:
    activity = Activity(to_start_s=5)
    offered = activity.state.stamp
    controls.pause(activity.step(), request_id="p")
    with pytest.raises(NotPending):
        machine.start(activity.step(), stamp=offered, identity="worker")
    activity.wait(60)
    assert activity.phase() is Phase.PAUSED
    controls.unpause(activity.step(), request_id="u", jitter_ns=0)
    assert activity.dispatched_s == 60
    activity.start()


def test_a_pause_takes_effect_when_the_running_attempt_fails() -> None:
    activity = Activity()
    number = activity.start()
    controls.pause(activity.step(), request_id="p")
    assert machine.heartbeat(activity.step(), number=number, details=None).paused
    machine.fail(activity.step(), number=number, failure=failure(), last_details=None)
    assert (activity.phase(), activity.state.attempt) == (Phase.PAUSED, 2)
    controls.unpause(activity.step(), request_id="u", jitter_ns=0)
    assert activity.dispatched_s == 1


def test_the_schedule_to_close_timeout_runs_during_a_pause() -> None:
    activity = Activity(to_close_s=20)
    controls.pause(activity.step(), request_id="p")
    activity.wait(20)
    assert activity.phase() is Phase.TIMED_OUT


def test_a_reset_restarts_the_attempts_and_refuses_earlier_responses() -> None:
    activity = Activity(attempts_max=2)
    machine.fail(activity.step(), number=activity.start(), failure=failure(), last_details=None)
    controls.reset(activity.step(), keep_paused=False, forgets_heartbeat=False, restores_options=False, jitter_ns=0)
    assert (activity.state.attempt, activity.dispatched_s) == (1, 0)
    number = activity.start()
    assert number == 2
    with pytest.raises(ApiError, match="activity not found"):
        machine.complete(activity.step(), number=1, result=None, identity="")


def test_a_reset_of_a_running_attempt_takes_effect_when_it_fails() -> None:
    activity = Activity(attempts_max=1)
    number = activity.start()
    machine.heartbeat(activity.step(), number=number, details=payloads("half"))
    controls.reset(activity.step(), keep_paused=False, forgets_heartbeat=True, restores_options=False, jitter_ns=0)
    assert machine.heartbeat(activity.step(), number=number, details=payloads("more")).was_reset
    machine.fail(activity.step(), number=number, failure=failure(non_retryable=True), last_details=None)
    assert (activity.phase(), activity.state.attempt) == (Phase.SCHEDULED, 1)
    assert activity.state.heartbeat_details is None


def test_changed_timeouts_apply_to_the_running_attempt() -> None:
    activity = Activity(work_s=10, attempts_max=1)
    activity.start()
    options = activity.state.options
    longer = Options(options.task_queue, 0, 0, 20 * SECOND_NS, 0, options.retry_policy)
    controls.update_options(activity.step(), longer, sets_delay=False)
    activity.wait(19.9)
    assert activity.phase() is Phase.STARTED
    activity.wait(0.1)
    assert activity.phase() is Phase.TIMED_OUT


def test_changed_options_invalidate_the_task_in_the_old_task_queue() -> None:
    activity = Activity()
    offered = activity.state.stamp
    options = activity.state.options
    elsewhere = Options("elsewhere", 0, 0, 10 * SECOND_NS, 0, options.retry_policy)
    controls.update_options(activity.step(), elsewhere, sets_delay=False)
    with pytest.raises(NotPending):
        machine.start(activity.step(), stamp=offered, identity="worker")
    activity.start()
    with pytest.raises(ApiError, match="the first activity attempt has already been dispatched"):
        controls.update_options(activity.step(), elsewhere, sets_delay=True)
