"""Figures of task queues over all hosts, and descriptions of single ones."""

import random
from math import inf

from google.protobuf.message import DecodeError
from msgspec import Struct
from temporalio.api.enums.v1 import WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo

from fairlead.api.worker_versions import Version
from fairlead.console.context import Context
from fairlead.console.directory import Loaded
from fairlead.console.held_back import PartitionFacts, QueueFacts
from fairlead.console.limits import NO_LIMIT, key_limit, queue_limit_source
from fairlead.console.view import workflow_method
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.core.namespaces import QualifiedNamespaceId, split_version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.messages.slots import RunningRequest, RunningResponse
from fairlead.history.service import RUNNING
from fairlead.matching.messages.inspection import LoadedQueue
from fairlead.matching.operator_client import OperatorClient, TaskQueueDescription

# Seconds for the count of running activities.
RUNNING_S_MAX = 3.0
# Seconds since its last poll for which a worker counts as present.
POLLED_S_MAX = 300.0
VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
TASK_TYPES = {each.name.lower(): each for each in TaskType}


class QueueFigures(Struct, frozen=True, kw_only=True):
    """Sums over the loaded partitions of a task queue; `age_s` is the age of the oldest loaded task.

    `version` is the worker version to which the task queue belongs, if any.
    """

    namespace_id: str
    name: str
    type: str
    partitions: int
    backlog: int
    age_s: float
    adds_per_s: float
    dispatches_per_s: float
    polls: int
    version: str = ""


class NoSuchTaskQueue(FixRequest):
    """The task queue does not exist."""


def trusted_client(context: Context) -> OperatorClient:
    """The client of `fairlead admin` with this host's rights: only after `require` for the namespace that it reads."""
    return OperatorClient(context.backend.caller, context.backend.ring, random=random.random)


async def waiting_queues(context: Context, namespace: str) -> tuple[list[LoadedQueue], list[str]]:
    """The loaded task queues of a namespace that have waiting tasks, without sticky ones; hosts that did not answer.

    Raises `RpcStatus` if the viewer may not read the namespace.
    """
    _, loaded = await loaded_queues(context, namespace)
    waiting = [one for one in loaded.queues.values() if one.backlog and not one.is_sticky]
    return waiting, sorted(loaded.missing)


async def loaded_queues(context: Context, namespace: str) -> tuple[str, Loaded]:
    """The namespace's id, and its loaded task queues on all hosts; they may be some seconds old."""
    await context.require(workflow_method("DescribeTaskQueue"), namespace)
    namespace_id = await context.namespace_id(namespace)
    client, directory = trusted_client(context), context.backend.directory
    loaded = await directory.loaded(client, namespace_id)
    if await context.backend.stored_queues.load(client, directory, namespace_id, loaded, now_s=context.now_s):
        loaded = await directory.loaded(client, namespace_id, is_new=True)
    return namespace_id, loaded


def figures_of(one: LoadedQueue) -> QueueFigures:
    """The figures of a task queue for a page."""
    return QueueFigures(
        namespace_id=one.namespace_id,
        name=one.name,
        type=TaskType(one.type).name.lower(),
        partitions=one.partitions,
        backlog=one.backlog,
        age_s=one.age_s,
        adds_per_s=one.adds_per_s,
        dispatches_per_s=one.dispatches_per_s,
        polls=one.polls,
        version=split_version(one.namespace_id)[1],
    )


async def find_queue(context: Context, namespace: str, name: str, task_type: str, version: str = "") -> TaskQueueId:
    """The id of a task queue that the viewer may describe; raises `NoSuchTaskQueue` if it was never used.

    A call to the root of an unknown task queue would create it.
    """
    await context.require(workflow_method("DescribeTaskQueue"), namespace)
    base = await context.namespace_id(namespace)
    deployment, _, build_id = version.partition(":")
    qualified = QualifiedNamespaceId.of_version(base, deployment=deployment, build_id=build_id) if version else base
    namespace_id = str(qualified)
    if task_type not in TASK_TYPES:
        raise NoSuchTaskQueue(f"{task_type!r} is not a type of tasks: {', '.join(TASK_TYPES)}")
    queue = TaskQueueId(namespace_id, name, TASK_TYPES[task_type])
    directory, client = context.backend.directory, trusted_client(context)
    is_known = queue in await directory.stored(client, namespace_id)
    if not is_known and queue not in await directory.stored(client, namespace_id, is_new=True):
        raise NoSuchTaskQueue(f"no task queue {name!r} for {task_type} tasks in namespace {namespace!r}")
    return queue


async def running_of(context: Context, queue: TaskQueueId) -> RunningResponse | None:
    """The running activities of a task queue with a limit on them; None without a limit. Requires the right to read."""
    if queue.type is not TaskType.ACTIVITY:
        return None
    base = split_version(queue.namespace_id)[0]
    request = RunningRequest(base, queue.name)
    try:
        found = await context.backend.caller.call(context.backend.host, RUNNING, request, timeout_s=RUNNING_S_MAX)
    except FairleadError:
        # A host without the history service can't count them: the page shows the rest.
        return None
    return found if found.key_max or found.queue_max else None


def poller_version(worker: bytes) -> str:
    """The worker version, such as app.v2, in a worker's description of itself; empty for an unversioned worker."""
    try:
        options = PollerInfo.FromString(worker).deployment_options
    except DecodeError:
        return ""
    is_versioned = bool(options.deployment_name and options.worker_versioning_mode == VERSIONED)
    return Version(options.deployment_name, options.build_id).dotted if is_versioned else ""


def facts_of(
    context: Context, queue: TaskQueueId, described: TaskQueueDescription, *, running: RunningResponse | None = None
) -> QueueFacts:
    """The facts that `held_back` needs."""
    now_s, settings = context.now_s, context.backend.settings
    answers = described.partitions
    root = answers.get(0)
    pollers = [one for one in described.pollers() if now_s - one.seen_s <= POLLED_S_MAX]
    of_key = NO_LIMIT if root is None else key_limit(settings, queue, root)
    return QueueFacts(
        name=queue.name,
        version=split_version(queue.namespace_id)[1],
        partitions={
            number: PartitionFacts(backlog=one.report.tasks, loaded=one.tasks_loaded, polls=one.polls_waiting)
            for number, one in answers.items()
        },
        missing={number: str(why) for number, why in described.missing.items()},
        pollers=len(pollers),
        polled_s_ago=None if not pollers else max(0.0, now_s - max(one.seen_s for one in pollers)),
        oldest_s=max((one.report.age_s for one in answers.values()), default=0.0),
        dispatches_per_s=sum(one.dispatches_per_s for one in answers.values()),
        rate_per_s=inf if root is None else root.whole_rate_per_s,
        rate_source="" if root is None else queue_limit_source(settings, queue, root),
        key_rate_per_s=of_key.rate_per_s,
        key_rate_source=of_key.source,
        keys_waiting=len({key.fairness_key for one in answers.values() for key in one.keys if key.tasks_waiting}),
        running=0 if running is None else sum(running.running.values()),
        running_max=0 if running is None else running.queue_max,
        key_running_max=0 if running is None else running.key_max,
        keys_at_limit=[]
        if running is None or not running.key_max
        else sorted(key for key, count in running.running.items() if count >= running.key_max),
    )
