"""`fairlead admin fairness`: each fairness key's share of a task queue, and its running activities."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fairlead.cli.admin.cluster import Cluster, Described
from fairlead.cli.admin.command import admin, asks, choose_task_queue, names_task_queue
from fairlead.cli.admin.tasklist import missing_note, parameters_of
from fairlead.core.namespaces import QualifiedNamespaceId
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.messages import KeyInfo
from fairlead.report import DualCell, Report, Table, counted

# Imported only when the command runs, so that `--help` is fast.
if TYPE_CHECKING:
    from fairlead.history.messages.slots import RunningResponse

KEYS_MAX = 1_000


@admin.group(no_args_is_help=True)
def fairness() -> None:
    """Show how tasks are divided among fairness keys."""


@asks(fairness, "top")
@choose_task_queue
@click.option(
    "--limit", type=click.IntRange(1, KEYS_MAX), default=20, show_default=True, help="Maximum number of keys to show."
)
async def top(cluster: Cluster, task_queue: TaskQueueId, limit: int) -> Report:
    """Show the fairness keys with the most tasks waiting, over all partitions.

    \b
    weight      the weight of the key's last task
    waiting     tasks of the key in the backlog; an estimate if not all of it is in memory
    dispatched  tasks of the key that were dispatched since the partitions were loaded
    share       its share of all tasks dispatched since then
    fair share  its share of the weights of all keys with tasks waiting now

    \b
    fairlead admin fairness top --tasklist checkout --limit 50
    """
    described = await cluster.describe(task_queue, keys_max=KEYS_MAX)
    return top_report(cluster.shown(task_queue), described, limit=limit)


@asks(fairness, "running")
@names_task_queue
@click.option(
    "--limit", type=click.IntRange(1, KEYS_MAX), default=20, show_default=True, help="Maximum number of keys to show."
)
async def running(cluster: Cluster, *, namespace: str, name: str, limit: int) -> Report:
    """Show the running activities of each fairness key, if the task queue has a limit on running activities.

    Activities that started before the task queue had a limit are not counted.

    \b
    fairlead admin fairness running --tasklist checkout
    """
    from fairlead.history.messages.slots import RunningRequest  # noqa: PLC0415
    from fairlead.history.service import RUNNING  # noqa: PLC0415

    given = QualifiedNamespaceId.parse(namespace).namespace_id
    namespace_id = await cluster.namespace_id(given, name, list(TaskType))
    task_queue = TaskQueueId(namespace_id, name, TaskType.ACTIVITY)
    answer = await cluster.ask(RUNNING, RunningRequest(namespace_id, name))
    if not answer.running:
        # Without limits, check the name: a misspelt task queue has no limits either.
        await cluster.check_named(task_queue)
    return running_report(cluster.shown(task_queue), answer, limit=limit)


def running_report(task_queue: TaskQueueId, answer: "RunningResponse", *, limit: int) -> Report:
    """The keys with the most running activities; `limit` applies only to the table."""
    ordered = sorted(answer.running.items(), key=lambda item: (-item[1], item[0]))
    rows = [(key or DualCell("(none)", ""), count, answer.key_max or None) for key, count in ordered[:limit]]
    total = sum(answer.running.values())
    of_queue = f" of {answer.queue_max:,}" if answer.queue_max else ""
    summary = (
        f"{total:,}{of_queue} running, of {counted(len(ordered), 'key')}"
        if answer.key_max or answer.queue_max or total
        else "the task queue has no limit on running activities: none is counted"
    )
    note = f"The first {limit:,} of {counted(len(ordered), 'key')}." if len(ordered) > limit else ""
    columns = ("key", "running", "limit")
    return Report("running", summary, parameters_of(task_queue), [Table("keys", "", columns, rows, note=note)])


@dataclass(slots=True)
class _Key:
    weight: float = 1.0
    waiting: int = 0
    loaded: int = 0
    dispatched: int = 0
    # Waiting and dispatched tasks of the key in the partition that the weight comes from.
    weighed_by: tuple[int, int] = (-1, -1)

    def include(self, info: KeyInfo) -> None:
        """Add one partition's counts of the key."""
        self.waiting += info.tasks_waiting
        self.loaded += info.tasks_loaded
        self.dispatched += info.tasks_dispatched
        # After a change, partitions may have different weights: take that of the partition with the most tasks of the
        # key.
        weighed_by = (info.tasks_waiting, info.tasks_dispatched)
        if weighed_by > self.weighed_by:
            self.weight, self.weighed_by = info.weight, weighed_by


def top_report(task_queue: TaskQueueId, described: Described, *, limit: int) -> Report:
    """Sum the keys of all partitions, sorted by waiting tasks; `limit` applies only to the table."""
    keys: dict[str, _Key] = {}
    for answer in described.answers:
        for info in answer.keys:
            keys.setdefault(info.fairness_key, _Key()).include(info)
    waiting = sum(key.waiting for key in keys.values())
    loaded = sum(key.loaded for key in keys.values())
    dispatched = sum(key.dispatched for key in keys.values())
    weights = sum(key.weight for key in keys.values() if key.waiting)
    ordered = sorted(keys.items(), key=lambda item: (-item[1].waiting, -item[1].dispatched, item[0]))
    rows = [
        (
            name or DualCell("(none)", ""),
            *(key.weight, key.waiting, key.dispatched),
            key.dispatched / dispatched if dispatched else None,
            key.weight / weights if key.waiting else None,
        )
        for name, key in ordered[:limit]
    ]
    summary = (
        f"{counted(len(keys), 'key')}; {counted(waiting, 'task')} waiting, {loaded:,} of them loaded; "
        f"{dispatched:,} dispatched since the partitions were loaded"
    )
    cut = f"The first {limit:,} of {counted(len(keys), 'key')}." if len(keys) > limit else ""
    note = " ".join(part for part in (cut, missing_note(described)) if part)
    columns = ("key", "weight", "waiting", "dispatched", "share", "fair_share")
    return Report("fairness", summary, parameters_of(task_queue), [Table("keys", "", columns, rows, note=note)])
