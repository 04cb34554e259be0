"""`fairlead admin tasklist describe | list | list-partition`: what a task list and its partitions are doing."""

import time
from collections.abc import Sequence

import click

from fairlead.cli.admin.cluster import Cluster, Described
from fairlead.cli.admin.command import admin, asks, choose_task_list
from fairlead.cli.report import Cell, Report, Table, Told, counted
from fairlead.core.partitions import Partition, PartitionConfig, TaskList
from fairlead.matching.priority_rates import RATE_BUCKET_S, RATE_BUCKETS


@admin.group(no_args_is_help=True)
def tasklist() -> None:
    """Look at task lists, and change their number of partitions."""


@asks(tasklist, "describe", "desc")
@choose_task_list
async def describe(cluster: Cluster, task_list: TaskList) -> Report:
    """Show how a task list is doing: its configuration, then each of its partitions, then its workers.

    \b
    A  tasks up to here are done          backlog  tasks stored, by the durable count
    R  tasks up to here were read         age      how long the oldest task in memory has waited
    M  the highest level ever written     lease    the range id, which fences the owner's writes

    \b
    fairlead admin tasklist describe --namespace orders --tasklist checkout --tasklisttype activity
    """
    return describe_report(task_list, await cluster.describe(task_list), now_s=time.time())


@asks(tasklist, "list", "ls")
@click.option("--namespace", metavar="NAME", help="Only the task lists of this namespace. [default: all]")
async def list_task_lists(cluster: Cluster, namespace: str | None) -> Report:
    """List the task lists that the store knows, with how many of their partitions were ever used."""
    found = await cluster.task_lists(namespace)
    rows = [(each.name, each.type.name.lower(), each.namespace_id, len(numbers)) for each, numbers in found.items()]
    return Report(
        "task lists",
        f"{len(rows):,}, with {counted(sum(row[-1] for row in rows), 'partition')}",
        {"namespace": namespace or Told("all", None)},
        [Table("task_lists", "", ("task_list", "type", "namespace", "partitions"), rows)],
    )


@asks(tasklist, "list-partition", "lp")
@choose_task_list
async def list_partition(cluster: Cluster, task_list: TaskList) -> Report:
    """List the partitions of a task list, and which host owns each, as the ring says."""
    config = (await cluster.describe(task_list)).config
    partitions = [Partition(task_list, number) for number in range(config.read)]
    rows = [(each.number, cluster.ring.route(each), each.number < config.write, each.name) for each in partitions]
    return Report(
        "partitions",
        f"{counted(config.read, 'partition')}, new tasks go to {config.write}; version {config.version}",
        parameters_of(task_list),
        [Table("partitions", "", ("partition", "host", "takes_tasks", "name"), rows)],
    )


def parameters_of(task_list: TaskList) -> dict[str, Cell]:
    """The task list, as a report names what it is about."""
    return {
        "task_list": task_list.name,
        "type": task_list.type.name.lower(),
        "namespace": task_list.namespace_id,
    }


def plain_config(config: PartitionConfig) -> dict[str, int]:
    """A configuration as programs get it."""
    return {"version": config.version, "read": config.read, "write": config.write}


def describe_report(task_list: TaskList, described: Described, *, now_s: float) -> Report:
    """What the partitions say of themselves, and all of them together."""
    answers, config = described.answers, described.config
    backlog, polls = sum(each.report.tasks for each in answers), sum(each.polls_waiting for each in answers)
    adds_per_s = sum(each.report.adds_per_s for each in answers)
    dispatches_per_s = sum(each.dispatches_per_s for each in answers)
    oldest_s = max(each.report.age_s for each in answers)
    summary = (
        f"{counted(backlog, 'task')} {_wait(backlog)}{f', the oldest for {oldest_s:,.1f} s' if backlog else ''}; "
        f"{counted(polls, 'poll')} {_wait(polls)}; {adds_per_s:,.1f} tasks a second in, {dispatches_per_s:,.1f} out, "
        f"over the last {RATE_BUCKETS * RATE_BUCKET_S:.0f} s"
    )
    configuration = Table(
        "configuration",
        "Configuration",
        ("version", "read", "write"),
        [(config.version, config.read, config.write)],
        plain=plain_config(config),
    )
    return Report(
        "task list",
        summary,
        parameters_of(task_list),
        [configuration, _partitions_table(described), _levels_table(described), _pollers_table(described, now_s)],
    )


def missing_note(described: Described) -> str:
    """Which partitions said nothing, and why."""
    return " ".join(f"Partition {number} did not answer: {why}." for number, why in described.missing.items())


def _partitions_table(described: Described) -> Table:
    rows: dict[int, Sequence[Cell]] = {number: (number, *[None] * 8) for number in described.missing}
    for answer in described.answers:
        report = answer.report
        rows[answer.partition] = (
            answer.partition,
            answer.host,
            *(report.tasks, report.age_s, report.adds_per_s, answer.dispatches_per_s),
            *(answer.polls_waiting, answer.range_id, answer.config.version),
        )
    columns = ("partition", "host", "backlog", "age_s", "adds_per_s", "dispatches_per_s", "polls", "lease")
    return Table(
        "partitions",
        "Partitions",
        (*columns, "version"),
        [rows[number] for number in sorted(rows)],
        note=missing_note(described),
    )


def _levels_table(described: Described) -> Table:
    rows = [
        (answer.partition, each.priority, _level(each.ack_level), _level(each.read_level), _level(each.max_level))
        for answer in described.answers
        for each in answer.priorities
    ]
    return Table(
        "levels",
        "Levels <pass, id>",
        ("partition", "priority", "ack_level", "read_level", "max_level"),
        rows,
        headings=("partition", "priority", "A", "R", "M"),
    )


def _pollers_table(described: Described, now_s: float) -> Table:
    seen: dict[str, float] = {}
    partitions: dict[str, int] = {}
    for answer in described.answers:
        for poller in answer.pollers:
            seen[poller.identity] = max(poller.seen_s, seen.get(poller.identity, 0.0))
            partitions[poller.identity] = partitions.get(poller.identity, 0) + 1
    rows = [
        (identity, max(0.0, now_s - seen_s), partitions[identity])
        for identity, seen_s in sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    ]
    note = "" if rows else "No worker has polled in the last five minutes."
    return Table("pollers", "Workers", ("identity", "polled_s_ago", "partitions"), rows, note=note)


def _level(level: tuple[int, int]) -> Told:
    return Told(f"<{level[0]}, {level[1]}>", list(level))


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"
