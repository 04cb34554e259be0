"""Collects the facts for the diagnosis of one run: pending work, and its task queues."""

import asyncio
import math
from functools import partial
from typing import Final

import msgspec
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState, PendingNexusOperationState, TaskQueueKind
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo, PendingNexusOperationInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionResponse,
)

from fairlead.api.times import in_seconds
from fairlead.api.worker_versions import Version
from fairlead.console import text
from fairlead.console.context import Context
from fairlead.console.pending import failure_text
from fairlead.console.runs import RUNNING, read_events, read_last_events, status_name
from fairlead.console.stuck_facts import Facts, NexusFacts, TaskFacts
from fairlead.console.stuck_queues import queue_facts
from fairlead.console.timeline import pending_timers
from fairlead.core.partitions import TaskType
from fairlead.history.messages.matching_tasks import MatchedActivityTask, MatchedWorkflowTask

# Number of last events that are searched for the last workflow task, and of first ones for timers and activities.
LAST_EVENTS: Final = 100
TIMER_EVENTS: Final = 2_000
# Pending activities that are diagnosed.
ACTIVITIES_MAX: Final = 20


async def collect(
    context: Context,
    namespace: str,
    described: DescribeWorkflowExecutionResponse,
    activity: str = "",
    *,
    activities_max: int = ACTIVITIES_MAX,
) -> Facts:
    """Collect the facts of a run; with `activity`, those of this activity only."""
    info = described.workflow_execution_info
    status = status_name(info.status)
    more = described.workflow_extended_info
    last, _ = await read_last_events(context, namespace, info.execution, LAST_EVENTS)
    is_paused = more.HasField("pause_info")
    facts = Facts(
        now_s=context.now_s,
        status=status,
        is_open=status in RUNNING,
        pause_reason=(more.pause_info.reason or "without a reason") if is_paused else "",
        paused_by=more.pause_info.identity if is_paused else "",
        paused_s=text.seconds_of(more.pause_info.paused_time) if is_paused else None,
        last_event_s=text.seconds_of(last[0].event_time) if last else None,
    )
    if not facts.is_open:
        return facts
    pending = [one for one in described.pending_activities if activity in {"", one.activity_id}]
    # The ones that wait longest.
    waiting = sorted(pending, key=lambda one: one.scheduled_time.ToNanoseconds())[:activities_max]
    if activity and not waiting:
        return msgspec.structs.replace(facts, missing_activity=activity)
    version = Version.of(info.versioning_info.deployment_version)
    scheduled = _scheduled_ids(last)
    if len(described.pending_activities) > 1 and any(one.activity_id not in scheduled for one in waiting):
        scheduled |= _scheduled_ids(await read_events(context, namespace, info.execution, TIMER_EVENTS))
    # The run's only activity is found without the id of its event; no event has the id 0.
    unknown = None if len(described.pending_activities) == 1 else 0
    works = [
        _activity_task(
            context, namespace, info.execution, one, version, event_id=scheduled.get(one.activity_id, unknown)
        )
        for one in waiting
    ]
    if described.pending_workflow_task.state and not activity:
        works.append(_workflow_task(context, namespace, described, last, version))
    tasks = [*await asyncio.gather(*works)]
    timers: dict[str, float] = {}
    if not tasks:
        timers = pending_timers(await read_events(context, namespace, info.execution, TIMER_EVENTS))
    return msgspec.structs.replace(
        facts,
        tasks=tasks,
        timers=timers,
        children=[(one.workflow_id, one.workflow_type_name) for one in described.pending_children],
        nexus=[] if activity else [_nexus(one) for one in described.pending_nexus_operations],
        unexamined=len(pending) - len(waiting),
    )


def _scheduled_ids(events: list[HistoryEvent]) -> dict[str, int]:
    """The events that scheduled activities, by the id of the activity."""
    return {
        event.activity_task_scheduled_event_attributes.activity_id: event.event_id
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }


async def _workflow_task(
    context: Context,
    namespace: str,
    described: DescribeWorkflowExecutionResponse,
    last: list[HistoryEvent],
    version: Version | None,
) -> TaskFacts:
    pending = described.pending_workflow_task
    info = described.workflow_execution_info
    queue, failure, started = described.execution_config.task_queue, "", None
    is_sticky = False
    for event in last:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED and started is None:
            scheduled = event.workflow_task_scheduled_event_attributes
            started, is_sticky = event, scheduled.task_queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY
            queue = scheduled.task_queue if is_sticky else queue
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED and not failure:
            failed = event.workflow_task_failed_event_attributes.failure
            failure = failure_text(failed.message, failed.cause.message)
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            break
    # A repeated attempt goes to the normal task queue, and is not in the history.
    if pending.attempt > 1:
        queue, is_sticky = described.execution_config.task_queue, False
    return TaskFacts(
        is_activity=False,
        name=info.type.name,
        state="started" if pending.started_time.seconds else "scheduled",
        since_s=text.seconds_of(pending.original_scheduled_time) or text.seconds_of(pending.scheduled_time),
        attempt=pending.attempt,
        started_s=text.seconds_of(pending.started_time),
        failure=failure,
        version="" if version is None else str(version.dotted),
        is_sticky=is_sticky,
        queue=await queue_facts(
            context,
            namespace,
            queue,
            TaskType.WORKFLOW,
            version=version,
            priority=info.priority,
            is_it=partial(_is_workflow_task, run_id=info.execution.run_id),
        ),
    )


async def _activity_task(
    context: Context,
    namespace: str,
    execution: WorkflowExecution,
    info: PendingActivityInfo,
    version: Version | None,
    *,
    event_id: int | None,
) -> TaskFacts:
    options = info.activity_options
    state = PendingActivityState.Name(info.state).removeprefix("PENDING_ACTIVITY_STATE_").replace("_", " ").lower()
    is_started = info.state in {
        PendingActivityState.PENDING_ACTIVITY_STATE_STARTED,
        PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED,
    }
    scheduled_s = text.seconds_of(info.scheduled_time) or context.now_s
    to_start = options.schedule_to_start_timeout
    deadline_s = text.seconds_of(info.expiration_time)
    if not is_started and to_start.seconds:
        deadline_s = min(deadline_s or math.inf, scheduled_s + to_start.seconds)
    return TaskFacts(
        is_activity=True,
        id=info.activity_id,
        name=info.activity_type.name,
        state="paused" if info.paused else "started" if is_started else state,
        # While an attempt waits for its backoff, its scheduled time is in the future.
        since_s=text.seconds_of(info.last_attempt_complete_time) if scheduled_s > context.now_s else scheduled_s,
        attempt=info.attempt,
        attempts_max=info.maximum_attempts,
        started_s=text.seconds_of(info.last_started_time) if is_started else None,
        heartbeat_s=text.seconds_of(info.last_heartbeat_time),
        heartbeat_timeout_s=in_seconds(options.heartbeat_timeout),
        next_s=text.seconds_of(info.next_attempt_schedule_time),
        deadline_s=deadline_s,
        failure=failure_text(info.last_failure.message, info.last_failure.cause.message),
        worker=info.last_worker_identity,
        version="" if version is None else str(version.dotted),
        queue=await queue_facts(
            context,
            namespace,
            options.task_queue,
            TaskType.ACTIVITY,
            version=version,
            priority=info.priority,
            is_it=partial(_is_activity, run_id=execution.run_id, event_id=event_id),
        ),
    )


def _nexus(info: PendingNexusOperationInfo) -> NexusFacts:
    state = PendingNexusOperationState.Name(info.state)
    failure = info.last_attempt_failure
    return NexusFacts(
        name=f"{info.service}/{info.operation} at endpoint {info.endpoint}",
        state=state.removeprefix("PENDING_NEXUS_OPERATION_STATE_").replace("_", " ").lower(),
        attempt=info.attempt,
        since_s=text.seconds_of(info.scheduled_time),
        next_s=text.seconds_of(info.next_attempt_schedule_time),
        blocked_reason=info.blocked_reason,
        failure=failure_text(failure.message, failure.cause.message),
    )


def _is_activity(task: object, run_id: str, event_id: int | None) -> bool:
    """Whether a task is that of an activity; without its event id, the run's first activity counts."""
    if not isinstance(task, MatchedActivityTask) or task.run_id != run_id:
        return False
    return event_id in {None, task.scheduled_event_id}


def _is_workflow_task(task: object, run_id: str) -> bool:
    return isinstance(task, MatchedWorkflowTask) and task.run_id == run_id
