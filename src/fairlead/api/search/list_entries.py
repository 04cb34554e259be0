"""Entries of workflow lists, made of visibility rows."""

from collections.abc import Mapping

from temporalio.api.common.v1 import (
    Memo,
    SearchAttributes,
    WorkflowExecution,
    WorkflowType,
)
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from fairlead.api.search.attributes import custom_payloads
from fairlead.api.times import to_timestamp
from fairlead.storage.visibility import VisibilityRow


def info_of(row: VisibilityRow, custom: Mapping[str, int]) -> WorkflowExecutionInfo:
    """The list entry of a run."""
    info = WorkflowExecutionInfo(
        execution=WorkflowExecution(workflow_id=row.workflow_id, run_id=row.run_id),
        type=WorkflowType(name=row.workflow_type),
        status=WorkflowExecutionStatus.ValueType(row.status),
        start_time=to_timestamp(row.start_time_ns),
        execution_time=to_timestamp(row.execution_time_ns),
        task_queue=row.task_queue,
        history_length=row.history_length or 0,
        history_size_bytes=row.history_size_bytes or 0,
        state_transition_count=row.state_transition_count or 0,
        memo=Memo.FromString(row.memo),
        search_attributes=SearchAttributes(indexed_fields=custom_payloads(row.search_attributes, custom)),
        root_execution=WorkflowExecution(workflow_id=row.root_workflow_id or "", run_id=row.root_run_id or ""),
    )
    if row.close_time_ns is not None:
        info.close_time.CopyFrom(to_timestamp(row.close_time_ns))
    if row.execution_duration_ns is not None:
        info.execution_duration.FromNanoseconds(row.execution_duration_ns)
    if row.parent_workflow_id is not None:
        info.parent_execution.workflow_id = row.parent_workflow_id
        info.parent_execution.run_id = row.parent_run_id or ""
    return info
