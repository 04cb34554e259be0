"""All task queues of a namespace: backlog, oldest wait, tasks in and out, waiting polls, and what holds them back."""

import asyncio
from enum import StrEnum
from typing import Final

from msgspec import Struct

from fairlead.console import sampler
from fairlead.console.context import Context
from fairlead.console.held_back import Held, held_back
from fairlead.console.queues import (
    TASK_TYPES,
    QueueFigures,
    all_figures,
    facts_of,
    is_sticky_name,
    running_of,
    trusted_client,
)
from fairlead.console.series import Point
from fairlead.console.view import Parameters, View, workflow_method
from fairlead.core.namespaces import split_version
from fairlead.core.partitions import TaskQueueId

# Rows of a page, and maximum number of task queues of a page whose cause of waiting is determined.
ROWS_MAX: Final = 100
HELD_MAX: Final = 20
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
    """A task queue of the list. `held` is None if nothing waits, or if the queue was not asked."""

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


async def load(context: Context, asked: QueueList) -> TaskQueues:
    """Read one page of the list."""
    known = await all_figures(context, asked.namespace)
    loaded = {(one.namespace_id, one.name, one.type) for one in known}
    figures = [one for one in known if not one.is_sticky]
    namespace_id = await context.namespace_id(asked.namespace)
    stored = await trusted_client(context).list_task_queues(namespace_id)
    rows = [
        *figures,
        *(
            _unloaded(queue, len(numbers))
            for queue, numbers in stored.items()
            if _key(queue) not in loaded and not is_sticky_name(queue.name)
        ),
    ]
    if asked.search:
        wanted = asked.search.casefold()
        rows = [one for one in rows if wanted in one.name.casefold()]
    rows.sort(key=lambda one: _sort_key(one, asked.sort))
    pages = max(1, -(-len(rows) // ROWS_MAX))
    page = min(max(1, asked.page), pages)
    first = (page - 1) * ROWS_MAX
    shown = rows[first : first + ROWS_MAX]
    held = await _held(context, [one for one in shown if one.backlog][:HELD_MAX])
    return TaskQueues(
        rows=[_row(context, one, held, is_loaded=(one.namespace_id, one.name, one.type) in loaded) for one in shown],
        total=len(rows),
        first=first + 1 if rows else 0,
        page=page,
        pages=pages,
        waiting=sum(one.backlog > 0 for one in figures),
        backlog=sum(one.backlog for one in figures),
    )


async def _held(context: Context, rows: list[QueueFigures]) -> dict[tuple[str, str, str], Held]:
    """The cause for which each of these task queues waits; queues that do not answer in time are left out."""
    client = trusted_client(context)
    found: dict[tuple[str, str, str], Held] = {}

    async def ask(row: QueueFigures) -> None:
        queue = TaskQueueId(row.namespace_id, row.name, TASK_TYPES[row.type])
        described = await client.describe(queue, keys_max=20, timeout_s=DESCRIBE_S_MAX)
        running = await running_of(context, queue)
        found[_key(queue)] = held_back(facts_of(queue, described, now_s=context.now_s, running=running))

    await asyncio.gather(*(ask(row) for row in rows))
    return found


def _row(context: Context, one: QueueFigures, held: dict[tuple[str, str, str], Held], *, is_loaded: bool) -> Row:
    key = (one.namespace_id, one.name, one.type)
    values = {name: getattr(one, name) for name in QueueFigures.__struct_fields__}
    points = context.points(("queue", *key, sampler.BACKLOG)) if is_loaded else []
    return Row(**values, is_loaded=is_loaded, held=held.get(key), points=points)


def _unloaded(queue: TaskQueueId, partitions: int) -> QueueFigures:
    return QueueFigures(
        namespace_id=queue.namespace_id,
        name=queue.name,
        type=queue.type.name.lower(),
        partitions=partitions,
        backlog=0,
        age_s=0.0,
        adds_per_s=0.0,
        dispatches_per_s=0.0,
        polls=0,
        version=split_version(queue.namespace_id)[1],
    )


def _key(queue: TaskQueueId) -> tuple[str, str, str]:
    return (queue.namespace_id, queue.name, queue.type.name.lower())


def _sort_key(one: QueueFigures, order: Order) -> tuple[float, float, str, str]:
    by: dict[Order, tuple[float, float]] = {
        Order.OLDEST: (-one.age_s, -one.backlog),
        Order.BACKLOG: (-one.backlog, -one.age_s),
        Order.ADDED: (-one.adds_per_s, 0.0),
        Order.DISPATCHED: (-one.dispatches_per_s, 0.0),
        Order.NAME: (0.0, 0.0),
    }
    return (*by[order], one.name, one.type)


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
