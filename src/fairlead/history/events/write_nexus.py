"""The steps of a Nexus operation, in the calling workflow.

Each request to the handler is answered, or times out and is retried. Events are written only for the start and the end
of the operation, and for the result of a cancel request.
"""

from collections.abc import Collection

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, Payload
from temporalio.api.enums.v1 import NexusOperationCancellationState as CancelState
from temporalio.api.enums.v1 import TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import (
    NexusOperationCanceledEventAttributes,
    NexusOperationCancelRequestCompletedEventAttributes,
    NexusOperationCancelRequestFailedEventAttributes,
    NexusOperationCompletedEventAttributes,
    NexusOperationFailedEventAttributes,
    NexusOperationStartedEventAttributes,
    NexusOperationTimedOutEventAttributes,
)

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.write_workflow_tasks import wake
from fairlead.history.state.errors import NotPending
from fairlead.history.state.nexus_calls import CALL_NS_MAX, backoff_ns, kept_failure
from fairlead.history.state.nexus_failures import handler_failure, is_retryable, operation_failure
from fairlead.history.state.pending import NexusCalls, NexusProgress, PendingNexusOperation
from fairlead.history.state.run import RunState
from fairlead.history.state.tasks import CallNexus, NexusCallTimeout, NexusRetry, NexusTimeout

_NOT_FOUND = "Nexus task not found or already expired"

_SCHEDULED = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_SCHEDULED
_BACKING_OFF = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_BACKING_OFF
_SUCCEEDED = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_SUCCEEDED
_FAILED = CancelState.NEXUS_OPERATION_CANCELLATION_STATE_FAILED


def refresh_operation(transaction: Transaction, operation: PendingNexusOperation) -> None:
    """Add all tasks for an operation that was just scheduled, or that a reset has copied."""
    progress = NexusProgress(is_started=operation.started_event_id > 0, token=operation.operation_token)
    transaction.state.live.nexus[operation.scheduled_event_id] = progress
    since_ns = operation.scheduled_ns
    _limit(transaction, operation, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, since_ns, operation.schedule_to_close_ns)
    if progress.is_started:
        _go_on(transaction, operation, progress, operation.started_ns)
        return
    _limit(transaction, operation, TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START, since_ns, operation.schedule_to_start_ns)
    _call(transaction, operation, progress.start, is_cancel=False)


def operation_started(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    token: str,
    links: Collection[Link],
    attempt: int,
) -> None:
    """Record that the handler has started the operation. A callback will report its end."""
    operation, progress = _waiting(transaction.state, scheduled_event_id, attempt)
    _start(transaction, operation, progress, token=token, links=links)
    wake(transaction)


def _start(
    transaction: Transaction,
    operation: PendingNexusOperation,
    progress: NexusProgress,
    *,
    token: str,
    links: Collection[Link],
    time_ns: int | None = None,
) -> None:
    _end_call(transaction, progress.start)
    progress.is_started = True
    progress.token = token
    transaction.add(
        NexusOperationStartedEventAttributes(
            scheduled_event_id=operation.scheduled_event_id,
            operation_id=token,
            operation_token=token,
            request_id=operation.request_id,
        ),
        links=links,
        time_ns=time_ns,
    )
    _go_on(transaction, operation, progress, transaction.now_ns)


def operation_completed(
    transaction: Transaction, scheduled_event_id: int, *, result: Payload, links: Collection[Link], attempt: int
) -> None:
    """Complete the operation: the handler responded synchronously with the result."""
    operation, _ = _waiting(transaction.state, scheduled_event_id, attempt)
    _complete(transaction, operation, result, links)


def operation_failed(transaction: Transaction, scheduled_event_id: int, *, cause: Failure, attempt: int) -> None:
    """Fail or cancel the operation according to the handler's response."""
    operation, progress = _waiting(transaction.state, scheduled_event_id, attempt)
    _fail(transaction, operation, progress, cause)


def call_failed(transaction: Transaction, scheduled_event_id: int, *, failure: Failure, attempt: int) -> None:
    """Handle a failed start request: retry it if the failure is retryable, else fail the operation."""
    operation, progress = _waiting(transaction.state, scheduled_event_id, attempt)
    if not is_retryable(failure):
        _fail(transaction, operation, progress, failure)
        return
    _end_call(transaction, progress.start, failure)
    _retry(transaction, operation, progress.start, is_cancel=False)


def operation_ended(
    transaction: Transaction,
    scheduled_event_id: int,
    *,
    request_id: str,
    token: str,
    started_ns: int,
    link: Link,
    result: Payload,
    failure: Failure | None,
) -> None:
    """End an asynchronous operation.

    The callback may arrive before the response to the start request.
    """
    operation, progress = _open(transaction.state, scheduled_event_id)
    if operation.request_id != request_id:
        raise NotPending("operation not found")
    if not progress.is_started:
        _start(transaction, operation, progress, token=token, links=[link], time_ns=started_ns)
    if failure is None:
        _complete(transaction, operation, result, ())
    else:
        _fail(transaction, operation, progress, failure)


def cancel_operation(transaction: Transaction, operation: PendingNexusOperation) -> None:
    """Cancel the operation for the workflow. The request is sent when the operation has started."""
    scheduled_event_id = operation.scheduled_event_id
    if scheduled_event_id in transaction.state.live.ending:
        return
    progress = _progress(transaction.state, operation)
    if progress.is_started:
        _begin_cancel(transaction, operation, progress)


def cancel_answered(
    transaction: Transaction, scheduled_event_id: int, *, failure: Failure | None, attempt: int
) -> None:
    """Record the handler's response to a cancel request: accepted, or failed."""
    operation, progress = _open(transaction.state, scheduled_event_id)
    calls = progress.cancel
    if progress.cancel_state != _SCHEDULED or calls.ended + 1 != attempt:
        raise NotPending(_NOT_FOUND)
    _end_call(transaction, calls, failure)
    if failure is not None and is_retryable(failure):
        progress.cancel_state = _BACKING_OFF
        _retry(transaction, operation, calls, is_cancel=True)
        return
    requested_event_id = operation.cancel_requested_event_id
    if failure is None:
        progress.cancel_state = _SUCCEEDED
        transaction.add(
            NexusOperationCancelRequestCompletedEventAttributes(
                requested_event_id=requested_event_id, scheduled_event_id=scheduled_event_id
            )
        )
    else:
        progress.cancel_state = _FAILED
        transaction.add(
            NexusOperationCancelRequestFailedEventAttributes(
                requested_event_id=requested_event_id, scheduled_event_id=scheduled_event_id, failure=failure
            )
        )
    wake(transaction)


def time_out_operation(transaction: Transaction, due: NexusTimeout) -> bool:
    """Time out the operation; return False if the timeout no longer applies."""
    operation = _find(transaction.state, due.scheduled_event_id)
    if operation is None or not is_nexus_timeout_due(transaction.state, due):
        return False
    progress = _progress(transaction.state, operation)
    cause = Failure(message="operation timed out")
    cause.timeout_failure_info.timeout_type = TimeoutType.ValueType(due.kind)
    _end(
        transaction,
        operation,
        NexusOperationTimedOutEventAttributes(
            scheduled_event_id=due.scheduled_event_id,
            failure=operation_failure(operation, progress.token, cause),
            request_id=operation.request_id,
        ),
    )
    return True


def is_nexus_timeout_due(state: RunState, due: NexusTimeout) -> bool:
    """Whether the operation is pending and the timeout still applies to it."""
    operation = _find(state, due.scheduled_event_id)
    if operation is None:
        return False
    is_for_start = due.kind == TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
    return not (is_for_start and _progress(state, operation).is_started)


def give_up_call(transaction: Transaction, due: NexusCallTimeout) -> bool:
    """Fail a request that timed out; return False if it was answered, or is not the current request."""
    failure = handler_failure("UPSTREAM_TIMEOUT", "upstream timeout")
    try:
        if due.is_cancel:
            cancel_answered(transaction, due.scheduled_event_id, failure=failure, attempt=due.attempt)
        else:
            call_failed(transaction, due.scheduled_event_id, failure=failure, attempt=due.attempt)
    except NotPending:
        return False
    return True


def end_call_backoff(transaction: Transaction, due: NexusRetry) -> bool:
    """Make the next request after its backoff; return False if the task is for another request."""
    operation = _find(transaction.state, due.scheduled_event_id)
    if operation is None or not is_nexus_retry_due(transaction.state, due):
        return False
    progress = _progress(transaction.state, operation)
    calls = progress.cancel if due.is_cancel else progress.start
    calls.next_ns = 0
    if due.is_cancel:
        progress.cancel_state = _SCHEDULED
    _call(transaction, operation, calls, is_cancel=due.is_cancel)
    return True


def is_nexus_retry_due(state: RunState, due: NexusRetry) -> bool:
    """Whether the task is for the request whose backoff is running."""
    operation = _find(state, due.scheduled_event_id)
    if operation is None:
        return False
    progress = _progress(state, operation)
    calls = progress.cancel if due.is_cancel else progress.start
    return calls.ended + 1 == due.attempt and calls.next_ns > 0 and (due.is_cancel or not progress.is_started)


def is_called(state: RunState, scheduled_event_id: int, attempt: int, *, is_cancel: bool) -> bool:
    """Whether this attempt of a request to the handler still waits for a response."""
    operation = _find(state, scheduled_event_id)
    if operation is None:
        return False
    progress = _progress(state, operation)
    calls = progress.cancel if is_cancel else progress.start
    is_due = progress.cancel_state == _SCHEDULED if is_cancel else not progress.is_started
    return is_due and not calls.next_ns and calls.ended + 1 == attempt


def _go_on(
    transaction: Transaction, operation: PendingNexusOperation, progress: NexusProgress, started_ns: int
) -> None:
    _limit(transaction, operation, TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE, started_ns, operation.start_to_close_ns)
    if operation.cancel_requested_event_id:
        _begin_cancel(transaction, operation, progress)


def _begin_cancel(transaction: Transaction, operation: PendingNexusOperation, progress: NexusProgress) -> None:
    progress.cancel_state = _SCHEDULED
    progress.cancel_ns = transaction.now_ns
    _call(transaction, operation, progress.cancel, is_cancel=True)


def _call(transaction: Transaction, operation: PendingNexusOperation, calls: NexusCalls, *, is_cancel: bool) -> None:
    """Make the next request.

    Its timeout is a durable task, so a lost request is made again.
    """
    version, event_id, attempt = operation.version, operation.scheduled_event_id, calls.ended + 1
    transaction.add_task(CallNexus(version, event_id, attempt, is_cancel))
    transaction.add_task(NexusCallTimeout(version, transaction.now_ns + CALL_NS_MAX, event_id, attempt, is_cancel))


def _end_call(transaction: Transaction, calls: NexusCalls, failure: Failure | None = None) -> None:
    calls.ended += 1
    calls.ended_ns = transaction.now_ns
    calls.failure = None if failure is None else kept_failure(failure).SerializeToString()
    calls.next_ns = 0


def _retry(transaction: Transaction, operation: PendingNexusOperation, calls: NexusCalls, *, is_cancel: bool) -> None:
    calls.next_ns = transaction.now_ns + backoff_ns(calls.ended, transaction.uniform())
    transaction.add_task(
        NexusRetry(operation.version, calls.next_ns, operation.scheduled_event_id, calls.ended + 1, is_cancel)
    )


def _limit(
    transaction: Transaction,
    operation: PendingNexusOperation,
    kind: TimeoutType.ValueType,
    since_ns: int,
    timeout_ns: int,
) -> None:
    if timeout_ns:
        transaction.add_task(
            NexusTimeout(operation.version, since_ns + timeout_ns, operation.scheduled_event_id, int(kind))
        )


def _complete(
    transaction: Transaction, operation: PendingNexusOperation, result: Payload, links: Collection[Link]
) -> None:
    attributes = NexusOperationCompletedEventAttributes(
        scheduled_event_id=operation.scheduled_event_id, result=result, request_id=operation.request_id
    )
    _end(transaction, operation, attributes, links)


def _fail(transaction: Transaction, operation: PendingNexusOperation, progress: NexusProgress, cause: Failure) -> None:
    is_canceled = cause.HasField("canceled_failure_info")
    kind = NexusOperationCanceledEventAttributes if is_canceled else NexusOperationFailedEventAttributes
    _end(
        transaction,
        operation,
        kind(
            scheduled_event_id=operation.scheduled_event_id,
            failure=operation_failure(operation, progress.token, cause),
            request_id=operation.request_id,
        ),
    )


def _end(
    transaction: Transaction, operation: PendingNexusOperation, attributes: Message, links: Collection[Link] = ()
) -> None:
    live = transaction.state.live
    live.ending.add(operation.scheduled_event_id)
    live.nexus.pop(operation.scheduled_event_id, None)
    transaction.add(attributes, links=links)
    wake(transaction)


def _find(state: RunState, scheduled_event_id: int) -> PendingNexusOperation | None:
    if not state.is_open or scheduled_event_id in state.live.ending:
        return None
    return state.nexus_operations.get(scheduled_event_id)


def _open(state: RunState, scheduled_event_id: int) -> tuple[PendingNexusOperation, NexusProgress]:
    state.check_open()
    operation = _find(state, scheduled_event_id)
    if operation is None:
        raise NotPending("operation not found")
    return operation, _progress(state, operation)


def _progress(state: RunState, operation: PendingNexusOperation) -> NexusProgress:
    """The progress of the operation; a rebuilt state begins again with the first request."""
    return state.live.nexus.setdefault(
        operation.scheduled_event_id,
        NexusProgress(is_started=operation.started_event_id > 0, token=operation.operation_token),
    )


def _waiting(state: RunState, scheduled_event_id: int, attempt: int) -> tuple[PendingNexusOperation, NexusProgress]:
    """The operation, if its start request `attempt` still waits for a response."""
    operation = _find(state, scheduled_event_id)
    progress = None if operation is None else _progress(state, operation)
    if operation is None or progress is None or progress.is_started:
        raise NotPending(_NOT_FOUND)
    if progress.start.ended + 1 != attempt or progress.start.next_ns:
        raise NotPending(_NOT_FOUND)
    return operation, progress
