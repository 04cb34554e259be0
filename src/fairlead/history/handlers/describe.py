"""DescribeWorkflowExecution: a run's configuration, status and pending work."""

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload, Payloads, Priority
from temporalio.api.enums.v1 import (
    ContinueAsNewVersioningBehavior,
    EventType,
    ParentClosePolicy,
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueKind,
    VersioningBehavior,
)
from temporalio.api.enums.v1 import WorkflowExecutionStatus as Status
from temporalio.api.failure.v1 import Failure
from temporalio.api.workflow.v1 import (
    PendingActivityInfo,
    PendingChildExecutionInfo,
    PendingWorkflowTaskInfo,
    RequestIdInfo,
    VersioningOverride,
    WorkflowExecutionConfig,
    WorkflowExecutionInfo,
)
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest, DescribeWorkflowExecutionResponse

from fairlead.api.search.list_entries import info_of
from fairlead.api.times import to_duration, to_timestamp
from fairlead.history.events.field_copies import copy_set
from fairlead.history.handlers.activity_options import options_of
from fairlead.history.nexus.describe import callbacks, pending_operations
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.visibility_rows import row_of
from fairlead.history.state import ActivityProgress, PendingActivity, RunState

# Temporal's server returns the beginning of the year 1 for a time that never comes, and SDKs check for it.
NEVER = Timestamp(seconds=-62_135_596_800)


async def describe(context: OperationContext, request: DescribeWorkflowExecutionRequest) -> Message:
    """Describe a run."""
    execution = request.execution
    shard = context.shard
    async with shard.lock(context.namespace.id, execution.workflow_id):
        run = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        start_event = await shard.events.read_event(run.state, 1)
        answer = _described(context, run)
        copy_set(
            start_event.workflow_execution_started_event_attributes,
            answer.execution_config,
            ("workflow_execution_timeout", "workflow_run_timeout"),
        )
        if start_event.HasField("user_metadata"):
            answer.execution_config.user_metadata.CopyFrom(start_event.user_metadata)
        _add_requests(answer, run.state)
        return answer


def _add_requests(answer: DescribeWorkflowExecutionResponse, state: RunState) -> None:
    """Add, for each request id, the event that the request caused."""
    infos = answer.workflow_extended_info.request_id_infos
    live = state.live
    if live.start_request_id:
        infos[live.start_request_id].CopyFrom(
            RequestIdInfo(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, event_id=1)
        )
    for record in state.updates.values():
        if record.request_id and record.accepted_event_id:
            infos[record.request_id].CopyFrom(
                RequestIdInfo(
                    event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
                    event_id=record.accepted_event_id,
                )
            )
    for request_id, event_id in state.attached_request_ids.items():
        infos[request_id].CopyFrom(
            RequestIdInfo(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED, event_id=event_id)
        )


def _add_reset_points(info: WorkflowExecutionInfo, state: RunState, retention_ns: int) -> None:
    """Add the points to which the run or an earlier run of its chain can be reset. Points of closed runs expire."""
    info.auto_reset_points.SetInParent()
    for stored in state.reset_points:
        point = info.auto_reset_points.points.add()
        point.ParseFromString(stored)
        if state.new_run_id and point.run_id == state.identity.run_id:
            point.expire_time.CopyFrom(to_timestamp(state.closed_ns + retention_ns))


def _described(context: OperationContext, run: LoadedRun) -> DescribeWorkflowExecutionResponse:
    state = run.state
    origin = state.started
    custom = context.namespace.search_attributes
    config = WorkflowExecutionConfig(
        default_workflow_task_timeout=to_duration(origin.task_timeout_ns),
    )
    config.task_queue.name = origin.task_queue
    config.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    now_ns = context.services.clock_ns() + state.skipped_ns
    answer = DescribeWorkflowExecutionResponse(
        execution_config=config,
        workflow_execution_info=info_of(row_of(state, custom=custom), custom),
        pending_activities=[
            _activity(state, state.as_changed(activity), now_ns)
            for event_id, activity in state.activities.items()
            if event_id not in state.live.ending
        ],
        pending_children=[
            PendingChildExecutionInfo(
                workflow_id=child.workflow_id,
                run_id=child.run_id,
                workflow_type_name=child.workflow_type,
                initiated_id=child.initiated_event_id,
                parent_close_policy=ParentClosePolicy.ValueType(child.parent_close_policy),
            )
            for event_id, child in state.children.items()
            if event_id not in state.live.ending
        ],
    )
    answer.pending_nexus_operations.extend(pending_operations(state))
    answer.callbacks.extend(callbacks(state))
    _complete_info(answer, state, context.namespace.retention_ns)
    if state.time_skipping is not None:
        answer.workflow_extended_info.time_skipping_info.CopyFrom(state.time_skipping.info(now_ns))
    fields = answer.workflow_execution_info.search_attributes.indexed_fields
    # Show search attributes as the client wrote them: a time keeps its time zone.
    for name, payload in state.search_attributes.items():
        if name in fields:
            fields[name].data = Payload.FromString(payload).data
    _add_task(answer, state)
    return answer


def _complete_info(answer: DescribeWorkflowExecutionResponse, state: RunState, retention_ns: int) -> None:
    origin, info, more = state.started, answer.workflow_execution_info, answer.workflow_extended_info
    info.history_length = state.next_event_id - 1
    info.history_size_bytes = state.live.history_size_bytes
    info.state_transition_count = state.live.transitions
    info.first_run_id = origin.first_run_id
    if origin.parent is not None:
        info.parent_namespace_id = origin.parent.namespace_id
    if origin.priority is not None:
        info.priority.CopyFrom(Priority.FromString(origin.priority))
    _add_reset_points(info, state, retention_ns)
    if origin.expires_at_ns:
        more.execution_expiration_time.CopyFrom(to_timestamp(origin.expires_at_ns))
    more.run_expiration_time.CopyFrom(to_timestamp(origin.run_expires_at_ns) if origin.run_expires_at_ns else NEVER)
    more.original_start_time.CopyFrom(to_timestamp(state.live.original_started_ns or origin.started_ns))
    more.cancel_requested = state.cancel_requested
    if state.status == Status.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
        more.cancel_requested = False
    if state.live.last_reset_ns:
        more.last_reset_time.CopyFrom(to_timestamp(state.live.last_reset_ns))
    more.reset_run_id = state.live.reset_run_id
    if state.pause is not None:
        more.pause_info.identity, more.pause_info.reason = state.pause.identity, state.pause.reason
        more.pause_info.paused_time.CopyFrom(to_timestamp(state.pause.paused_ns))
    _add_versioning(info, state)
    if state.versioning_override:
        _add_override(info, VersioningOverride.FromString(state.versioning_override))
    if state.worker_version:
        info.most_recent_worker_version_stamp.ParseFromString(state.worker_version)


def _add_versioning(info: WorkflowExecutionInfo, state: RunState) -> None:
    """Add the run's worker version."""
    versioning = state.versioning
    if versioning is None:
        return
    shown = info.versioning_info
    shown.behavior = VersioningBehavior.ValueType(versioning.behavior)
    version = versioning.pinned or versioning.version
    if version is not None:
        shown.deployment_version.CopyFrom(version.message())
        shown.version = version.dotted
        info.worker_deployment_name = version.deployment
    shown.revision_number = state.live.routing_revision
    shown.continue_as_new_initial_versioning_behavior = ContinueAsNewVersioningBehavior.ValueType(
        versioning.initial_behavior
    )


def _add_override(info: WorkflowExecutionInfo, override: VersioningOverride) -> None:
    """Add an operator's version override, also in the deprecated fields that old clients read."""
    if override.auto_upgrade:
        override.behavior = VersioningBehavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE
    elif override.HasField("pinned"):
        version = override.pinned.version
        override.behavior = VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
        override.pinned_version = f"{version.deployment_name}.{version.build_id}"
        info.worker_deployment_name = version.deployment_name
    info.versioning_info.versioning_override.CopyFrom(override)


def _activity(state: RunState, activity: PendingActivity, now_ns: int) -> PendingActivityInfo:
    progress = state.live.activities.get(activity.scheduled_event_id) or ActivityProgress(due_ns=activity.scheduled_ns)
    info = PendingActivityInfo(
        activity_id=activity.activity_id,
        state=_activity_state(activity, progress),
        attempt=progress.counted_attempt,
        last_worker_identity=progress.started_identity or progress.last_identity,
        paused=progress.paused,
        scheduled_time=to_timestamp(progress.due_ns or activity.scheduled_ns),
    )
    info.activity_type.name = activity.activity_type
    if activity.schedule_to_close_ns:
        info.expiration_time.CopyFrom(to_timestamp(activity.scheduled_ns + activity.schedule_to_close_ns))
    if progress.is_started:
        info.last_started_time.CopyFrom(to_timestamp(progress.started_ns))
        if progress.heartbeat_details is not None:
            info.last_heartbeat_time.CopyFrom(to_timestamp(progress.heartbeat_at_ns))
    elif progress.ended_ns and progress.due_ns > now_ns and not progress.paused:
        info.next_attempt_schedule_time.CopyFrom(to_timestamp(progress.due_ns))
        info.current_retry_interval.CopyFrom(to_duration(progress.due_ns - progress.ended_ns))
    if progress.ended_ns:
        info.last_attempt_complete_time.CopyFrom(to_timestamp(progress.ended_ns))
    if progress.paused:
        info.pause_info.pause_time.CopyFrom(to_timestamp(progress.paused_ns))
        by = info.pause_info.rule if progress.pause_rule_id else info.pause_info.manual
        by.identity, by.reason = progress.pause_identity, progress.pause_reason
        if progress.pause_rule_id:
            info.pause_info.rule.rule_id = progress.pause_rule_id
    if progress.heartbeat_details is not None:
        info.heartbeat_details.CopyFrom(Payloads.FromString(progress.heartbeat_details))
    if progress.last_failure is not None:
        info.last_failure.CopyFrom(Failure.FromString(progress.last_failure))
    options = options_of(activity)
    options.task_queue.ClearField("kind")
    options.task_queue.normal_name = activity.task_queue
    info.activity_options.CopyFrom(options)
    info.priority.CopyFrom(options.priority)
    info.maximum_attempts = options.retry_policy.maximum_attempts
    return info


def _activity_state(activity: PendingActivity, progress: ActivityProgress) -> PendingActivityState.ValueType:
    if activity.cancel_requested_event_id:
        return PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
    if progress.paused:
        return (
            PendingActivityState.PENDING_ACTIVITY_STATE_PAUSE_REQUESTED
            if progress.is_started
            else PendingActivityState.PENDING_ACTIVITY_STATE_PAUSED
        )
    if progress.is_started:
        return PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED


def _add_task(answer: DescribeWorkflowExecutionResponse, state: RunState) -> None:
    task = state.workflow_task
    if task is None:
        return
    info = PendingWorkflowTaskInfo(
        state=(
            PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
            if task.is_started
            else PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
        ),
        scheduled_time=to_timestamp(task.scheduled_ns),
        original_scheduled_time=to_timestamp(state.live.task_row_since_ns or task.scheduled_ns),
        attempt=task.attempt,
    )
    if task.is_started:
        info.started_time.CopyFrom(to_timestamp(task.started_ns))
    answer.pending_workflow_task.CopyFrom(info)


OPERATIONS = {"DescribeWorkflowExecution": Operation(DescribeWorkflowExecutionRequest, describe)}
