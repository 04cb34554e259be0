"""The end of a workflow told to the schedule that started it."""

from collections.abc import Iterable

import msgspec
from temporalio.api.enums.v1 import EventType, WorkflowExecutionStatus
from temporalio.api.history.v1 import HistoryEvent

from fairlead.history.schedules.actions import Watch
from fairlead.history.schedules.state import WorkflowClosed
from fairlead.history.scope import Scope

_STATUSES = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_CANCELED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TERMINATED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
}
_decode_watch = msgspec.msgpack.Decoder(Watch).decode


async def tell_schedule(scope: Scope, watchers: Iterable[bytes], event: HistoryEvent) -> None:
    """Tell it, if one of the run's watchers is a schedule and the event ends the whole chain of runs.

    `watchers` are the data of the internal callbacks that the run was started with.
    """
    for data in watchers:
        watch = watch_of(data)
        closed = None if watch is None else closed_by(watch, event)
        if closed is not None:
            await scope.services.history.call("ScheduleWorkflowClosed", scope.namespace.id, closed.schedule_id, closed)


def watch_of(data: bytes) -> Watch | None:
    """Which schedule is to be told; None if it is somebody else."""
    try:
        return _decode_watch(data)
    except msgspec.DecodeError:
        return None


def closed_by(watch: Watch, event: HistoryEvent) -> WorkflowClosed | None:
    """What the last event of a run says to the schedule; None where another run goes on from it."""
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
