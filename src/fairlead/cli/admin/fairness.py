"""`fairlead admin fairness top`: which fairness keys get how much of a task list, against what is fair."""

from dataclasses import dataclass

import click

from fairlead.cli.admin.cluster import Cluster, Described
from fairlead.cli.admin.command import admin, asks, choose_task_list
from fairlead.cli.admin.tasklist import missing_note, parameters_of
from fairlead.cli.report import Report, Table, Told, counted
from fairlead.core.partitions import TaskList
from fairlead.matching.messages import KeyInfo

KEYS_MAX = 1_000


@admin.group(no_args_is_help=True)
def fairness() -> None:
    """Look at how tasks are shared out among fairness keys."""


@asks(fairness, "top")
@choose_task_list
@click.option(
    "--limit", type=click.IntRange(1, KEYS_MAX), default=20, show_default=True, help="How many keys to show at most."
)
async def top(cluster: Cluster, task_list: TaskList, limit: int) -> Report:
    """Show the fairness keys with the most tasks waiting, over all partitions.

    \b
    weight      the last that a task of the key came with
    waiting     tasks of the key in the backlog, an estimate where not all of it is in memory
    dispatched  tasks of the key that went to workers since the partitions were loaded
    share       its part of all tasks that went to workers since then
    fair share  its weight among those of the keys that have tasks waiting now

    \b
    fairlead admin fairness top --tasklist checkout --limit 50
    """
    described = await cluster.describe(task_list, keys_max=KEYS_MAX)
    return top_report(task_list, described, limit=limit)


@dataclass(slots=True)
class _Key:
    weight: float = 1.0
    waiting: int = 0
    loaded: int = 0
    dispatched: int = 0
    # What the partition has to do with the key that the weight is of.
    weighed_by: tuple[int, int] = (-1, -1)

    def include(self, info: KeyInfo) -> None:
        """Count what one partition says of the key."""
        self.waiting += info.tasks_waiting
        self.loaded += info.tasks_loaded
        self.dispatched += info.tasks_dispatched
        # Partitions may know different weights when it was changed: the one that has most of the key is up to date.
        weighed_by = (info.tasks_waiting, info.tasks_dispatched)
        if weighed_by > self.weighed_by:
            self.weight, self.weighed_by = info.weight, weighed_by


def top_report(task_list: TaskList, described: Described, *, limit: int) -> Report:
    """The keys of all partitions together, those with the most tasks waiting first; `limit` only cuts the table."""
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
            name or Told("(none)", ""),
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
    return Report("fairness", summary, parameters_of(task_list), [Table("keys", "", columns, rows, note=note)])
