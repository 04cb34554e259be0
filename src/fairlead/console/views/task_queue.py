"""One task queue: what holds it back, the tree of its partitions, its configuration, its workers and its tasks."""

from math import isinf, nan
from typing import Final

from msgspec import Struct
from temporalio.api.taskqueue.v1 import RateLimit
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest, UpdateTaskQueueConfigResponse

from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.console import sampler
from fairlead.console.context import Context
from fairlead.console.held_back import Held, held_back
from fairlead.console.limits import key_limit, queue_limit_source
from fairlead.console.problems import Problem
from fairlead.console.queues import TASK_TYPES, facts_of, find_queue, poller_version, running_of, trusted_client
from fairlead.console.series import Point
from fairlead.console.text import plural
from fairlead.console.tree import Node
from fairlead.console.view import Action, Field, Form, Parameters, View, workflow_method
from fairlead.console.waiting_tasks import WaitingRow, first_tasks
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition, TaskQueueId
from fairlead.core.partitions.tree import parent
from fairlead.matching.messages import CountsInfo, DescribeResponse, Forwarded
from fairlead.matching.operator_client import TaskQueueDescription
from fairlead.settings import Scope
from fairlead.settings.dynamic.matching import FORWARDER_MAX_CHILDREN_PER_NODE

# Maximum number of listed fairness keys, and of listed workers.
KEYS_MAX: Final = 100
WORKERS_MAX: Final = 100
# Maximum number of times that an unfinished purge is repeated; each repetition takes some seconds.
PURGES_MAX: Final = 20
# For partitions without a parent, and for those of an older release.
NOT_FORWARDED: Final = Forwarded(0, 0, 0.0, 0.0)
# Partitions that are drawn as a tree.
DRAWN_MAX: Final = 64
# Seconds for the descriptions of all partitions.
DESCRIBE_S_MAX: Final = 5.0
# Tasks per second: the highest rate limit that the form takes.
RATE_MAX: Final = 1_000_000_000


class QueueParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of all views of one task queue."""

    name: str = ""
    type: str = "workflow"
    version: str = ""


class PartitionRow(Node, frozen=True, kw_only=True):
    """A partition. `acknowledged` is the version of the configuration that it confirmed; None if it has not yet."""

    host: str = ""
    age_s: float = 0.0
    adds_per_s: float = 0.0
    dispatches_per_s: float = 0.0
    lease: int = 0
    acknowledged: int | None = None
    # Tasks and polls that it offered to its parent since it was loaded.
    tasks_up: int = 0
    polls_up: int = 0


class Worker(Struct, frozen=True):
    """A worker that polled in the last minutes; `version` is empty for an unversioned one."""

    identity: str
    polled_at_s: float
    partitions: int
    version: str = ""


class TaskQueueData(Struct, frozen=True, kw_only=True):
    """The data of the view."""

    type: str
    held: Held
    version: int
    read: int
    write: int
    counts: CountsInfo | None
    rate_per_s: float | None
    rate_source: str
    key_rate_per_s: float | None
    key_rate_source: str
    # Running activities and their limits, of the task queue and of a key; None without a limit.
    running: int | None
    running_max: int | None
    key_running_max: int | None
    rows: list[PartitionRow]
    workers: list[Worker]
    tasks: list[WaitingRow]
    stored: int
    backlog_points: list[Point]
    in_points: list[Point]
    out_points: list[Point]
    poll_points: list[Point]
    behind: list[int]
    tasks_problem: Problem | None = None
    # Whether the partitions are few enough to be drawn.
    is_drawn: bool = True


async def load(context: Context, asked: QueueParameters) -> TaskQueueData:
    """Read one task queue."""
    queue = await find_queue(context, asked.namespace, asked.name, asked.type, asked.version)
    client = trusted_client(context)
    described = await client.describe(queue, keys_max=KEYS_MAX, timeout_s=DESCRIBE_S_MAX)
    if described.config is None:
        raise described.missing[0]
    root = described.partitions[0]
    acknowledged = (await client.explain(queue)).acknowledged
    config = described.config
    rows = _rows(context, queue, described, acknowledged)
    tasks, tasks_problem = await first_tasks(context, queue, described)
    of_key = key_limit(context.backend.settings, queue, root)
    running = await running_of(context, queue)
    return TaskQueueData(
        type=asked.type,
        held=held_back(facts_of(context, queue, described, running=running)),
        running=None if running is None else sum(running.running.values()),
        running_max=None if running is None else running.queue_max or None,
        key_running_max=None if running is None else running.key_max or None,
        version=config.version,
        read=config.read,
        write=config.write,
        counts=root.counts,
        rate_per_s=None if isinf(root.whole_rate_per_s) else root.whole_rate_per_s,
        rate_source=queue_limit_source(context.backend.settings, queue, root),
        key_rate_per_s=of_key.rate_per_s,
        key_rate_source=of_key.source,
        rows=rows,
        workers=_workers(described),
        tasks=tasks,
        stored=sum(one.report.tasks for one in described.partitions.values()),
        behind=[number for number in range(1, config.read) if acknowledged.get(number, -1) < config.version],
        tasks_problem=tasks_problem,
        is_drawn=len(rows) <= DRAWN_MAX,
        backlog_points=_points(context, queue, sampler.BACKLOG),
        in_points=_points(context, queue, sampler.ADDS),
        out_points=_points(context, queue, sampler.DISPATCHES),
        poll_points=_points(context, queue, sampler.POLLS),
    )


def _points(context: Context, queue: TaskQueueId, value: str) -> list[Point]:
    return context.points(("queue", queue.namespace_id, queue.name, queue.type.name.lower(), value))


def _rows(
    context: Context, queue: TaskQueueId, described: TaskQueueDescription, acknowledged: dict[int, int]
) -> list[PartitionRow]:
    scope = Scope(namespace=queue.namespace_id, task_queue=queue.name, type=queue.type)
    degree = context.backend.settings.get(FORWARDER_MAX_CHILDREN_PER_NODE, scope)
    write = 0 if described.config is None else described.config.write
    rows = []
    for number in sorted({*described.partitions, *described.missing}):
        above = parent(number, degree=degree) if number else None
        if number in described.missing:
            rows.append(PartitionRow(number=number, parent=above, problem=str(described.missing[number])))
            continue
        one = described.partitions[number]
        rows.append(_row(one, number, above, is_written=number < write, acknowledged=acknowledged.get(number)))
    return rows


def _row(
    one: DescribeResponse, number: int, above: int | None, *, is_written: bool, acknowledged: int | None
) -> PartitionRow:
    up = one.forwarded or NOT_FORWARDED
    return PartitionRow(
        number=number,
        tasks_up=up.tasks,
        polls_up=up.polls,
        tasks_up_per_s=up.tasks_per_s,
        polls_up_per_s=up.polls_per_s,
        parent=above,
        host=one.host,
        is_written=is_written,
        backlog=one.report.tasks,
        age_s=one.report.age_s,
        adds_per_s=one.report.adds_per_s,
        dispatches_per_s=one.dispatches_per_s,
        polls=one.polls_waiting,
        lease=one.range_id,
        acknowledged=acknowledged if number else None,
    )


def _workers(described: TaskQueueDescription) -> list[Worker]:
    partitions: dict[str, int] = {}
    for answer in described.partitions.values():
        for poller in answer.pollers:
            partitions[poller.identity] = partitions.get(poller.identity, 0) + 1
    return [
        Worker(one.identity, one.seen_s, partitions[one.identity], poller_version(one.worker))
        for one in described.pollers()[:WORKERS_MAX]
    ]


async def _update(context: Context, asked: QueueParameters, form: Form) -> str:
    queue = await find_queue(context, asked.namespace, asked.name, asked.type, asked.version)
    read, write = _whole(form, "read"), _whole(form, "write")
    done = await context.operators.update(queue, read=read, write=write)
    planned = (
        " These counts are in the database, and not in force: the settings are the source." if done.is_planned else ""
    )
    return f"Read partitions: {done.after.read}, write partitions: {done.after.write}.{planned}"


async def _limit(context: Context, asked: QueueParameters, form: Form) -> str:
    if asked.version:
        raise FixRequest("a rate limit is for the whole task queue: open it without a version")
    text = form.get("rate", "").strip()
    rate = _rate(text) if text else None
    request = UpdateTaskQueueConfigRequest(
        namespace=asked.namespace,
        identity=context.identity(),
        task_queue=asked.name,
        task_queue_type=int(TASK_TYPES[asked.type]),  # type: ignore[arg-type]
        update_queue_rate_limit=UpdateTaskQueueConfigRequest.RateLimitUpdate(
            rate_limit=None if rate is None else RateLimit(requests_per_second=rate), reason=form.get("reason", "")
        ),
    )
    await context.call("UpdateTaskQueueConfig", request, UpdateTaskQueueConfigResponse)
    return "The rate limit is removed." if rate is None else f"The rate limit is {rate:g} tasks per second."


async def _purge(context: Context, asked: QueueParameters, _form: Form) -> str:
    queue = await find_queue(context, asked.namespace, asked.name, asked.type, asked.version)
    described = await trusted_client(context).describe(queue)
    removed = kept = 0
    is_done = True
    for number in sorted(described.partitions):
        purged = await context.operators.purge(Partition(queue, number))
        for _ in range(PURGES_MAX):
            if purged.is_done:
                break
            removed += purged.removed
            purged = await context.operators.purge(Partition(queue, number))
        removed += purged.removed
        kept += purged.kept
        is_done &= purged.is_done
    left = f" {plural(kept, 'task')} of workflows stayed: cancel or terminate the workflows." if kept else ""
    return f"{plural(removed, 'task')} removed.{left}" + ("" if is_done else " It is not done yet: repeat it.")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = nan
    # Comparisons with NaN are false, so this also rejects NaN.
    if not 0 <= rate <= RATE_MAX:
        raise FixRequest(
            f"Tasks per second is {text[:50]!r}: give a number from 0 to {RATE_MAX:,}, or nothing to remove the limit"
        )
    return rate


def _whole(form: Form, name: str) -> int:
    try:
        return int(form.get(name, ""))
    except ValueError:
        raise FixRequest(f"{name} is {form.get(name, '')!r}: give a whole number of partitions") from None


ACTIONS: Final = (
    Action(
        name="partitions",
        label="Change partitions",
        access=HOST_METHODS["matching.Update"],
        act=_update,
        fields=(
            Field(name="read", label="Read partitions", is_required=True),
            Field(name="write", label="Write partitions", is_required=True, hint="at most the read partitions"),
        ),
        about="Removed partitions are drained first. An enabled scaler changes the numbers again.",
    ),
    Action(
        name="limit",
        label="Limit the rate",
        access=workflow_method("UpdateTaskQueueConfig"),
        act=_limit,
        fields=(Field(name="rate", label="Tasks per second", hint="empty removes the limit, 0 stops the dispatch"),),
        applies=lambda data: data.type != "workflow",
    ),
    Action(
        name="purge",
        label="Purge",
        access=HOST_METHODS["matching.Purge"],
        act=_purge,
        word="purge",
        about="Removes the waiting tasks of clients of task queues, for good. Tasks of workflows stay.",
    ),
)

VIEW: Final = View(
    path="task-queue",
    title="Task queue",
    parameters=QueueParameters,
    load=load,
    template="task_queue.html",
    actions=ACTIONS,
)
