"""`fairlead admin fairness top`: which fairness keys get how much of a task list, against what is fair."""

from dataclasses import dataclass

import click

from fairlead.cli.admin.cluster import Cluster, Described
from fairlead.cli.admin.command import admin, asks, choose_task_list
from fairlead.cli.admin.tasklist import missing_note, parameters_of
from fairlead.cli.report import Report, Table
from fairlead.core.partitions import TaskList

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
    """Show the fairness keys with the most tasks, over all partitions.

    \b
    loaded      tasks of the key in memory: those to be dispatched next
    dispatched  tasks of the key that went to workers since its partitions were loaded
    share       of all tasks that went to workers
    fair share  its weight among those of the keys shown
    lead        rounds of all keys that its last task stands behind those served now

    \b
    fairlead admin fairness top --tasklist checkout --limit 50
    """
    described = await cluster.describe(task_list, keys_max=KEYS_MAX)
    return top_report(task_list, described, limit=limit)


@dataclass(slots=True)
class _Key:
    weight: float = 1.0
    loaded: int = 0
    dispatched: int = 0
    lead: float = 0.0


def top_report(task_list: TaskList, described: Described, *, limit: int) -> Report:
    """The keys of all partitions together, those with the most tasks first."""
    keys: dict[str, _Key] = {}
    for answer in described.answers:
        for info in answer.keys:
            key = keys.setdefault(info.fairness_key, _Key())
            key.weight = info.weight
            key.loaded += info.tasks_loaded
            key.dispatched += info.tasks_dispatched
            key.lead = max(key.lead, info.lead)
    dispatched = sum(key.dispatched for key in keys.values())
    ordered = sorted(keys.items(), key=lambda item: (-item[1].loaded, -item[1].dispatched, item[0]))[:limit]
    weights = sum(key.weight for _, key in ordered)
    rows = [
        (
            name or "(none)",
            key.weight,
            key.loaded,
            key.dispatched,
            key.dispatched / dispatched if dispatched else None,
            key.weight / weights,
            key.lead,
        )
        for name, key in ordered
    ]
    columns = ("fairness_key", "weight", "loaded", "dispatched", "share", "fair_share", "lead")
    loaded = sum(key.loaded for key in keys.values())
    summary = f"{len(keys):,} keys; {loaded:,} tasks loaded, {dispatched:,} dispatched"
    cut = f"The first {limit} of {len(keys):,}." if len(keys) > limit else ""
    note = " ".join(part for part in (cut, missing_note(described)) if part)
    return Report("fairness", summary, parameters_of(task_list), [Table("keys", "", columns, rows, note=note)])
