"""Notifies a schedule of the end of a workflow that it started."""

from collections.abc import Iterable

import msgspec
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.entities.schedules.actions import Watch
from fairlead.history.entities.schedules.state import WorkflowClosed
from fairlead.history.shard.context import OperationContext

_STATUSES = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
}
_decode_watch = msgspec.msgpack.Decoder(Watch).decode


async def notify_schedule(context: OperationContext, watchers: Iterable[bytes], event: HistoryEvent) -> None:
    """Notify each schedule that started the run, if the event closes the last run of the chain.

    `watchers` are the data of the internal callbacks of the run's start.
    """
    for data in watchers:
        watch = watch_of(data)
        closed = None if watch is None else closed_by(watch, event)
        if closed is not None:
            await context.services.history.call(
                "ScheduleWorkflowClosed", context.namespace.id, closed.schedule_id, closed
            )


def watch_of(data: bytes) -> Watch | None:
    """The schedule to notify; None if the callback belongs to another component."""
    try:
        return _decode_watch(data)
    except msgspec.DecodeError:
        return None


def closed_by(watch: Watch, event: HistoryEvent) -> WorkflowClosed | None:
    """The notification for the last event of a run; None if another run of the chain follows."""
    status = _STATUSES.get(event.event_type)
    if status is None:
        return None
    result, failure = b"", b""
    if event.HasField("workflow_execution_completed_event_attributes"):
        completed = event.workflow_execution_completed_event_attributes
        if completed.new_execution_run_id:
            return None
        result = completed.result.SerializeToString()
    elif event.HasField("workflow_execution_failed_event_attributes"):
        failed = event.workflow_execution_failed_event_attributes
        if failed.new_execution_run_id:
            return None
        failure = failed.failure.SerializeToString()
    elif event.workflow_execution_timed_out_event_attributes.new_execution_run_id:
        return None
    return WorkflowClosed(watch.schedule_id, watch.schedule_run_id, watch.number, int(status), result, failure)
