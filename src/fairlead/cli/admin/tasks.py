"""`fairlead admin tasklist tasks | purge`: the waiting tasks of a task queue, and their removal."""

import time

import click

from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import asks, choose_task_queue
from fairlead.cli.admin.tasklist import parameters_of, tasklist
from fairlead.core.partitions import Partition, TaskQueueId
from fairlead.matching.messages.inspection import PEEKED_MAX
from fairlead.report import Cell, DualCell, Report, Table, counted

# Number of requests for one partition that has more tasks than one request can remove.
PURGES_MAX = 1_000


@asks(tasklist, "tasks")
@choose_task_queue
@click.option("--key", metavar="KEY", help="Only tasks of this fairness key.")
@click.option(
    "--limit", type=click.IntRange(1, PEEKED_MAX), default=20, show_default=True, help="Tasks shown per partition."
)
async def tasks(cluster: Cluster, task_queue: TaskQueueId, key: str | None, limit: int) -> Report:
    """List the first waiting tasks of each partition, in the order in which they are dispatched.

    \b
    fairlead admin tasklist tasks --tasklist checkout --tasklisttype activity --key tenant-7
    """
    # Imported only when the command runs, so that `--help` is fast.
    from fairlead.history.messages.matching_tasks import decode_matched  # noqa: PLC0415

    described = await cluster.describe(task_queue)
    now_s = time.time()
    rows: list[tuple[Cell, ...]] = []
    stored = 0
    for answer in described.answers:
        if not answer.report.tasks:
            continue
        found = await cluster.peek(Partition(task_queue, answer.partition), limit=PEEKED_MAX if key else limit)
        stored += found.stored
        shown = [one for one in enumerate(found.tasks, 1) if key in {None, one[1].fairness_key}][:limit]
        for position, task in shown:
            owner = decode_matched(task.payload, "", b"")
            rows.append(
                (
                    answer.partition,
                    position,
                    task.priority,
                    task.fairness_key or DualCell("(none)", ""),
                    task.weight,
                    task.pass_number,
                    max(0.0, now_s - task.created_s) if task.created_s else None,
                    owner[1].workflow_id if owner else None,
                )
            )
    columns = ("partition", "position", "priority", "key", "weight", "pass", "age_s", "workflow_id")
    summary = f"{counted(stored, 'task')} in the backlog, {counted(len(rows), 'task')} shown"
    return Report("tasks", summary, parameters_of(cluster.shown(task_queue)), [Table("tasks", "", columns, rows)])


@asks(tasklist, "purge")
@choose_task_queue
@click.option("--yes", is_flag=True, help="Remove the tasks; without it, the command only counts them.")
async def purge(cluster: Cluster, task_queue: TaskQueueId, *, yes: bool) -> Report:
    """Remove the waiting tasks of clients of task queues, for good.

    Tasks of workflows stay, because their workflows would wait for ever: cancel or terminate the workflows instead.
    A task that is being forwarded to another partition stays: repeat the command to remove it.

    \b
    fairlead admin tasklist purge --tasklist checkout --tasklisttype activity --yes
    """
    described = await cluster.describe(task_queue)
    removed = kept = 0
    waiting = sum(answer.report.tasks for answer in described.answers)
    for answer in described.answers if yes else ():
        purged = await cluster.purge(Partition(task_queue, answer.partition))
        removed += purged.removed
        for _ in range(PURGES_MAX):
            if purged.is_done:
                break
            purged = await cluster.purge(Partition(task_queue, answer.partition))
            removed += purged.removed
        kept += purged.kept
    summary = (
        f"{counted(removed, 'task')} removed, {counted(kept, 'task')} of workflows kept"
        if yes
        else f"{counted(waiting, 'task')} in the backlog; give --yes to remove those of clients"
    )
    table = Table("purged", "", ("removed", "kept"), [(removed, kept)], plain={"removed": removed, "kept": kept})
    return Report("purge", summary, parameters_of(cluster.shown(task_queue)), [table])
