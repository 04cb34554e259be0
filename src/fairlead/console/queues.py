"""Figures of task queues over all hosts, and descriptions of single ones."""

import asyncio
import random
import re
from collections.abc import Set as AbstractSet
from contextlib import suppress
from math import inf

from msgspec import Struct

from fairlead.console.context import Context
from fairlead.console.held_back import PartitionFacts, QueueFacts
from fairlead.console.view import workflow_method
from fairlead.core.errors import FairleadError, FixRequest
from fairlead.core.namespaces import QualifiedNamespaceId, split_version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.messages.slots import RunningRequest, RunningResponse
from fairlead.history.service import RUNNING
from fairlead.matching.messages import DescribeResponse, RateSource
from fairlead.matching.operator_client import OperatorClient, TaskQueueDescription
from fairlead.settings.dynamic.matching import OVERRIDE_TASK_QUEUE_RPS

# Seconds between two loads of a namespace's stored task queues; a host unloads an idle one after five minutes.
LOAD_STORED_S = 240.0
# Maximum number of stored task queues that are loaded for one viewer's request, and number that are loaded
# concurrently.
LOADED_MAX = 300
LOADED_AT_ONCE = 4
# Namespaces whose last load is remembered.
NAMESPACES_MAX = 1_000
_ENDS_WITH_UUID = re.compile(r"[-:][0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
# Seconds for the count of running activities.
RUNNING_S_MAX = 3.0
# Seconds since its last poll for which a worker counts as present.
POLLED_S_MAX = 300.0
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
    # Whether the task queue belongs to one worker, which caches workflows.
    is_sticky: bool = False


class NoSuchTaskQueue(FixRequest):
    """The task queue does not exist."""


def trusted_client(context: Context) -> OperatorClient:
    """The client of `fairlead admin` with this host's rights: only after `require` for the namespace that it reads."""
    return OperatorClient(context.backend.caller, context.backend.ring, random=random.random)


async def queue_figures(context: Context, namespace: str) -> list[QueueFigures]:
    """The loaded task queues of a namespace on all hosts, without sticky ones.

    Raises `RpcStatus` if the viewer may not read the namespace.
    """
    return [one for one in await all_figures(context, namespace) if not one.is_sticky]


async def all_figures(context: Context, namespace: str) -> list[QueueFigures]:
    """The loaded task queues of a namespace on all hosts, with sticky ones."""
    await context.require(workflow_method("DescribeTaskQueue"), namespace)
    namespace_id = await context.namespace_id(namespace)
    found, _missing = await trusted_client(context).figures(namespace_id)
    _load_stored(context, namespace_id, {(one.name, one.type) for one in found})
    return [
        QueueFigures(
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
            is_sticky=one.is_sticky,
        )
        for one in found
    ]


def is_sticky_name(name: str) -> bool:
    """Whether a name looks like that of a worker's sticky task queue: SDKs end it with a UUID."""
    return _ENDS_WITH_UUID.search(name) is not None


def _load_stored(context: Context, namespace_id: str, loaded: AbstractSet[tuple[str, int]]) -> None:
    """Load stored task queues in the background, so that the next page shows their backlog.

    A host loads a task queue at its first request. After a restart, tasks without a worker would stay unseen.
    """
    known = context.backend.loaded_at_s
    if context.backend.background.is_ended:
        return
    if context.now_s - known.get(namespace_id, 0.0) < LOAD_STORED_S:
        return
    if len(known) >= NAMESPACES_MAX:
        known.clear()
    known[namespace_id] = context.now_s
    client = trusted_client(context)

    async def load() -> None:
        stored = await client.list_task_queues(namespace_id)
        waiting = iter(
            [one for one in stored if (one.name, int(one.type)) not in loaded and not is_sticky_name(one.name)][
                :LOADED_MAX
            ]
        )

        async def describe() -> None:
            for queue in waiting:
                with suppress(FairleadError):
                    await client.describe_root(queue)

        await asyncio.gather(*(describe() for _ in range(LOADED_AT_ONCE)))

    context.backend.background.begin(load())


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
    if queue not in await trusted_client(context).list_task_queues(namespace_id):
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


def facts_of(
    queue: TaskQueueId, described: TaskQueueDescription, *, now_s: float, running: RunningResponse | None = None
) -> QueueFacts:
    """The facts that `held_back` needs."""
    answers = described.partitions
    root = answers.get(0)
    pollers = [one for one in described.pollers() if now_s - one.seen_s <= POLLED_S_MAX]
    key_rate = None if root is None or root.rules.key_rate is None else root.rules.key_rate.rate_per_s
    return QueueFacts(
        name=queue.name,
        version=split_version(queue.namespace_id)[1],
        partitions={
            number: PartitionFacts(backlog=one.report.tasks, loaded=one.tasks_loaded, polls=one.polls_waiting)
            for number, one in answers.items()
        },
        missing={number: str(why) for number, why in described.missing.items()},
        pollers=len(pollers),
        polled_s_ago=None if not pollers else max(0.0, now_s - pollers[0].seen_s),
        oldest_s=max((one.report.age_s for one in answers.values()), default=0.0),
        dispatches_per_s=sum(one.dispatches_per_s for one in answers.values()),
        rate_per_s=inf if root is None else root.whole_rate_per_s,
        rate_source="" if root is None else rate_source(root),
        key_rate_per_s=key_rate,
        keys_waiting=len({key.fairness_key for one in answers.values() for key in one.keys if key.tasks_waiting}),
        running=0 if running is None else sum(running.running.values()),
        running_max=0 if running is None else running.queue_max,
        key_running_max=0 if running is None else running.key_max,
        keys_at_limit=[]
        if running is None or not running.key_max
        else sorted(key for key, count in running.running.items() if count >= running.key_max),
    )


def rate_source(root: DescribeResponse) -> str:
    """The source of the rate limit of the whole task queue, as a sentence."""
    rule = root.rules.queue_rate
    match root.rate_source:
        case RateSource.CALL if rule is not None:
            reason = f", because: {rule.reason}" if rule.reason else ""
            return f"set with UpdateTaskQueueConfig by {rule.identity or 'an unknown caller'}{reason}"
        case RateSource.WORKER:
            return "set by a worker: max_task_queue_activities_per_second"
        case _:
            return f"set by the dynamic setting {OVERRIDE_TASK_QUEUE_RPS.key}"
