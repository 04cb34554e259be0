"""The row by which a run is found, from the run's state; and what lists say about the run, from its row."""

from collections.abc import Mapping

from temporalio.api.common.v1 import Memo, Payload, SearchAttributes, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import ResetPointInfo, WorkflowExecutionInfo

from fairlead.history.search.attributes import WrongValue, to_payload, to_value
from fairlead.history.search.names import type_of
from fairlead.history.state.run import RunState
from fairlead.history.state.times import to_timestamp
from fairlead.history.state.versioning import PINNED, behavior_of, pinned_version
from fairlead.storage.history_visibility import SearchValue, VisibilityRow

BUILD_IDS = "BuildIds"
PAUSE_INFO = "TemporalPauseInfo"


def row_of(state: RunState, *, custom: Mapping[str, int]) -> VisibilityRow:
    """What can be found of a run, in a namespace with these custom attributes."""
    identity, origin = state.identity, state.started
    parent, is_closed = origin.parent, not state.is_open
    return VisibilityRow(
        identity.namespace_id,
        identity.run_id,
        identity.workflow_id,
        origin.workflow_type,
        state.status,
        origin.started_ns,
        origin.execution_ns,
        origin.task_queue,
        close_time_ns=state.closed_ns if is_closed else None,
        # Below zero where the run was closed before its first workflow task was due: so Temporal has it.
        execution_duration_ns=state.closed_ns - origin.execution_ns if is_closed else None,
        history_length=state.next_event_id - 1 if is_closed else None,
        history_size_bytes=state.live.history_size_bytes if is_closed else None,
        state_transition_count=state.live.transitions if is_closed else None,
        parent_workflow_id=parent.workflow_id if parent else None,
        parent_run_id=parent.run_id if parent else None,
        root_workflow_id=origin.root_workflow_id or identity.workflow_id,
        root_run_id=origin.root_run_id or identity.run_id,
        memo=_memo(state.memo) if state.memo else b"",
        search_attributes={**_values(state.search_attributes, custom), **_own_values(state)},
    )


def info_of(row: VisibilityRow, custom: Mapping[str, int]) -> WorkflowExecutionInfo:
    """What a list says about a run."""
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
        search_attributes=SearchAttributes(indexed_fields=_payloads(row.search_attributes, custom)),
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


def _memo(fields: Mapping[str, bytes]) -> bytes:
    memo = Memo(fields={key: Payload.FromString(payload) for key, payload in fields.items()})
    return memo.SerializeToString(deterministic=True)


def _values(payloads: Mapping[str, bytes], custom: Mapping[str, int]) -> dict[str, SearchValue]:
    """All that can be searched by. What was set before its attribute was removed, or got another type, can't be."""
    values: dict[str, SearchValue] = {}
    for name, payload in payloads.items():
        type_number = type_of(name, custom)
        if type_number is None:
            continue
        try:
            value = to_value(Payload.FromString(payload), type_number)
        except WrongValue:
            continue
        if value is not None:
            values[name] = value
    return values


def _own_values(state: RunState) -> dict[str, SearchValue]:
    """What the server itself lets runs be found by: the builds of the workers, and what is paused."""
    values: dict[str, SearchValue] = {}
    if state.completed_task_event_id:
        builds = (ResetPointInfo.FromString(point) for point in state.reset_points)
        marks = (f"unversioned:{point.build_id}" for point in builds if point.build_id)
        values[BUILD_IDS] = (*_first_marks(state), *dict.fromkeys(marks))
    paused = {
        pause_mark(state.activities[event_id].activity_type): None
        for event_id, progress in state.live.activities.items()
        if progress.paused and event_id in state.activities
    }
    if state.pause is not None:
        paused = {f"Workflow:{state.identity.workflow_id}": None, f"Reason:{state.pause.reason}": None} | paused
    if paused:
        values[PAUSE_INFO] = tuple(paused)
    if state.versioning is not None or state.versioning_override:
        values.update(_version_values(state))
    return values


def _first_marks(state: RunState) -> tuple[str, ...]:
    """How a run goes by versions, as it is found among its builds."""
    pinned = pinned_version(state)
    if pinned is not None:
        return (f"pinned:{pinned}",)
    return () if behavior_of(state) else ("unversioned",)


def _version_values(state: RunState) -> dict[str, SearchValue]:
    values: dict[str, SearchValue] = {}
    behavior, versioning = behavior_of(state), state.versioning
    version = pinned_version(state) or (versioning.version if versioning is not None else None)
    if version is not None:
        values["TemporalWorkerDeployment"] = version.deployment
        values["TemporalWorkerDeploymentVersion"] = str(version)
    if behavior:
        values["TemporalWorkflowVersioningBehavior"] = "Pinned" if behavior == PINNED else "AutoUpgrade"
    if versioning is not None and versioning.used:
        values["TemporalUsedWorkerDeploymentVersions"] = tuple(versioning.used)
    return values


def pause_mark(activity_type: str) -> str:
    """What a run with a paused activity of a type is found by."""
    return f"property:activityType={activity_type}"


def _payloads(values: Mapping[str, SearchValue], custom: Mapping[str, int]) -> dict[str, Payload]:
    types = {name: type_of(name, custom) for name in values}
    return {name: to_payload(values[name], number) for name, number in types.items() if number is not None}
