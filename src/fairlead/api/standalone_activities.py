"""Lists of standalone activities."""

from collections.abc import Mapping

from temporalio.api.activity.v1 import (
    ActivityExecutionListInfo,
)
from temporalio.api.common.v1 import (
    ActivityType,
    SearchAttributes,
)
from temporalio.api.enums.v1 import ActivityExecutionStatus as Status
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Stored

from fairlead.api.search.attributes import custom_payloads
from fairlead.api.times import to_duration, to_timestamp
from fairlead.storage.visibility import VisibilityRow

ARCHETYPE = "activity"
# Stores hold a status as a WorkflowExecutionStatus, so that the same queries work.
_STATUSES = {
    Stored.WORKFLOW_EXECUTION_STATUS_RUNNING: Status.ACTIVITY_EXECUTION_STATUS_RUNNING,
    Stored.WORKFLOW_EXECUTION_STATUS_PAUSED: Status.ACTIVITY_EXECUTION_STATUS_PAUSED,
    Stored.WORKFLOW_EXECUTION_STATUS_COMPLETED: Status.ACTIVITY_EXECUTION_STATUS_COMPLETED,
    Stored.WORKFLOW_EXECUTION_STATUS_FAILED: Status.ACTIVITY_EXECUTION_STATUS_FAILED,
    Stored.WORKFLOW_EXECUTION_STATUS_CANCELED: Status.ACTIVITY_EXECUTION_STATUS_CANCELED,
    Stored.WORKFLOW_EXECUTION_STATUS_TERMINATED: Status.ACTIVITY_EXECUTION_STATUS_TERMINATED,
    Stored.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: Status.ACTIVITY_EXECUTION_STATUS_TIMED_OUT,
}


def listed_of(row: VisibilityRow, custom: Mapping[str, int]) -> ActivityExecutionListInfo:
    """A visibility row as an entry of a list."""
    info = ActivityExecutionListInfo(
        activity_id=row.workflow_id,
        run_id=row.run_id,
        activity_type=ActivityType(name=row.workflow_type),
        schedule_time=to_timestamp(row.start_time_ns),
        execution_time=to_timestamp(row.execution_time_ns),
        status=_STATUSES[Stored.ValueType(row.status)],
        search_attributes=SearchAttributes(indexed_fields=custom_payloads(row.search_attributes, custom)),
        task_queue=row.task_queue,
        state_transition_count=row.state_transition_count or 0,
    )
    if row.close_time_ns is not None:
        info.close_time.CopyFrom(to_timestamp(row.close_time_ns))
    if row.execution_duration_ns is not None:
        info.execution_duration.CopyFrom(to_duration(row.execution_duration_ns))
    return info
