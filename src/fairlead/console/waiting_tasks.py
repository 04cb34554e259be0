"""The first waiting tasks of a task queue over its partitions, in the order in which they go."""

import asyncio
from typing import Final

from msgspec import Struct

from fairlead.console.context import Context
from fairlead.console.problems import Problem, problem_of
from fairlead.console.queues import trusted_client
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition, TaskQueueId
from fairlead.history.messages.matching_tasks import decode_matched
from fairlead.matching.messages.inspection import WaitingTask
from fairlead.matching.operator_client import TaskQueueDescription

# Waiting tasks that are shown, over all partitions, and partitions that are asked for them.
PEEKED_MAX: Final = 50
PARTITIONS_MAX: Final = 16


class WaitingRow(Struct, frozen=True, kw_only=True):
    """A waiting task; `position` is that in its partition.

    `workflow_id` is empty for a task of a client of task queues.
    """

    partition: int
    position: int
    priority: int
    pass_number: int
    key: str
    weight: float
    added_at_s: float
    workflow_id: str = ""
    run_id: str = ""
    bytes: int = 0


async def first_tasks(
    context: Context, queue: TaskQueueId, described: TaskQueueDescription
) -> tuple[list[WaitingRow], Problem | None]:
    """The first waiting tasks, and the problem if some partitions with a backlog did not list theirs.

    Each partition dispatches its tasks in its own order. Of tasks with the same priority and position, the oldest is
    first: passes of different partitions can't be compared.
    """
    client = trusted_client(context)
    holding = [number for number, one in sorted(described.partitions.items()) if one.report.tasks][:PARTITIONS_MAX]
    problems: list[Problem] = []

    async def peek(number: int) -> list[WaitingRow]:
        try:
            peeked = await client.peek(Partition(queue, number), limit=PEEKED_MAX)
        except FairleadError as failure:
            problems.append(problem_of(failure))
            return []
        return [_row(number, position, task) for position, task in enumerate(peeked.tasks, 1)]

    found = [row for rows in await asyncio.gather(*map(peek, holding)) for row in rows]
    found.sort(key=lambda row: (row.priority, row.position, row.added_at_s, row.partition))
    return found[:PEEKED_MAX], problems[0] if problems else None


def _row(number: int, position: int, task: WaitingTask) -> WaitingRow:
    owner = decode_matched(task.payload, "", b"")
    return WaitingRow(
        partition=number,
        position=position,
        priority=task.priority,
        pass_number=task.pass_number,
        key=task.fairness_key,
        weight=task.weight,
        added_at_s=task.created_s,
        workflow_id="" if owner is None else owner[1].workflow_id,
        run_id="" if owner is None else owner[1].task.run_id,
        bytes=len(task.payload),
    )
