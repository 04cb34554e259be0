"""The pending Nexus operations and the completion callbacks of a run, for DescribeWorkflowExecution."""

from collections.abc import Iterator

from temporalio.api.common.v1 import Callback
from temporalio.api.enums.v1 import CallbackState, NexusOperationCancellationState
from temporalio.api.enums.v1 import PendingNexusOperationState as State
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import CallbackInfo, NexusOperationCancellationInfo, PendingNexusOperationInfo

from fairlead.api.times import to_duration, to_timestamp
from fairlead.history.state.pending import CallbackProgress, NexusCalls, NexusProgress, PendingNexusOperation
from fairlead.history.state.run import RunState

_TIMEOUTS = {
    "schedule_to_close_timeout": "schedule_to_close_ns",
    "schedule_to_start_timeout": "schedule_to_start_ns",
    "start_to_close_timeout": "start_to_close_ns",
}


def pending_operations(state: RunState) -> Iterator[PendingNexusOperationInfo]:
    """The operations that have not ended."""
    for event_id, operation in state.nexus_operations.items():
        if event_id not in state.live.ending:
            yield _operation(operation, state.live.nexus.get(event_id) or NexusProgress())


def _operation(operation: PendingNexusOperation, progress: NexusProgress) -> PendingNexusOperationInfo:
    info = PendingNexusOperationInfo(
        endpoint=operation.endpoint,
        service=operation.service,
        operation=operation.operation,
        operation_id=progress.token,
        operation_token=progress.token,
        scheduled_event_id=operation.scheduled_event_id,
        scheduled_time=to_timestamp(operation.scheduled_ns),
        state=_state(progress),
    )
    for field, name in _TIMEOUTS.items():
        if timeout_ns := getattr(operation, name):
            getattr(info, field).CopyFrom(to_duration(timeout_ns))
    _add_calls(info, progress.start)
    if operation.cancel_requested_event_id:
        info.cancellation_info.SetInParent()
        if progress.cancel_state:
            info.cancellation_info.state = NexusOperationCancellationState.ValueType(progress.cancel_state)
            info.cancellation_info.requested_time.CopyFrom(to_timestamp(progress.cancel_ns))
            _add_calls(info.cancellation_info, progress.cancel)
    return info


def _state(progress: NexusProgress) -> State.ValueType:
    if progress.is_started:
        return State.PENDING_NEXUS_OPERATION_STATE_STARTED
    if progress.start.next_ns:
        return State.PENDING_NEXUS_OPERATION_STATE_BACKING_OFF
    return State.PENDING_NEXUS_OPERATION_STATE_SCHEDULED


def _add_calls(info: PendingNexusOperationInfo | NexusOperationCancellationInfo, calls: NexusCalls) -> None:
    info.attempt = calls.ended
    if calls.ended_ns:
        info.last_attempt_complete_time.CopyFrom(to_timestamp(calls.ended_ns))
    if calls.failure is not None:
        info.last_attempt_failure.CopyFrom(Failure.FromString(calls.failure))
    if calls.next_ns:
        info.next_attempt_schedule_time.CopyFrom(to_timestamp(calls.next_ns))


def callbacks(state: RunState) -> Iterator[CallbackInfo]:
    """The completion callbacks of the run and of its updates, delivered or not."""
    origin = state.started
    for number, stored in enumerate(origin.completion_callbacks):
        info = CallbackInfo(callback=Callback.FromString(stored), state=CallbackState.CALLBACK_STATE_STANDBY)
        info.trigger.workflow_closed.SetInParent()
        if number < len(origin.callback_times_ns):
            info.registration_time.CopyFrom(to_timestamp(origin.callback_times_ns[number]))
        _add_progress(info, state.live.callbacks.get(number))
        if number not in state.live.callbacks and not state.is_open and not state.new_run_id:
            info.state = CallbackState.CALLBACK_STATE_SCHEDULED
        yield info
    yield from _update_callbacks(state)


def _update_callbacks(state: RunState) -> Iterator[CallbackInfo]:
    for update_id, record in state.updates.items():
        delivered = state.live.update_callbacks.get(update_id, {})
        has_ended = record.completed_event_id > 0 or not state.is_open
        for number, registered in enumerate(record.callbacks):
            info = CallbackInfo(
                callback=Callback.FromString(registered.callback),
                state=CallbackState.CALLBACK_STATE_SCHEDULED if has_ended else CallbackState.CALLBACK_STATE_STANDBY,
                registration_time=to_timestamp(registered.registered_ns),
            )
            info.trigger.update_workflow_execution_completed.update_id = update_id
            _add_progress(info, delivered.get(number))
            yield info


def _add_progress(info: CallbackInfo, progress: CallbackProgress | None) -> None:
    if progress is None:
        return
    info.state = CallbackState.ValueType(progress.state)
    info.attempt = progress.attempts
    info.last_attempt_complete_time.CopyFrom(to_timestamp(progress.ended_ns))
    if progress.failure is not None:
        info.last_attempt_failure.CopyFrom(Failure.FromString(progress.failure))
