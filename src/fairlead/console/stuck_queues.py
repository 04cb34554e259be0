"""The facts of a task queue for the diagnosis: partitions, pollers and limits, and the place of one task in it."""

import math
from collections.abc import Callable
from typing import Final

import msgspec
from temporalio.api.common.v1 import Priority
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.enums.v1 import TaskQueueType as QueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
)

from fairlead.api.times import in_seconds
from fairlead.api.worker_versions import Version
from fairlead.console import text
from fairlead.console.context import Context
from fairlead.console.limits import key_limit, queue_limit_source
from fairlead.console.problems import problem_of
from fairlead.console.queues import poller_version, running_of
from fairlead.console.stuck_facts import PartitionFacts, Poller, QueueFacts
from fairlead.core.errors import FairleadError
from fairlead.core.namespaces import QualifiedNamespaceId
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.history.messages.matching_tasks import decode_matched
from fairlead.matching.messages import QueueKind, RateSource
from fairlead.matching.messages.inspection import PEEKED_MAX
from fairlead.matching.operator_client import TaskQueueDescription
from fairlead.rpc import RpcStatus

# Partitions of one task queue that are searched for a task.
SEARCHED_PARTITIONS_MAX: Final = 16
# Fairness keys that each partition lists.
KEYS_MAX: Final = 1_000

_SOURCES: Final = {
    RateSource.CALL: "set by a call of UpdateTaskQueueConfig",
    RateSource.WORKER: "set by a worker (max_task_queue_activities_per_second)",
    RateSource.SETTING: "set by a setting",
}
_NO_TIME_S: Final = 0.0


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
        oldest_s=in_seconds(age),
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


_API_TYPES: Final = {
    TaskType.WORKFLOW: int(QueueType.TASK_QUEUE_TYPE_WORKFLOW),
    TaskType.ACTIVITY: int(QueueType.TASK_QUEUE_TYPE_ACTIVITY),
}
