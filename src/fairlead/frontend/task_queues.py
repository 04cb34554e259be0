"""Task queues as clients describe and configure them: who polls, what waits, and how fast it may go."""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import BuildIdTaskReachability, DescribeTaskQueueMode, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import (
    ConfigMetadata,
    PollerInfo,
    RateLimit,
    RateLimitConfig,
    TaskIdBlock,
    TaskQueueConfig,
    TaskQueuePartitionMetadata,
    TaskQueueStats,
    TaskQueueStatus,
    TaskQueueTypeInfo,
    TaskQueueVersionInfo,
    TaskQueueVersioningInfo,
)
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeTaskQueueResponse,
    ListTaskQueuePartitionsRequest,
    ListTaskQueuePartitionsResponse,
    UpdateTaskQueueConfigRequest,
    UpdateTaskQueueConfigResponse,
)

from fairlead.core.fairness.ids import BLOCK_SIZE
from fairlead.core.partitions import (
    RESERVED_PREFIX,
    InvalidName,
    Partition,
    TaskList,
    TaskType,
    parse_partition_name,
)
from fairlead.frontend.checks import (
    FAIRNESS_KEY_BYTES_MAX,
    STICKY,
    check_length,
    check_task_queue,
    is_longer,
)
from fairlead.history.deployments import list_of
from fairlead.history.refusals import invalid
from fairlead.history.state.times import to_duration, to_timestamp
from fairlead.matching.messages import PriorityStats, RateChange, TaskListKind
from fairlead.matching.operator_client import TaskListDescription
from fairlead.matching.partition import PRIORITY_DEFAULT
from fairlead.settings.limits import MAX_ID_LENGTH
from fairlead.settings.matching import MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.frontend.context import Frontend, Handler
    from fairlead.matching.messages import DescribeAnswer, DispatchRules, RateRule
    from fairlead.matching.messages import PollerInfo as SeenPoller
    from fairlead.rpc import Call

# What a worker that has no limit of its own shows as its limit.
POLLER_RATE_DEFAULT = 100_000.0
UNVERSIONED = "__unversioned__"
BUILD_IDS_MAX = 1_000
_MILLISECOND_NS = 10**6
# How a time that was never set looks in Temporal's answers.
_NEVER = Timestamp(seconds=-62_135_596_800)
_REACHABLE = BuildIdTaskReachability.BUILD_ID_TASK_REACHABILITY_REACHABLE
_UNREACHABLE = BuildIdTaskReachability.BUILD_ID_TASK_REACHABILITY_UNREACHABLE
_ENHANCED = DescribeTaskQueueMode.DESCRIBE_TASK_QUEUE_MODE_ENHANCED
# Of so many versions of a task queue's workers, the newest, what waits for them is told.
DESCRIBED_VERSIONS_MAX = 20
_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
_NO_TASKS = PriorityStats(0, 0, 0.0, 0.0, 0.0)


async def _describe(frontend: Frontend, request: DescribeTaskQueueRequest, _: Call) -> DescribeTaskQueueResponse:
    namespace = await frontend.namespaces.find(request.namespace)
    if request.api_mode == _ENHANCED:
        return await _describe_versions(frontend, namespace.id, request)
    name, number = _read_partition(frontend, request)
    is_sticky = request.task_queue.kind == STICKY
    if request.report_stats and (is_sticky or number):
        raise invalid("DescribeTaskQueue stats are only supported for the root partition")
    task_list = TaskList(namespace.id, name, _task_type(request.task_queue_type))
    kind = TaskListKind.STICKY if is_sticky else TaskListKind.NORMAL
    description = await frontend.operator.describe(task_list, kind=kind)
    root = _root_of(description)
    asked = description.partitions.get(number)
    pollers = description.pollers() if not number else [] if asked is None else asked.pollers
    if not is_sticky and not number:
        description, pollers = await _with_versions(frontend, task_list, description)
    response = DescribeTaskQueueResponse(
        pollers=[_poller(one) for one in pollers],
        effective_rate_limit=DescribeTaskQueueResponse.EffectiveRateLimit(
            requests_per_second=root.whole_rate_per_s,
            rate_limit_source=int(root.rate_source),  # type: ignore[arg-type]
        ),
    )
    if not is_sticky:
        response.versioning_info.CopyFrom(_versioning_info(frontend, task_list))
    if request.report_stats:
        response.stats.CopyFrom(shown_stats(description.total()))
        by_priority = {PRIORITY_DEFAULT: _NO_TASKS} | {one.priority: one for one in description.by_priority()}
        for priority, stats in by_priority.items():
            response.stats_by_priority_key[priority].CopyFrom(shown_stats(stats))
    if request.report_config and root.rules.version:
        response.config.CopyFrom(_config(root.rules))
    if request.include_task_queue_status and asked is not None:
        response.task_queue_status.CopyFrom(_status(asked))
    return response


async def _with_versions(
    frontend: Frontend, task_list: TaskList, plain: TaskListDescription
) -> tuple[TaskListDescription, list[SeenPoller]]:
    """The same with what waits for workers of a version, and with these workers."""
    partitions, pollers = dict(plain.partitions), list(plain.pollers())
    for version in frontend.deployments.versions_of(task_list)[:DESCRIBED_VERSIONS_MAX]:
        described = await frontend.operator.describe(list_of(task_list, version))
        pollers += described.pollers()
        # By numbers that no partition has: what is asked for are sums.
        partitions.update({-1 - len(partitions) - number: one for number, one in described.partitions.items()})
    return TaskListDescription(plain.config, partitions, plain.missing), pollers


def _versioning_info(frontend: Frontend, task_list: TaskList) -> TaskQueueVersioningInfo:
    """The versions of workers that new work goes to."""
    route = frontend.deployments.route(task_list)
    info = TaskQueueVersioningInfo(current_version=UNVERSIONED, update_time=_NEVER)
    if route is None:
        return info
    info.update_time.CopyFrom(to_timestamp(max(route.current_changed_ns, route.ramping_changed_ns)))
    if route.current is not None:
        info.current_version = route.current.dotted
        info.current_deployment_version.CopyFrom(route.current.message())
    if route.percentage > 0:
        info.ramping_version_percentage = route.percentage
        info.ramping_version = UNVERSIONED if route.ramping is None else route.ramping.dotted
        if route.ramping is not None:
            info.ramping_deployment_version.CopyFrom(route.ramping.message())
    return info


async def _describe_versions(
    frontend: Frontend, namespace_id: str, request: DescribeTaskQueueRequest
) -> DescribeTaskQueueResponse:
    """The answer by versions of the workers and by types; what waits is for workers without a version."""
    if request.task_queue.kind == STICKY:
        raise invalid(
            "Enhanced DescribeTaskQueue is not valid for a sticky queue, use api_mode=UNSPECIFIED or a normal queue."
        )
    check_task_queue(frontend, request)
    wanted = [""]
    if request.HasField("versions"):
        selected = request.versions
        if len(selected.build_ids) > BUILD_IDS_MAX:
            raise invalid(f"Too many build ids: {len(selected.build_ids)}, maximum {BUILD_IDS_MAX}.")
        wanted = list(dict.fromkeys([*selected.build_ids, *([""] if selected.unversioned else [])]))
    response = DescribeTaskQueueResponse()
    types = dict.fromkeys(map(_task_type, request.task_queue_types)) or (TaskType.WORKFLOW, TaskType.ACTIVITY)
    described: dict[TaskType, tuple[PriorityStats, list[PollerInfo]]] = {}
    if wanted and (request.report_stats or request.report_pollers):
        for task_type in types:
            task_list = TaskList(namespace_id, request.task_queue.name, task_type)
            description = await frontend.operator.describe(task_list)
            _root_of(description)
            described[task_type] = description.total(), [_poller(one) for one in description.pollers()]
    for build_id in wanted:
        version = TaskQueueVersionInfo()
        for task_type in types:
            total, pollers = described.get(task_type, (_NO_TASKS, []))
            info = TaskQueueTypeInfo()
            if request.report_stats:
                info.stats.CopyFrom(shown_stats(_NO_TASKS if build_id else total))
            if request.report_pollers:
                info.pollers.extend(one for one in pollers if _version_of(one) == build_id)
            version.types_info[int(task_type)].CopyFrom(info)
        if request.report_task_reachability:
            version.task_reachability = _UNREACHABLE if build_id else _REACHABLE
        response.versions_info[build_id].CopyFrom(version)
    return response


async def _list_partitions(
    frontend: Frontend, request: ListTaskQueuePartitionsRequest, _: Call
) -> ListTaskQueuePartitionsResponse:
    namespace = await frontend.namespaces.find(request.namespace)
    check_task_queue(frontend, request)

    async def partitions(task_type: TaskType) -> list[TaskQueuePartitionMetadata]:
        task_list = TaskList(namespace.id, request.task_queue.name, task_type)
        config = (await frontend.operator.describe_root(task_list)).config
        found = (Partition(task_list, number) for number in range(config.read))
        return [TaskQueuePartitionMetadata(key=one.name, owner_host_name=frontend.operator.route(one)) for one in found]

    return ListTaskQueuePartitionsResponse(
        activity_task_queue_partitions=await partitions(TaskType.ACTIVITY),
        workflow_task_queue_partitions=await partitions(TaskType.WORKFLOW),
    )


async def _update_config(
    frontend: Frontend, request: UpdateTaskQueueConfigRequest, _: Call
) -> UpdateTaskQueueConfigResponse:
    namespace = await frontend.namespaces.find(request.namespace)
    limit = frontend.settings.get(MAX_ID_LENGTH)
    queue_rate = _rate_change(
        request, "update_queue_rate_limit", "UpdateQueueRateLimit", "Setting rate limit", reason_bytes_max=limit
    )
    key_rate = _rate_change(
        request,
        "update_fairness_key_rate_limit_default",
        "UpdateFairnessKeyRateLimitDefault",
        "Setting fairness key rate limit",
        reason_bytes_max=limit,
    )
    if is_longer(request.identity, limit):
        raise invalid(f"Identity field too long (max {limit} characters).")
    _check_weights(frontend, request)
    name = request.task_queue
    if not name:
        raise invalid("missing task queue name")
    if name.startswith(RESERVED_PREFIX):
        raise invalid(f"task queue family name cannot have prefix {RESERVED_PREFIX} {name}")
    check_length(frontend, name, "taskQueue length exceeds limit")
    if not request.task_queue_type:
        raise invalid("Task queue type is not set.")
    rules = await frontend.operator.configure(
        TaskList(namespace.id, name, _task_type(request.task_queue_type)),
        identity=request.identity,
        queue_rate=queue_rate,
        key_rate=key_rate,
        set_weights=request.set_fairness_weight_overrides,
        unset_weights=request.unset_fairness_weight_overrides,
    )
    return UpdateTaskQueueConfigResponse(config=_config(rules))


def _task_type(number: int) -> TaskType:
    try:
        return TaskType(number or TaskType.WORKFLOW)
    except ValueError:
        raise invalid(f"Unknown task queue type: {number}.") from None


def _read_partition(frontend: Frontend, request: DescribeTaskQueueRequest) -> tuple[str, int]:
    """The task queue that is asked for, and which of its partitions: by its own name, or by the whole's."""
    name = request.task_queue.name
    if not name.startswith(RESERVED_PREFIX):
        check_task_queue(frontend, request)
        return name, 0
    check_length(frontend, name, "taskQueue length exceeds limit")
    try:
        return parse_partition_name(name)
    except InvalidName:
        raise invalid(f"invalid task queue partition name {name}") from None


def _root_of(description: TaskListDescription) -> DescribeAnswer:
    """What the root says; where it can't be asked, that is the answer."""
    if description.config is None:
        raise description.missing[0]
    return description.partitions[0]


def shown_stats(stats: PriorityStats) -> TaskQueueStats:
    """How a task list is doing, as clients see it."""
    return TaskQueueStats(
        approximate_backlog_count=stats.tasks,
        approximate_backlog_age=to_duration(int(stats.age_s * 1e9)),
        tasks_add_rate=stats.adds_per_s,
        tasks_dispatch_rate=stats.dispatches_per_s,
    )


def _poller(seen: SeenPoller) -> PollerInfo:
    """A worker as it is shown: what it says of itself is a message of the same type."""
    try:
        poller = PollerInfo.FromString(seen.worker)
    except DecodeError:
        # A host of another release has written it.
        poller = PollerInfo()
    poller.identity = seen.identity
    poller.rate_per_second = POLLER_RATE_DEFAULT if seen.rate_per_s is None else seen.rate_per_s
    poller.last_access_time.CopyFrom(to_timestamp(int(seen.seen_s * 1e9)))
    return poller


def _version_of(poller: PollerInfo) -> str:
    """The build id of a worker that has its tasks to itself; "" for all others."""
    if poller.deployment_options.worker_versioning_mode == _VERSIONED:
        return poller.deployment_options.build_id
    capabilities = poller.worker_version_capabilities
    return capabilities.build_id if capabilities.use_versioning else ""


def _status(partition: DescribeAnswer) -> TaskQueueStatus:
    return TaskQueueStatus(
        backlog_count_hint=partition.report.tasks,
        read_level=max((one.read_level[1] for one in partition.priorities), default=0),
        ack_level=max((one.ack_level[1] for one in partition.priorities), default=0),
        # The official command line can't write an infinite number.
        rate_per_second=POLLER_RATE_DEFAULT if isinf(partition.whole_rate_per_s) else partition.whole_rate_per_s,
        task_id_block=TaskIdBlock(
            start_id=(partition.range_id - 1) * BLOCK_SIZE + 1, end_id=partition.range_id * BLOCK_SIZE
        ),
    )


def _config(rules: DispatchRules) -> TaskQueueConfig:
    config = TaskQueueConfig(fairness_weight_overrides=rules.weights)
    if rules.queue_rate is not None:
        config.queue_rate_limit.CopyFrom(_rate_limit(rules.queue_rate))
    if rules.key_rate is not None:
        config.fairness_keys_rate_limit_default.CopyFrom(_rate_limit(rules.key_rate))
    return config


def _rate_limit(rule: RateRule) -> RateLimitConfig:
    # To the millisecond, which a float of this size holds and Temporal's server gives.
    updated_ns = round(rule.updated_s * 1000) * _MILLISECOND_NS
    return RateLimitConfig(
        rate_limit=None if rule.rate_per_s is None else RateLimit(requests_per_second=rule.rate_per_s),
        metadata=ConfigMetadata(
            reason=rule.reason, update_identity=rule.identity, update_time=to_timestamp(updated_ns)
        ),
    )


def _rate_change(
    request: UpdateTaskQueueConfigRequest, field: str, noun: str, action: str, *, reason_bytes_max: int
) -> RateChange | None:
    if not request.HasField(field):  # type: ignore[arg-type]
        return None
    update: UpdateTaskQueueConfigRequest.RateLimitUpdate = getattr(request, field)
    rate_per_s = None
    if update.HasField("rate_limit"):
        if int(request.task_queue_type) == TaskType.WORKFLOW:
            raise invalid(f"{action} on workflow task queues is not allowed.")
        rate_per_s = update.rate_limit.requests_per_second
        # Not what is below 0, nor what is no number.
        if not rate_per_s >= 0:
            raise invalid(f"RequestsPerSecond for {noun} rate limit must be non-negative.")
    if is_longer(update.reason, reason_bytes_max):
        raise invalid(f"{noun}.Reason field too long (max {reason_bytes_max} characters).")
    return RateChange(rate_per_s, update.reason)


def _check_weights(frontend: Frontend, request: UpdateTaskQueueConfigRequest) -> None:
    weights, unset = request.set_fairness_weight_overrides, request.unset_fairness_weight_overrides
    count, count_max = len(weights) + len(unset), frontend.settings.get(MAX_FAIRNESS_KEY_WEIGHT_OVERRIDES)
    if count > count_max:
        raise invalid(f"too many fairness weight overrides in request: got {count}, maximum {count_max}")
    keys: Sequence[str] = [*weights, *unset]
    for key in keys:
        if not key:
            raise invalid("fairness weight override key must not be empty")
        if is_longer(key, FAIRNESS_KEY_BYTES_MAX):
            raise invalid("fairness key length exceeds limit")
    for key, weight in weights.items():
        if not weight > 0:
            raise invalid(f'invalid fairness weight weight for key "{key}": must be greater than zero')
        if key in unset:
            raise invalid(f'fairness weight override key "{key}" present in both set and unset lists')


METHODS: dict[str, Handler] = {
    "DescribeTaskQueue": _describe,
    "ListTaskQueuePartitions": _list_partitions,
    "UpdateTaskQueueConfig": _update_config,
}
NOTES = {
    "DescribeTaskQueue": "What waits is told for all workers together, not for each version of them.",
}
DIFFERENCES = (
    (
        "A task queue has no limit of its own on how fast it dispatches: effective_rate_limit is infinite if none is "
        "set. Of limits that several workers ask for, the lowest holds."
    ),
    (
        "UpdateTaskQueueConfig refuses a name that is empty or too long, a type that is none, and rates and weights "
        "that are no numbers, which Temporal's server takes."
    ),
    "The partitions of a task queue can be configured only while their number is kept in the database.",
)
