"""`fairlead admin fairness top`: each fairness key's share of a task queue, compared with its fair share."""

from dataclasses import dataclass

import click

from fairlead.cli.admin.cluster import Cluster, Described
from fairlead.cli.admin.command import admin, asks, choose_task_queue
from fairlead.cli.admin.tasklist import missing_note, parameters_of
from fairlead.core.partitions import TaskQueueId
from fairlead.matching.messages import KeyInfo
from fairlead.report import DualCell, Report, Table, counted

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
        # After a change, partitions may have different weights: the partition with the most tasks of the key is up to
        # date.
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
