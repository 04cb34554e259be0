"""Lists of standalone Nexus operations."""

from collections.abc import Mapping

from temporalio.api.common.v1 import SearchAttributes
from temporalio.api.enums.v1 import NexusOperationExecutionStatus as Status
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Stored
from temporalio.api.nexus.v1 import (
    NexusOperationExecutionListInfo,
)

from fairlead.api.search.attributes import custom_payloads
from fairlead.api.times import to_duration, to_timestamp
from fairlead.storage.visibility import VisibilityRow

ARCHETYPE = "nexus-operation"
# Search attribute that holds the service in a row; endpoint and operation are in columns.
SERVICE = "TemporalNexusService"
# Stores hold a status as a WorkflowExecutionStatus, so that the same queries work.
_STATUSES = {
    Stored.WORKFLOW_EXECUTION_STATUS_RUNNING: Status.NEXUS_OPERATION_EXECUTION_STATUS_RUNNING,
    Stored.WORKFLOW_EXECUTION_STATUS_COMPLETED: Status.NEXUS_OPERATION_EXECUTION_STATUS_COMPLETED,
    Stored.WORKFLOW_EXECUTION_STATUS_FAILED: Status.NEXUS_OPERATION_EXECUTION_STATUS_FAILED,
    Stored.WORKFLOW_EXECUTION_STATUS_CANCELED: Status.NEXUS_OPERATION_EXECUTION_STATUS_CANCELED,
    Stored.WORKFLOW_EXECUTION_STATUS_TERMINATED: Status.NEXUS_OPERATION_EXECUTION_STATUS_TERMINATED,
    Stored.WORKFLOW_EXECUTION_STATUS_TIMED_OUT: Status.NEXUS_OPERATION_EXECUTION_STATUS_TIMED_OUT,
}


def listed_of(row: VisibilityRow, custom: Mapping[str, int]) -> NexusOperationExecutionListInfo:
    """A visibility row as an entry of a list."""
    info = NexusOperationExecutionListInfo(
        operation_id=row.workflow_id,
        run_id=row.run_id,
        endpoint=row.task_queue,
        service=str(row.search_attributes.get(SERVICE, "")),
        operation=row.workflow_type,
        schedule_time=to_timestamp(row.start_time_ns),
        status=_STATUSES[Stored.ValueType(row.status)],
        search_attributes=SearchAttributes(indexed_fields=custom_payloads(row.search_attributes, custom)),
        state_transition_count=row.state_transition_count or 0,
    )
    if row.close_time_ns is not None:
        info.close_time.CopyFrom(to_timestamp(row.close_time_ns))
    if row.execution_duration_ns is not None:
        info.execution_duration.CopyFrom(to_duration(row.execution_duration_ns))
    return info
