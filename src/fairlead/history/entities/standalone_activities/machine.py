"""The steps of a standalone activity: pure decisions on its state, with the tasks that follow from them."""

from typing import NamedTuple

from temporalio.api.activity.v1 import ActivityExecutionOutcome
from temporalio.api.common.v1 import Payloads, RetryPolicy
from temporalio.api.enums.v1 import RetryState, TimeoutType
from temporalio.api.failure.v1 import Failure

from fairlead.api.errors import FailedPrecondition, InvalidArgument, NotFound
from fairlead.api.retry import RetryDecision, decide_retry, timeout_name
from fairlead.api.times import from_duration, to_duration
from fairlead.history.entities.entity import EntityStep
from fairlead.history.entities.standalone_activities.state import AT_WORKER, ActivityState, Asked, Phase
from fairlead.history.entities.standalone_activities.tasks import Dispatch, TimeOut, encode_task
from fairlead.history.messages.matching_tasks import NO_SDK, Sdk
from fairlead.history.state.errors import NotPending
from fairlead.history.state.tasks import ActivityTimeoutKind

FAILURE_BYTES_MAX = 4 * 1024

Step = EntityStep[ActivityState]
_Kind = ActivityTimeoutKind


class HeartbeatResponse(NamedTuple):
    """The response to a heartbeat."""

    cancel_requested: bool
    paused: bool
    was_reset: bool = False


def absent(activity_id: str) -> NotFound:
    """The error for an activity or an attempt that does not exist."""
    return NotFound(f"activity not found for ID: {activity_id}")


def schedule(step: Step) -> None:
    """Schedule the first attempt of a new activity."""
    dispatch(step)
    limit_all(step)


def start(step: Step, *, stamp: int, identity: str, sdk: Sdk = NO_SDK) -> None:
    """Give the waiting attempt to a worker."""
    state = step.state
    if state.phase is not Phase.SCHEDULED or state.stamp != stamp:
        raise NotPending("Activity task not found.")
    state.phase = Phase.STARTED
    state.starts += 1
    state.started_ns = step.now_ns
    state.identity = identity
    state.sdk_name, state.sdk_version = sdk
    limit_attempt(step)


def heartbeat(step: Step, *, number: int | None, details: Payloads | None) -> HeartbeatResponse:
    """Record a heartbeat; the next attempt gets the details."""
    state = step.state
    _check_held(state, number)
    _beat(step, details)
    return HeartbeatResponse(
        cancel_requested=state.phase is Phase.CANCEL_REQUESTED,
        paused=state.phase is Phase.PAUSE_REQUESTED,
        was_reset=state.phase is Phase.RESET_REQUESTED,
    )


def complete(step: Step, *, number: int | None, result: Payloads | None, identity: str) -> None:
    """Complete the activity.

    A request by id (`number` is None) may complete it even before a worker has started it.
    """
    state = step.state
    if number is None:
        if not state.is_open:
            raise FailedPrecondition(f"invalid transition from {state.phase.title}")
        if state.phase not in AT_WORKER:
            state.started_ns = step.now_ns
            state.identity = identity
    else:
        _check_held(state, number)
    state.attempt_ended_ns = step.now_ns
    outcome = ActivityExecutionOutcome()
    outcome.result.SetInParent()
    if result is not None:
        outcome.result.CopyFrom(result)
    _close(step, Phase.COMPLETED, outcome)


def fail(step: Step, *, number: int | None, failure: Failure | None, last_details: Payloads | None) -> None:
    """Fail the attempt; then schedule a retry, or fail the activity."""
    state = step.state
    _check_held(state, number)
    if last_details is not None:
        _beat(step, last_details)
    decision = _retry(step, failure)
    if decision.backoff_ns is None:
        state.last_failure = _kept(failure)
        _close(step, Phase.FAILED, ActivityExecutionOutcome(failure=failure or Failure(), retry_state=decision.state))


def cancel_by_worker(step: Step, *, number: int | None, details: Payloads | None) -> None:
    """Cancel the activity: the worker ended it after a cancel request."""
    state = step.state
    _check_held(state, number)
    if state.phase is not Phase.CANCEL_REQUESTED or state.cancel is None:
        raise InvalidArgument("unable to mark activity as canceled without activity being request canceled first")
    _cancel(step, state.cancel, details)


def request_cancel(step: Step, asked: Asked, *, details: Payloads) -> None:
    """Request cancellation from the worker; cancel the activity at once if no worker has it."""
    state = step.state
    if state.cancel is not None and state.cancel.request_id == asked.request_id:
        step.skip_write = True
        return
    if not state.is_open:
        raise FailedPrecondition(f"activity is in terminal state {state.phase.title}")
    if state.cancel is not None:
        raise FailedPrecondition(f"cancellation already requested with request ID {state.cancel.request_id}")
    state.cancel = asked
    if state.phase in AT_WORKER:
        state.phase = Phase.CANCEL_REQUESTED
    else:
        _cancel(step, asked, details)


def terminate(step: Step, *, request_id: str, identity: str, reason: str) -> None:
    """Terminate the activity, even if a worker has it."""
    state = step.state
    if state.phase is Phase.TERMINATED:
        if state.terminate_request_id != request_id:
            raise FailedPrecondition(f"already terminated with request ID {state.terminate_request_id}")
        step.skip_write = True
        return
    if not state.is_open:
        raise FailedPrecondition(f"invalid transition from {state.phase.title}")
    state.terminate_request_id = request_id
    failure = Failure(message=reason)
    failure.terminated_failure_info.identity = identity
    _close(step, Phase.TERMINATED, ActivityExecutionOutcome(failure=failure))


def time_out(step: Step, due: TimeOut) -> None:
    """Time out if the timeout still applies to the state: timeouts may have changed."""
    state = step.state
    if not state.is_open or not _is_over(step, due):
        # Write only if the timeout was postponed.
        step.skip_write = not step.tasks
        return
    if due.kind in (_Kind.START_TO_CLOSE, _Kind.HEARTBEAT):
        _time_out_attempt(step, due.kind)
        return
    kind = due.kind
    if (
        kind is _Kind.SCHEDULE_TO_CLOSE
        and state.phase is Phase.SCHEDULED
        and _start_limit_ns(state) <= state.expires_ns
    ):
        # Both timeouts are over: report schedule-to-start, because no worker took the attempt in time.
        kind = _Kind.SCHEDULE_TO_START
    _close_timed_out(step, _timeout(kind), RetryState.RETRY_STATE_TIMEOUT)


def dispatch(step: Step) -> None:
    """Add the task that dispatches the waiting attempt when it is due, and its schedule-to-start timeout."""
    state = step.state
    step.add_task(encode_task(Dispatch(state.stamp)), state.due_ns if state.due_ns > step.now_ns else 0)
    if state.options.schedule_to_start_ns:
        due = TimeOut(_Kind.SCHEDULE_TO_START, state.stamp)
        step.add_task(encode_task(due), _start_limit_ns(state))


def limit_all(step: Step) -> None:
    """Add the schedule-to-close timeout."""
    if step.state.expires_ns:
        step.add_task(encode_task(TimeOut(_Kind.SCHEDULE_TO_CLOSE, 0)), step.state.expires_ns)


def limit_attempt(step: Step) -> None:
    """Add the start-to-close and heartbeat timeouts of the started attempt."""
    state = step.state
    for kind, limit_ns in _attempt_limits(state):
        if limit_ns:
            step.add_task(encode_task(TimeOut(kind, state.starts)), limit_ns)


def _attempt_limits(state: ActivityState) -> tuple[tuple[ActivityTimeoutKind, int], ...]:
    options = state.options
    heard_ns = max(state.heartbeat_at_ns, state.started_ns)
    return (
        (_Kind.START_TO_CLOSE, state.started_ns + options.start_to_close_ns if options.start_to_close_ns else 0),
        (_Kind.HEARTBEAT, heard_ns + options.heartbeat_ns if options.heartbeat_ns else 0),
    )


def _start_limit_ns(state: ActivityState) -> int:
    return state.due_ns + state.options.schedule_to_start_ns


def _is_over(step: Step, due: TimeOut) -> bool:
    state, now_ns = step.state, step.now_ns
    if due.kind is _Kind.SCHEDULE_TO_CLOSE:
        return 0 < state.expires_ns <= now_ns
    if due.kind is _Kind.SCHEDULE_TO_START:
        limit_ns = state.options.schedule_to_start_ns
        is_this = state.phase is Phase.SCHEDULED and state.stamp == due.number
        return is_this and limit_ns > 0 and _start_limit_ns(state) <= now_ns
    if state.phase not in AT_WORKER or state.starts != due.number:
        return False
    limit_ns = dict(_attempt_limits(state))[due.kind]
    if due.kind is _Kind.HEARTBEAT and limit_ns > now_ns:
        # A heartbeat arrived in the meantime: postpone the timeout.
        step.add_task(encode_task(due), limit_ns)
    return 0 < limit_ns <= now_ns


def is_timeout_pending(state: ActivityState, due: TimeOut, fire_at_ns: int) -> bool:
    """Whether the timeout will have an effect when it fires; a later heartbeat would postpone it."""
    step: Step = EntityStep(state, fire_at_ns)
    return state.is_open and (_is_over(step, due) or bool(step.tasks))


def _time_out_attempt(step: Step, kind: ActivityTimeoutKind) -> None:
    state = step.state
    decision = _retry(step, _timeout(kind))
    if decision.backoff_ns is not None:
        return
    failure = _timeout(kind)
    if decision.state == RetryState.RETRY_STATE_TIMEOUT:
        state.last_failure = _kept(failure)
        failure = _timeout(_Kind.SCHEDULE_TO_CLOSE)
        failure.message = (
            "Not enough time to schedule next retry before activity ScheduleToClose timeout, giving up retrying"
        )
        _close(step, Phase.TIMED_OUT, ActivityExecutionOutcome(failure=failure, retry_state=decision.state))
        return
    _close_timed_out(step, failure, decision.state)
    state.last_failure = _kept(ActivityExecutionOutcome.FromString(state.outcome).failure)


def _close_timed_out(step: Step, failure: Failure, why: RetryState.ValueType) -> None:
    state = step.state
    if state.last_failure is not None:
        failure.cause.ParseFromString(state.last_failure)
    if state.heartbeat_details is not None:
        failure.timeout_failure_info.last_heartbeat_details.ParseFromString(state.heartbeat_details)
    _close(step, Phase.TIMED_OUT, ActivityExecutionOutcome(failure=failure, retry_state=why))


def _timeout(kind: ActivityTimeoutKind) -> Failure:
    timeout_type = TimeoutType.ValueType(kind)
    failure = Failure(message=f"activity {timeout_name(timeout_type)} timeout")
    failure.timeout_failure_info.timeout_type = timeout_type
    return failure


def _retry(step: Step, failure: Failure | None) -> RetryDecision:
    """Prepare the next attempt if the retry policy allows one."""
    state = step.state
    state.attempt_ended_ns = step.now_ns
    decision = _decide(step, failure)
    if decision.backoff_ns is None:
        return decision
    was_reset = state.phase is Phase.RESET_REQUESTED
    is_paused = state.phase is Phase.PAUSE_REQUESTED or (was_reset and state.stays_paused)
    state.attempt = 1 if was_reset else state.attempt + 1
    state.retry_interval_ns = 0 if was_reset else decision.backoff_ns
    if was_reset and state.forgets_heartbeat:
        forget_heartbeat(state)
    state.stays_paused = state.forgets_heartbeat = False
    state.last_failure = _kept(failure)
    state.phase = Phase.PAUSED if is_paused else Phase.SCHEDULED
    state.stamp += 1
    state.due_ns = step.now_ns + decision.backoff_ns
    if not is_paused:
        dispatch(step)
    return decision


def _decide(step: Step, failure: Failure | None) -> RetryDecision:
    state = step.state
    if state.phase is Phase.CANCEL_REQUESTED:
        return RetryDecision(None, RetryState.RETRY_STATE_CANCEL_REQUESTED)
    policy = RetryPolicy.FromString(state.options.retry_policy)
    attempt = state.attempt
    if state.phase is Phase.RESET_REQUESTED:
        # After a reset there is a next attempt, regardless of the result of this attempt.
        policy.maximum_attempts = 0
        attempt, failure = 1, None
    elif failure is not None and failure.HasField("application_failure_info"):
        # The worker's next retry delay may exceed the policy's maximum interval.
        wanted_ns = from_duration(failure.application_failure_info.next_retry_delay)
        if wanted_ns > from_duration(policy.maximum_interval) > 0:
            policy.maximum_interval.CopyFrom(to_duration(wanted_ns))
    return decide_retry(
        policy, attempt=attempt, failure=failure, now_ns=step.now_ns, expires_at_ns=step.state.expires_ns
    )


def forget_heartbeat(state: ActivityState) -> None:
    """Drop the heartbeat details, so that the next attempt doesn't get them."""
    state.heartbeat_details = None
    state.heartbeat_at_ns = 0


def _beat(step: Step, details: Payloads | None) -> None:
    state = step.state
    state.heartbeat_at_ns = step.now_ns
    state.heartbeat_details = details.SerializeToString() if details is not None else None
    state.heartbeats += 1


def _check_held(state: ActivityState, number: int | None) -> None:
    if state.phase not in AT_WORKER or number not in (None, state.starts):
        raise absent(state.activity_id)


def _cancel(step: Step, asked: Asked, details: Payloads | None) -> None:
    failure = Failure(message="Activity canceled")
    failure.canceled_failure_info.identity = asked.identity
    if details is not None:
        failure.canceled_failure_info.details.CopyFrom(details)
    _close(step, Phase.CANCELED, ActivityExecutionOutcome(failure=failure))


def _close(step: Step, phase: Phase, outcome: ActivityExecutionOutcome) -> None:
    state = step.state
    state.phase = phase
    state.closed_ns = step.now_ns
    state.outcome = outcome.SerializeToString()


def _kept(failure: Failure | None) -> bytes | None:
    """The failure, truncated to the size that the state may hold."""
    if failure is None:
        return None
    if failure.ByteSize() <= FAILURE_BYTES_MAX:
        return failure.SerializeToString()
    kept = Failure(message="Failure exceeds size limit.")
    kept.server_failure_info.SetInParent()
    kept.cause.message = failure.message[: FAILURE_BYTES_MAX // 4]
    kept.cause.source = failure.source[: FAILURE_BYTES_MAX // 16]
    if failure.HasField("application_failure_info"):
        kept.cause.application_failure_info.type = failure.application_failure_info.type[: FAILURE_BYTES_MAX // 16]
    return kept.SerializeToString()
