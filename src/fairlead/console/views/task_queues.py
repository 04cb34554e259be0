"""All task queues of a namespace: backlog, oldest wait, tasks in and out, waiting polls, and what holds them back."""

from enum import StrEnum
from operator import attrgetter
from typing import Final

from msgspec import Struct

from fairlead.console import sampler
from fairlead.console.context import Context
from fairlead.console.directory import Loaded, QueueKey
from fairlead.console.held_back import Cause, Held, PartitionFacts, QueueFacts, held_back
from fairlead.console.queues import (
    QueueFigures,
    facts_of,
    figures_of,
    loaded_queues,
    running_of,
    trusted_client,
)
from fairlead.console.series import Point
from fairlead.console.stored_queues import is_sticky_name
from fairlead.console.view import Parameters, View, workflow_method
from fairlead.core.errors import FairleadError
from fairlead.core.namespaces import split_version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.messages.inspection import LoadedQueue

# Rows of a page.
ROWS_MAX: Final = 100
# Fairness keys that each partition reports for its reason.
KEYS_MAX: Final = 20
# Seconds for the descriptions of one page.
DESCRIBE_S_MAX: Final = 3.0


class Order(StrEnum):
    """Column by which the list is sorted."""

    OLDEST = "oldest"
    BACKLOG = "backlog"
    ADDED = "in"
    DISPATCHED = "out"
    NAME = "name"


class QueueList(Parameters, frozen=True, kw_only=True):
    """Parameters of the list; `search` is a part of a name, `page` counts from 1."""

    search: str = ""
    sort: Order = Order.OLDEST
    page: int = 1


class Row(QueueFigures, frozen=True, kw_only=True):
    """A task queue of the list. `held` is None if nothing waits, or if the task queue is not loaded."""

    is_loaded: bool = True
    held: Held | None = None
    points: list[Point]


class TaskQueues(Struct, frozen=True, kw_only=True):
    """The data of the list. `total` counts the task queues that match the search."""

    rows: list[Row]
    total: int
    first: int
    page: int
    pages: int
    waiting: int
    backlog: int
    # Task queues that no host has loaded; their backlog is not known.
    unloaded: int
    # Hosts that did not answer: their task queues, or parts of them, are absent.
    missing: list[str]


# The columns of each order, from the highest value down; rows with the same values are in the order of their names.
COLUMNS: Final = {
    Order.OLDEST: attrgetter("age_s", "backlog"),
    Order.BACKLOG: attrgetter("backlog", "age_s"),
    Order.ADDED: attrgetter("adds_per_s"),
    Order.DISPATCHED: attrgetter("dispatches_per_s"),
}
_NOT_READ: Final = Held(
    cause=Cause.UNKNOWN,
    sentence="Not read yet: the page has too many partitions to read at once.",
    advice="Wait a moment, or open the task queue.",
)


async def load(context: Context, asked: QueueList) -> TaskQueues:
    """Read one page of the list."""
    namespace_id, loaded = await loaded_queues(context, asked.namespace)
    stored = await context.backend.directory.stored(trusted_client(context), namespace_id)
    queues = [one for one in loaded.queues.values() if not one.is_sticky]
    unloaded = _unloaded(stored, loaded)
    rows = [*queues, *unloaded.values()]
    if asked.search:
        wanted = asked.search.casefold()
        rows = [one for one in rows if wanted in one.name.casefold()]
    if unloaded:
        rows.sort(key=attrgetter("name", "type"))
    if asked.sort in COLUMNS:
        rows.sort(key=COLUMNS[asked.sort], reverse=True)
    pages = max(1, -(-len(rows) // ROWS_MAX))
    page = min(max(1, asked.page), pages)
    first = (page - 1) * ROWS_MAX
    shown = rows[first : first + ROWS_MAX]
    shown_unloaded = [_id(one) for one in shown if _key(one) in unloaded]
    context.backend.stored_queues.load_each(trusted_client(context), shown_unloaded, now_s=context.now_s)
    held = await _held(context, [one for one in shown if one.backlog], loaded)
    return TaskQueues(
        rows=[_row(context, one, held, is_loaded=_key(one) not in unloaded) for one in shown],
        total=len(rows),
        first=first + 1 if rows else 0,
        page=page,
        pages=pages,
        waiting=sum(one.backlog > 0 for one in queues),
        backlog=sum(one.backlog for one in queues),
        unloaded=len(unloaded),
        missing=sorted(loaded.missing),
    )


def _unloaded(stored: dict[TaskQueueId, list[int]], loaded: Loaded) -> dict[QueueKey, LoadedQueue]:
    """The stored task queues that no host has loaded."""
    return {
        key: LoadedQueue(*key, len(numbers), 0, 0.0, 0.0, 0.0, 0)
        for queue, numbers in stored.items()
        if (key := (queue.namespace_id, queue.name, int(queue.type))) not in loaded.queues
        and not is_sticky_name(queue.name)
    }


async def _held(context: Context, rows: list[LoadedQueue], loaded: Loaded) -> dict[QueueKey, Held]:
    """The cause for which each of these task queues waits."""
    client = trusted_client(context)

    async def read(one: LoadedQueue) -> Held:
        queue = _id(one)
        try:
            described = await client.describe(queue, keys_max=KEYS_MAX, timeout_s=DESCRIBE_S_MAX)
        except FairleadError as failure:
            return Held(cause=Cause.UNKNOWN, sentence=f"The task queue did not answer: {failure}")
        running = await running_of(context, queue)
        return held_back(facts_of(context, queue, described, running=running))

    # Zero polls are certain only if all hosts have responded.
    alone = [one for one in rows if not one.polls and not one.is_polled and not loaded.missing]
    found = {_key(one): held_back(_facts_without_workers(one)) for one in alone}
    others = [one for one in rows if _key(one) not in found]
    return dict.fromkeys(map(_key, others), _NOT_READ) | await context.backend.reasons.of(others, read) | found


def _facts_without_workers(one: LoadedQueue) -> QueueFacts:
    return QueueFacts(
        name=one.name,
        version=split_version(one.namespace_id)[1],
        partitions={0: PartitionFacts(backlog=one.backlog, loaded=one.backlog, polls=0)},
        oldest_s=one.age_s,
    )


def _row(context: Context, one: LoadedQueue, held: dict[QueueKey, Held], *, is_loaded: bool) -> Row:
    figures = figures_of(one)
    name = ("queue", one.namespace_id, one.name, figures.type, sampler.BACKLOG)
    return Row(
        **{name: getattr(figures, name) for name in QueueFigures.__struct_fields__},
        is_loaded=is_loaded,
        held=held.get(_key(one)),
        points=context.points(name) if is_loaded else [],
    )


def _key(one: LoadedQueue) -> QueueKey:
    return one.namespace_id, one.name, one.type


def _id(one: LoadedQueue) -> TaskQueueId:
    return TaskQueueId(one.namespace_id, one.name, TaskType(one.type))


VIEW: Final = View(
    path="task-queues",
    title="Task queues",
    nav="Task queues",
    access=workflow_method("DescribeTaskQueue"),
    key="q",
    parameters=QueueList,
    load=load,
    template="task_queues.html",
)
