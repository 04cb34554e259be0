"""The steps of a standalone Nexus operation: pure decisions on its state, with the tasks that follow from them."""

from collections.abc import Iterable

from temporalio.api.common.v1 import Link, Payload
from temporalio.api.enums.v1 import NexusOperationCancellationState as CancelState
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure

from fairlead.api.errors import FailedPrecondition, NotFound
from fairlead.history.entities.entity import EntityStep
from fairlead.history.entities.standalone_nexus.state import Calls, Cancellation, OperationState, Phase
from fairlead.history.entities.standalone_nexus.tasks import Call, CallTimeout, Retry, TimeOut, encode_task
from fairlead.history.state.errors import NotPending
from fairlead.history.state.nexus_calls import CALL_NS_MAX, backoff_ns, kept_failure
from fairlead.history.state.nexus_failures import handler_failure, is_retryable

Step = EntityStep[OperationState]

_NOT_FOUND = "Nexus task not found or already expired"
_SCHEDULED = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_SCHEDULED
_BACKING_OFF = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_BACKING_OFF
_SUCCEEDED = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_SUCCEEDED
_FAILED = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_FAILED


def absent(operation_id: str) -> NotFound:
    """The error for an operation that does not exist."""
    return NotFound(f"operation not found for ID: {operation_id}")


def schedule(step: Step) -> None:
    """Add the timeouts and the first request of a new operation."""
    state = step.state
    _limit(step, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, state.scheduled_ns, state.schedule_to_close_ns)
    _limit(step, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START, state.scheduled_ns, state.schedule_to_start_ns)
    _call(step, state.calls, is_cancel=False)


def is_called(state: OperationState, attempt: int, *, is_cancel: bool) -> bool:
    """Whether a request to the handler still waits for a response."""
    if is_cancel:
        cancellation = state.cancellation
        return (
            state.phase is Phase.STARTED
            and cancellation is not None
            and cancellation.state == _SCHEDULED
            and cancellation.calls.attempt == attempt
        )
    return state.phase is Phase.SCHEDULED and state.calls.attempt == attempt


def start(step: Step, attempt: int, *, token: str, links: Iterable[Link]) -> None:
    """Record that the handler has started the operation. The handler will report its end."""
    _check_called(step.state, attempt)
    _start(step, token=token, links=links, started_ns=step.now_ns)


def succeed(step: Step, attempt: int, *, result: Payload, links: Iterable[Link]) -> None:
    """Complete the operation: the handler responded with the result."""
    _check_called(step.state, attempt)
    _add_links(step.state, links)
    _succeed(step, result)


def fail(step: Step, attempt: int, *, failure: Failure) -> None:
    """Fail or cancel the operation according to the handler's response."""
    _check_called(step.state, attempt)
    _end_call(step, step.state.calls, failure)
    _fail(step, failure)


def call_failed(step: Step, attempt: int, *, failure: Failure) -> None:
    """Handle a failed request: retry it if the failure is retryable, else fail the operation."""
    _check_called(step.state, attempt)
    state = step.state
    _end_call(step, state.calls, failure)
    if not is_retryable(failure):
        _fail(step, failure)
        return
    state.phase = Phase.BACKING_OFF
    _back_off(step, state.calls, is_cancel=False)


def cancel_answered(step: Step, attempt: int, *, failure: Failure | None) -> None:
    """Record the handler's response to the cancel request, or its failure."""
    cancellation = step.state.cancellation
    if cancellation is None or not is_called(step.state, attempt, is_cancel=True):
        raise NotPending(_NOT_FOUND)
    _end_call(step, cancellation.calls, failure)
    if failure is None:
        cancellation.state = _SUCCEEDED
    elif is_retryable(failure):
        cancellation.state = _BACKING_OFF
        _back_off(step, cancellation.calls, is_cancel=True)
    else:
        cancellation.state = _FAILED


def end(
    step: Step,
    *,
    request_id: str,
    token: str,
    started_ns: int,
    links: Iterable[Link],
    result: Payload,
    failure: Failure | None,
) -> None:
    """End the operation as the handler reports.

    The report may arrive before the response to the start request.
    """
    state = step.state
    if not state.is_open or state.request_id != request_id:
        raise NotPending("operation not found")
    if state.phase is not Phase.STARTED:
        _start(step, token=token, links=links, started_ns=started_ns)
    if failure is None:
        _succeed(step, result)
    else:
        _fail(step, failure)


def request_cancel(step: Step, *, request_id: str, identity: str, reason: str) -> None:
    """Ask the handler to cancel the operation, after the handler has started it."""
    state = step.state
    present = state.cancellation
    if present is not None and present.request_id == request_id:
        step.skip_write = True
        return
    if not state.is_open:
        raise FailedPrecondition("operation already completed")
    if present is not None:
        raise FailedPrecondition(f"cancellation already requested with request ID {present.request_id}")
    cancellation = state.cancellation = Cancellation(request_id, identity, reason)
    if state.phase is Phase.STARTED:
        _begin_cancel(step, cancellation)


def terminate(step: Step, *, request_id: str, identity: str, reason: str) -> None:
    """End the operation without a request to its handler."""
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
    _close(step, Phase.TERMINATED, failure=failure)


def is_timeout_pending(state: OperationState, due: TimeOut) -> bool:
    """Whether the timeout still applies."""
    is_started = state.phase is Phase.STARTED
    return state.is_open and not (due.kind == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START and is_started)


def time_out(step: Step, due: TimeOut) -> None:
    """Close the operation, unless the timeout no longer applies."""
    if not is_timeout_pending(step.state, due):
        step.skip_write = True
        return
    failure = Failure(message="operation timed out")
    failure.timeout_failure_info.timeout_type = TimeoutType.ValueType(due.kind)
    _close(step, Phase.TIMED_OUT, failure=failure)


def give_up_call(step: Step, due: CallTimeout) -> None:
    """Handle a request that got no response in time: it is retried."""
    if not is_called(step.state, due.attempt, is_cancel=due.is_cancel):
        step.skip_write = True
        return
    failure = handler_failure("UPSTREAM_TIMEOUT", "upstream timeout")
    if due.is_cancel:
        cancel_answered(step, due.attempt, failure=failure)
    else:
        call_failed(step, due.attempt, failure=failure)


def is_retry_pending(state: OperationState, due: Retry) -> bool:
    """Whether the retry of the request is still in its backoff."""
    if not due.is_cancel:
        return state.phase is Phase.BACKING_OFF and state.calls.attempt == due.attempt
    cancellation = state.cancellation
    if state.phase is not Phase.STARTED or cancellation is None or cancellation.state != _BACKING_OFF:
        return False
    return cancellation.calls.attempt == due.attempt


def retry(step: Step, due: Retry) -> None:
    """Make the next request, unless the operation has changed since the task was added."""
    state = step.state
    if not is_retry_pending(state, due):
        step.skip_write = True
    elif due.is_cancel and state.cancellation is not None:
        _begin_cancel(step, state.cancellation)
    else:
        state.phase = Phase.SCHEDULED
        _call(step, state.calls, is_cancel=False)


def _start(step: Step, *, token: str, links: Iterable[Link], started_ns: int) -> None:
    state = step.state
    _end_call(step, state.calls, None)
    state.phase = Phase.STARTED
    state.token = token
    state.started_ns = started_ns
    _add_links(state, links)
    _limit(step, TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE, step.now_ns, state.start_to_close_ns)
    if state.cancellation is not None:
        _begin_cancel(step, state.cancellation)


def _begin_cancel(step: Step, cancellation: Cancellation) -> None:
    cancellation.state = _SCHEDULED
    _call(step, cancellation.calls, is_cancel=True)


def _call(step: Step, calls: Calls, *, is_cancel: bool) -> None:
    """Make the next request.

    Its timeout is durable, so the request is retried even if workers never get it.
    """
    calls.attempt += 1
    calls.next_ns = 0
    step.add_task(encode_task(Call(calls.attempt, is_cancel)))
    step.add_task(encode_task(CallTimeout(calls.attempt, is_cancel)), step.now_ns + CALL_NS_MAX)


def _end_call(step: Step, calls: Calls, failure: Failure | None) -> None:
    calls.ended_ns = step.now_ns
    calls.failure = None if failure is None else kept_failure(failure).SerializeToString()
    calls.next_ns = 0


def _back_off(step: Step, calls: Calls, *, is_cancel: bool) -> None:
    calls.next_ns = step.now_ns + backoff_ns(calls.attempt, step.uniform())
    step.add_task(encode_task(Retry(calls.attempt, is_cancel)), calls.next_ns)


def _limit(step: Step, kind: TimeoutType.ValueType, since_ns: int, timeout_ns: int) -> None:
    if timeout_ns:
        step.add_task(encode_task(TimeOut(int(kind))), since_ns + timeout_ns)


def _add_links(state: OperationState, links: Iterable[Link]) -> None:
    state.links = (*state.links, *(link.SerializeToString() for link in links))


def _succeed(step: Step, result: Payload) -> None:
    step.state.result = result.SerializeToString()
    _close(step, Phase.SUCCEEDED)


def _fail(step: Step, failure: Failure) -> None:
    is_canceled = failure.HasField("canceled_failure_info")
    _close(step, Phase.CANCELED if is_canceled else Phase.FAILED, failure=failure)


def _close(step: Step, phase: Phase, *, failure: Failure | None = None) -> None:
    state = step.state
    state.phase = phase
    state.closed_ns = step.now_ns
    state.calls.next_ns = 0
    state.failure = None if failure is None else failure.SerializeToString()


def _check_called(state: OperationState, attempt: int) -> None:
    if not is_called(state, attempt, is_cancel=False):
        raise NotPending(_NOT_FOUND)
