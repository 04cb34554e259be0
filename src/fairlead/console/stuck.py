"""Collects the facts for the diagnosis of one run: pending work, its task queues, partitions, pollers and limits."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from temporalio.api.common.v1 import Priority, WorkflowExecution
from temporalio.api.enums.v1 import EventType, PendingActivityState, PendingNexusOperationState, TaskQueueKind
from temporalio.api.enums.v1 import TaskQueueType as QueueType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo, PendingNexusOperationInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    DescribeWorkflowExecutionResponse,
)

from fairlead.api.worker_versions import Version
from fairlead.console import text
from fairlead.console.context import Context
from fairlead.console.limits import key_limit, queue_limit_source
from fairlead.console.pending import failure_text
from fairlead.console.problems import problem_of
from fairlead.console.queues import poller_version, running_of
from fairlead.console.runs import RUNNING, read_events, read_last_events, status_name
from fairlead.console.stuck_facts import Facts, NexusFacts, PartitionFacts, Poller, QueueFacts, TaskFacts
from fairlead.console.timeline import pending_timers
from fairlead.core.errors import FairleadError
from fairlead.core.namespaces import QualifiedNamespaceId
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.history.messages.matching_tasks import MatchedActivityTask, MatchedWorkflowTask, decode_matched
from fairlead.matching.messages import QueueKind, RateSource
from fairlead.matching.messages.inspection import PEEKED_MAX
from fairlead.matching.operator_client import TaskQueueDescription
from fairlead.rpc import RpcStatus

# Number of last events that are searched for the last workflow task, and maximum number that is read for timers.
LAST_EVENTS: Final = 100
TIMER_EVENTS: Final = 2_000
# Pending activities that are diagnosed, and partitions of one task queue that are searched for a task.
ACTIVITIES_MAX: Final = 20
SEARCHED_PARTITIONS_MAX: Final = 16
# Fairness keys that each partition lists.
KEYS_MAX: Final = 1_000

_SOURCES: Final = {
    RateSource.CALL: "set by a call of UpdateTaskQueueConfig",
    RateSource.WORKER: "set by a worker (max_task_queue_activities_per_second)",
    RateSource.SETTING: "set by a setting",
}
_NO_TIME_S: Final = 0.0


async def collect(
    context: Context, namespace: str, described: DescribeWorkflowExecutionResponse, activity: str = ""
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
    waiting = [one for one in described.pending_activities if activity in {"", one.activity_id}][:ACTIVITIES_MAX]
    if activity and not waiting:
        return msgspec.structs.replace(facts, missing_activity=activity)
    version = Version.of(info.versioning_info.deployment_version)
    scheduled = {
        event.activity_task_scheduled_event_attributes.activity_id: event.event_id
        for event in last
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    }
    works = [
        _activity_task(context, namespace, info.execution, one, version, event_id=scheduled.get(one.activity_id))
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
    )


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
        heartbeat_timeout_s=options.heartbeat_timeout.seconds + options.heartbeat_timeout.nanos / 1e9,
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


async def queue_facts(
    context: Context,
    namespace: str,
    queue: TaskQueue,
    task_type: TaskType,
    *,
    version: Version | None,
    priority: Priority,
    is_it: Callable[[object], bool],
) -> QueueFacts:
    """The facts of a task queue, and the place of one task in it, as far as the viewer may read them.

    `is_it` recognizes the task.
    """
    kind = task_type.name.lower()
    try:
        pollers = await _pollers(context, namespace, queue, task_type)
        namespace_id = await context.namespace_id(namespace)
        if not await context.may_ask_hosts():
            plain = await _plain_facts(context, namespace, queue, task_type, pollers)
            return await _with_running(context, namespace_id, plain, task_type, priority)
        is_sticky = queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY
        qualified = namespace_id
        if version is not None:
            qualified = str(
                QualifiedNamespaceId.of_version(namespace_id, deployment=version.deployment, build_id=version.build_id)
            )
        task_queue = TaskQueueId(qualified, queue.name, task_type)
        found = await context.operators.describe(
            task_queue, kind=QueueKind.STICKY if is_sticky else QueueKind.NORMAL, keys_max=KEYS_MAX
        )
        if not found.partitions:
            why = "; ".join(str(failure) for failure in found.missing.values())
            return QueueFacts(name=queue.name, type=kind, pollers=pollers, problem=why or "no partition answered")
        place = (None, None) if is_sticky else await _place(context, task_queue, found, is_it)
        facts = _described(context, task_queue, pollers, found, priority=priority, place=place)
        return await _with_running(context, namespace_id, facts, task_type, priority)
    except (RpcStatus, FairleadError) as failure:
        problem = problem_of(failure)
        is_forbidden = problem.status in {401, 403}
        return QueueFacts(name=queue.name, type=kind, problem=problem.message, is_forbidden=is_forbidden)


async def _with_running(
    context: Context, namespace_id: str, facts: QueueFacts, task_type: TaskType, priority: Priority
) -> QueueFacts:
    """The facts with the running activities, if they are limited."""
    found = await running_of(context, TaskQueueId(namespace_id, facts.name, task_type))
    if found is None:
        return facts
    return msgspec.structs.replace(
        facts,
        key=priority.fairness_key,
        running=sum(found.running.values()),
        running_max=found.queue_max,
        key_running=found.running.get(priority.fairness_key, 0),
        key_running_max=found.key_max,
    )


def _described(
    context: Context,
    task_queue: TaskQueueId,
    pollers: list[Poller],
    found: TaskQueueDescription,
    *,
    priority: Priority,
    place: tuple[int | None, int | None],
) -> QueueFacts:
    root = found.partitions.get(0) or next(iter(found.partitions.values()))
    total = found.total()
    rate = root.whole_rate_per_s
    of_key = key_limit(context.backend.settings, task_queue, root)
    keys = [one for each in found.partitions.values() for one in each.keys if one.fairness_key == priority.fairness_key]
    return QueueFacts(
        name=task_queue.name,
        type=task_queue.type.name.lower(),
        pollers=pollers,
        partitions=[
            PartitionFacts(number, one.host, int(one.report.tasks), one.polls_waiting)
            for number, one in sorted(found.partitions.items())
        ],
        backlog=total.tasks,
        oldest_s=total.age_s,
        dispatches_per_s=total.dispatches_per_s,
        polls=sum(one.polls_waiting for one in found.partitions.values()),
        rate_per_s=None if math.isinf(rate) else rate,
        rate_source=queue_limit_source(context.backend.settings, task_queue, root),
        key=priority.fairness_key,
        key_rate_per_s=of_key.rate_per_s,
        key_rate_source=of_key.source,
        key_waiting=sum(one.tasks_waiting or one.tasks_loaded for one in keys),
        key_weight=keys[0].weight if keys else priority.fairness_weight or 1.0,
        partition=place[0],
        position=place[1],
    )


async def _pollers(context: Context, namespace: str, queue: TaskQueue, task_type: TaskType) -> list[Poller]:
    """The workers that polled recently, of all versions."""
    asked = DescribeTaskQueueRequest(
        namespace=namespace, task_queue=queue, task_queue_type=QueueType.ValueType(_API_TYPES[task_type])
    )
    found = await context.call("DescribeTaskQueue", asked, DescribeTaskQueueResponse)
    return [
        Poller(one.identity, text.seconds_of(one.last_access_time) or _NO_TIME_S, _version_of(one))
        for one in found.pollers
    ]


def _version_of(poller: PollerInfo) -> str:
    return poller_version(poller.SerializeToString())


async def _plain_facts(
    context: Context, namespace: str, queue: TaskQueue, task_type: TaskType, pollers: list[Poller]
) -> QueueFacts:
    """The facts of a task queue for a viewer without a role in the system: those of Temporal's API."""
    asked = DescribeTaskQueueRequest(
        namespace=namespace,
        task_queue=queue,
        task_queue_type=QueueType.ValueType(_API_TYPES[task_type]),
        report_stats=True,
        report_config=True,
    )
    found = await context.call("DescribeTaskQueue", asked, DescribeTaskQueueResponse)
    age = found.stats.approximate_backlog_age
    limit, is_limited = found.effective_rate_limit, found.HasField("effective_rate_limit")
    return QueueFacts(
        name=queue.name,
        type=task_type.name.lower(),
        pollers=pollers,
        backlog=found.stats.approximate_backlog_count,
        oldest_s=age.seconds + age.nanos / 1e9,
        dispatches_per_s=found.stats.tasks_dispatch_rate,
        rate_per_s=limit.requests_per_second if math.isfinite(limit.requests_per_second) and is_limited else None,
        rate_source=_SOURCES.get(RateSource(limit.rate_limit_source or 3), "set by a setting"),
    )


async def _place(
    context: Context, task_queue: TaskQueueId, found: TaskQueueDescription, is_it: Callable[[object], bool]
) -> tuple[int | None, int | None]:
    """The partition that holds a task, and the task's position there, from 1 on; None if it was not found."""
    holding = [number for number, one in sorted(found.partitions.items()) if one.report.tasks]
    for number in holding[:SEARCHED_PARTITIONS_MAX]:
        peeked = await context.operators.peek(Partition(task_queue, number), limit=PEEKED_MAX)
        for position, waiting in enumerate(peeked.tasks, 1):
            decoded = decode_matched(waiting.payload, "", b"")
            if decoded is not None and is_it(decoded[1].task):
                return number, position
    return None, None


def _is_activity(task: object, run_id: str, event_id: int | None) -> bool:
    """Whether a task is that of an activity; without its event id, the run's first activity counts."""
    if not isinstance(task, MatchedActivityTask) or task.run_id != run_id:
        return False
    return event_id in {None, task.scheduled_event_id}


def _is_workflow_task(task: object, run_id: str) -> bool:
    return isinstance(task, MatchedWorkflowTask) and task.run_id == run_id


_API_TYPES: Final = {
    TaskType.WORKFLOW: int(QueueType.TASK_QUEUE_TYPE_WORKFLOW),
    TaskType.ACTIVITY: int(QueueType.TASK_QUEUE_TYPE_ACTIVITY),
}
