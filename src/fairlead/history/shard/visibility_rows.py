"""Visibility rows of runs, built from their state."""

from collections.abc import Iterator, Mapping

from temporalio.api.common.v1 import (
    Memo,
    Payload,
    WorkerVersionStamp,
)
from temporalio.api.workflow.v1 import ResetPointInfo

from fairlead.api.search.attributes import custom_values
from fairlead.api.worker_versions import PINNED, behavior_of, pinned_version
from fairlead.history.state.run import RunState
from fairlead.storage.visibility import SearchValue, VisibilityRow

BUILD_IDS = "BuildIds"
PAUSE_INFO = "TemporalPauseInfo"
REPORTED_PROBLEMS = "TemporalReportedProblems"


def row_of(state: RunState, *, custom: Mapping[str, int]) -> VisibilityRow:
    """The visibility row of a run; `custom` are the custom search attributes of its namespace."""
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
        # Negative if the run closed before its first workflow task was due, as in Temporal.
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


def _memo(fields: Mapping[str, bytes]) -> bytes:
    memo = Memo(fields={key: Payload.FromString(payload) for key, payload in fields.items()})
    return memo.SerializeToString(deterministic=True)


def _values(payloads: Mapping[str, bytes], custom: Mapping[str, int]) -> dict[str, SearchValue]:
    return custom_values({name: Payload.FromString(payload) for name, payload in payloads.items()}, custom)


def _own_values(state: RunState) -> dict[str, SearchValue]:
    """Values of the search attributes that the server sets: workers' builds, pauses, problems, versions."""
    values: dict[str, SearchValue] = {}
    # An override pins a run before its first workflow task is completed.
    if state.completed_task_event_id or (state.versioning_override and pinned_version(state) is not None):
        marks = (f"unversioned:{build_id}" for build_id in _builds(state) if build_id)
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
    if state.live.reported_problems:
        values[REPORTED_PROBLEMS] = state.live.reported_problems
    if state.versioning is not None or state.versioning_override:
        values.update(_version_values(state))
    return values


def _builds(state: RunState) -> Iterator[str]:
    """The builds of this run's workers, without the builds in reset points of earlier runs."""
    for point in map(ResetPointInfo.FromString, state.reset_points):
        if point.run_id == state.identity.run_id:
            yield point.build_id
    if state.worker_version:
        yield WorkerVersionStamp.FromString(state.worker_version).build_id


def _first_marks(state: RunState) -> tuple[str, ...]:
    """The first value of `BuildIds`: the run's pinned version, or `unversioned`."""
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
    """The value of `TemporalPauseInfo` for a paused activity of this type."""
    return f"property:activityType={activity_type}"
