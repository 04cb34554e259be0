"""Handlers that describe and configure task queues: pollers, backlog, versions and rate limits."""

from __future__ import annotations

from math import isinf
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.enums.v1 import BuildIdTaskReachability, DescribeTaskQueueMode, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import (
    PollerInfo,
    TaskIdBlock,
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
)

from fairlead.api.errors import InvalidArgument
from fairlead.api.times import SECOND_NS, to_duration, to_timestamp
from fairlead.api.worker_deployments import list_of
from fairlead.core.fairness.ids import BLOCK_SIZE
from fairlead.core.partitions import (
    RESERVED_PREFIX,
    InvalidName,
    Partition,
    TaskQueueId,
    TaskType,
    parse_partition_name,
)
from fairlead.frontend.handlers.task_queue_config import shown_config, task_type_of, update_config
from fairlead.frontend.validation.common import (
    STICKY,
    check_length,
    check_task_queue,
)
from fairlead.matching.messages import PriorityStats, QueueKind
from fairlead.matching.operator_client import TaskQueueDescription
from fairlead.matching.partition.task_validation import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.matching.messages import DescribeResponse
    from fairlead.matching.messages import PollerInfo as SeenPoller
    from fairlead.rpc import Call

# Rate that is shown for a worker without a limit of its own.
POLLER_RATE_DEFAULT = 100_000.0
UNVERSIONED = "__unversioned__"
BUILD_IDS_MAX = 1_000
# The value of an unset time in Temporal's responses.
_NEVER = Timestamp(seconds=-62_135_596_800)
_REACHABLE = BuildIdTaskReachability.BUILD_ID_TASK_REACHABILITY_REACHABLE
_UNREACHABLE = BuildIdTaskReachability.BUILD_ID_TASK_REACHABILITY_UNREACHABLE
_ENHANCED = DescribeTaskQueueMode.DESCRIBE_TASK_QUEUE_MODE_ENHANCED
# Maximum number of worker versions of a task queue, newest first, whose backlog is described.
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
        raise InvalidArgument("DescribeTaskQueue stats are only supported for the root partition")
    task_queue = TaskQueueId(namespace.id, name, task_type_of(request.task_queue_type))
    kind = QueueKind.STICKY if is_sticky else QueueKind.NORMAL
    description = await frontend.operator.describe(task_queue, kind=kind)
    root = _root_of(description)
    asked = description.partitions.get(number)
    pollers = description.pollers() if not number else [] if asked is None else asked.pollers
    if not is_sticky and not number:
        description, pollers = await _with_versions(frontend, task_queue, description)
    response = DescribeTaskQueueResponse(
        pollers=[_poller(one) for one in pollers],
        effective_rate_limit=DescribeTaskQueueResponse.EffectiveRateLimit(
            requests_per_second=root.whole_rate_per_s,
            rate_limit_source=int(root.rate_source),  # type: ignore[arg-type]
        ),
    )
    if not is_sticky:
        response.versioning_info.CopyFrom(_versioning_info(frontend, task_queue))
    if request.report_stats:
        response.stats.CopyFrom(shown_stats(description.total()))
        by_priority = {PRIORITY_DEFAULT: _NO_TASKS} | {one.priority: one for one in description.by_priority()}
        for priority, stats in by_priority.items():
            response.stats_by_priority_key[priority].CopyFrom(shown_stats(stats))
    if request.report_config and root.rules.version:
        response.config.CopyFrom(shown_config(root.rules))
    if request.include_task_queue_status:
        # The official CLI requests a partition's status, and expects one even if the partition does not exist.
        response.task_queue_status.CopyFrom(_absent_status(root) if asked is None else _status(asked))
    return response


async def _with_versions(
    frontend: Frontend, task_queue: TaskQueueId, plain: TaskQueueDescription
) -> tuple[TaskQueueDescription, list[SeenPoller]]:
    """The description with the tasks and pollers of versioned workers added."""
    partitions, pollers = dict(plain.partitions), list(plain.pollers())
    for version in frontend.deployments.versions_of(task_queue)[:DESCRIBED_VERSIONS_MAX]:
        described = await frontend.operator.describe(list_of(task_queue, version))
        pollers += described.pollers()
        # Give these descriptions partition numbers that don't exist: only the sums are used.
        partitions.update({-1 - len(partitions) - number: one for number, one in described.partitions.items()})
    return TaskQueueDescription(plain.config, partitions, plain.missing), pollers


def _versioning_info(frontend: Frontend, task_queue: TaskQueueId) -> TaskQueueVersioningInfo:
    """The worker versions that get new tasks."""
    route = frontend.deployments.route(task_queue)
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
    """The response by worker version and task type."""
    if request.task_queue.kind == STICKY:
        raise InvalidArgument(
            "Enhanced DescribeTaskQueue is not valid for a sticky queue, use api_mode=UNSPECIFIED or a normal queue."
        )
    check_task_queue(frontend, request)
    wanted = [""]
    if request.HasField("versions"):
        selected = request.versions
        if len(selected.build_ids) > BUILD_IDS_MAX:
            raise InvalidArgument(f"Too many build ids: {len(selected.build_ids)}, maximum {BUILD_IDS_MAX}.")
        wanted = list(dict.fromkeys([*selected.build_ids, *([""] if selected.unversioned else [])]))
    response = DescribeTaskQueueResponse()
    types = dict.fromkeys(map(task_type_of, request.task_queue_types)) or (TaskType.WORKFLOW, TaskType.ACTIVITY)
    reports = request.report_stats or request.report_pollers
    for build_id in wanted:
        version = TaskQueueVersionInfo()
        for task_type in types:
            info = TaskQueueTypeInfo()
            task_queue = TaskQueueId(namespace_id, request.task_queue.name, task_type)
            if reports:
                total, pollers = await _of_version(frontend, task_queue, build_id)
                if request.report_stats:
                    info.stats.CopyFrom(shown_stats(total))
                if request.report_pollers:
                    info.pollers.extend(pollers)
            version.types_info[int(task_type)].CopyFrom(info)
        if request.report_task_reachability:
            version.task_reachability = _UNREACHABLE if build_id else _REACHABLE
        response.versions_info[build_id].CopyFrom(version)
    return response


async def _of_version(
    frontend: Frontend, task_queue: TaskQueueId, build_id: str
) -> tuple[PriorityStats, list[PollerInfo]]:
    """The waiting tasks and the pollers of the version '<deployment>:<build id>', or without a version for "".

    Any other build id belongs to workers without a deployment. They have no tasks of their own.
    """
    named = next((one for one in frontend.deployments.versions_of(task_queue) if str(one) == build_id), None)
    description = await frontend.operator.describe(list_of(task_queue, named))
    _root_of(description)
    pollers = [_poller(one) for one in description.pollers()]
    if named is not None:
        return description.total(), pollers
    return _NO_TASKS if build_id else description.total(), [one for one in pollers if _version_of(one) == build_id]


async def _list_partitions(
    frontend: Frontend, request: ListTaskQueuePartitionsRequest, _: Call
) -> ListTaskQueuePartitionsResponse:
    namespace = await frontend.namespaces.find(request.namespace)
    check_task_queue(frontend, request)

    async def partitions(task_type: TaskType) -> list[TaskQueuePartitionMetadata]:
        task_queue = TaskQueueId(namespace.id, request.task_queue.name, task_type)
        config = (await frontend.operator.describe_root(task_queue)).config
        found = (Partition(task_queue, number) for number in range(config.read))
        return [TaskQueuePartitionMetadata(key=one.name, owner_host_name=frontend.operator.route(one)) for one in found]

    return ListTaskQueuePartitionsResponse(
        activity_task_queue_partitions=await partitions(TaskType.ACTIVITY),
        workflow_task_queue_partitions=await partitions(TaskType.WORKFLOW),
    )


def _read_partition(frontend: Frontend, request: DescribeTaskQueueRequest) -> tuple[str, int]:
    """The task queue's name and partition number, from the name of a partition or of the whole task queue."""
    name = request.task_queue.name
    if not name.startswith(RESERVED_PREFIX):
        check_task_queue(frontend, request)
        return name, 0
    check_length(frontend, name, "taskQueue length exceeds limit")
    try:
        return parse_partition_name(name)
    except InvalidName:
        raise InvalidArgument(f"invalid task queue partition name {name}") from None


def _root_of(description: TaskQueueDescription) -> DescribeResponse:
    """The root partition's description; raises the root's error if it can't be reached."""
    if description.config is None:
        raise description.missing[0]
    return description.partitions[0]


def shown_stats(stats: PriorityStats) -> TaskQueueStats:
    """Statistics of a task queue for API responses."""
    return TaskQueueStats(
        approximate_backlog_count=stats.tasks,
        approximate_backlog_age=to_duration(int(stats.age_s * SECOND_NS)),
        tasks_add_rate=stats.adds_per_s,
        tasks_dispatch_rate=stats.dispatches_per_s,
    )


def _poller(seen: SeenPoller) -> PollerInfo:
    """A poller for API responses; `seen.worker` is a serialized PollerInfo."""
    try:
        poller = PollerInfo.FromString(seen.worker)
    except DecodeError:
        # A host of another release wrote this PollerInfo.
        poller = PollerInfo()
    poller.identity = seen.identity
    poller.rate_per_second = POLLER_RATE_DEFAULT if seen.rate_per_s is None else seen.rate_per_s
    poller.last_access_time.CopyFrom(to_timestamp(int(seen.seen_s * SECOND_NS)))
    return poller


def _version_of(poller: PollerInfo) -> str:
    """The build id of a versioned worker; "" for all others."""
    if poller.deployment_options.worker_versioning_mode == _VERSIONED:
        return poller.deployment_options.build_id
    capabilities = poller.worker_version_capabilities
    return capabilities.build_id if capabilities.use_versioning else ""


def _status(partition: DescribeResponse) -> TaskQueueStatus:
    return TaskQueueStatus(
        backlog_count_hint=partition.report.tasks,
        read_level=max((one.read_level[1] for one in partition.priorities), default=0),
        ack_level=max((one.ack_level[1] for one in partition.priorities), default=0),
        # The official CLI can't print an infinite number.
        rate_per_second=POLLER_RATE_DEFAULT if isinf(partition.whole_rate_per_s) else partition.whole_rate_per_s,
        task_id_block=TaskIdBlock(
            start_id=(partition.range_id - 1) * BLOCK_SIZE + 1, end_id=partition.range_id * BLOCK_SIZE
        ),
    )


def _absent_status(root: DescribeResponse) -> TaskQueueStatus:
    """The status of a partition that the task queue does not have: no task was ever written to it."""
    status = _status(root)
    return TaskQueueStatus(
        rate_per_second=status.rate_per_second, task_id_block=TaskIdBlock(start_id=1, end_id=BLOCK_SIZE)
    )


METHODS: dict[str, Handler] = {
    "DescribeTaskQueue": _describe,
    "ListTaskQueuePartitions": _list_partitions,
    "UpdateTaskQueueConfig": update_config,
}
DIFFERENCES = (
    (
        "A task queue has no default dispatch rate limit: without a limit, effective_rate_limit is infinite, and "
        "rate_per_second in the deprecated status is 100,000. If several workers set a limit, the lowest one "
        "applies."
    ),
    (
        "UpdateTaskQueueConfig rejects an empty or too long name, an unset type, and rates and weights that are "
        "not numbers; Temporal's server accepts them."
    ),
    "The partitions of a task queue can be configured only while their number is stored in the database.",
)
