"""`fairlead admin tasklist describe | list | list-partition`: the state of a task queue and its partitions."""

import time
from collections.abc import Sequence

import click

from fairlead.cli.admin.cluster import Cluster, Described
from fairlead.cli.admin.command import admin, asks, choose_task_queue
from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId
from fairlead.matching.partition.priority_rates import RATE_BUCKET_S, RATE_BUCKETS
from fairlead.report import Cell, DualCell, Report, Table, counted


@admin.group(no_args_is_help=True)
def tasklist() -> None:
    """Show task queues, and change their number of partitions."""


@asks(tasklist, "describe", "desc")
@choose_task_queue
async def describe(cluster: Cluster, task_queue: TaskQueueId) -> Report:
    """Show the state of a task queue: its configuration, then each of its partitions, then its workers.

    \b
    A  tasks up to this level are done    backlog  tasks stored, by the durable count
    R  tasks up to this level were read   age      how long the oldest task in memory has waited
    M  the highest level ever written     lease    the range id, which fences the owner's writes

    \b
    fairlead admin tasklist describe --namespace orders --tasklist checkout --tasklisttype activity
    """
    described = await cluster.describe(task_queue)
    return describe_report(cluster.shown(task_queue), described, now_s=time.time())


@asks(tasklist, "list", "ls")
@click.option("--namespace", metavar="NAME", help="Only this namespace, by name or id. [default: all]")
async def list_task_queues(cluster: Cluster, namespace: str | None) -> Report:
    """List the stored task queues, with the number of their partitions that were ever used."""
    found = await cluster.task_queues(namespace)
    rows = [
        (each.name, each.type.name.lower(), cluster.shown(each).namespace_id, len(numbers))
        for each, numbers in found.items()
    ]
    # The name, also if an id was given.
    named = ", ".join(sorted({row[2] for row in rows})) or namespace
    return Report(
        "task queues",
        f"{len(rows):,}, with {counted(sum(row[-1] for row in rows), 'partition')}",
        {"namespace": named if namespace else DualCell("all", None)},
        [Table("task_queues", "", ("task_queue", "type", "namespace", "partitions"), rows)],
    )


@asks(tasklist, "list-partition", "lp")
@choose_task_queue
async def list_partition(cluster: Cluster, task_queue: TaskQueueId) -> Report:
    """List the partitions of a task queue, and the host that owns each according to the ring.

    It also lists partitions with higher numbers that are still being drained.
    """
    described = await cluster.describe(task_queue)
    config, outside = described.config, described.counts.outside
    partitions = [Partition(task_queue, number) for number in (*range(config.read), *outside)]
    drained = f" {len(outside)} more {'is' if len(outside) == 1 else 'are'} drained;" if outside else ""
    rows = [(each.number, cluster.ring.route(each), each.number < config.write, each.name) for each in partitions]
    return Report(
        "partitions",
        f"{counted(config.read, 'partition')}, new tasks go to {config.write};{drained} version {config.version}",
        parameters_of(cluster.shown(task_queue)),
        [Table("partitions", "", ("partition", "host", "takes_tasks", "name"), rows)],
    )


def parameters_of(task_queue: TaskQueueId) -> dict[str, Cell]:
    """Return the parameters by which a report names its task queue."""
    return {
        "task_queue": task_queue.name,
        "type": task_queue.type.name.lower(),
        "namespace": task_queue.namespace_id,
    }


def plain_config(config: PartitionConfig) -> dict[str, int]:
    """Return a configuration for JSON."""
    return {"version": config.version, "read": config.read, "write": config.write}


def describe_report(task_queue: TaskQueueId, described: Described, *, now_s: float) -> Report:
    """Return a report on each partition, and on all of them together."""
    answers, config = described.answers, described.config
    backlog, polls = sum(each.report.tasks for each in answers), sum(each.polls_waiting for each in answers)
    adds_per_s = sum(each.report.adds_per_s for each in answers)
    dispatches_per_s = sum(each.dispatches_per_s for each in answers)
    oldest_s = max(each.report.age_s for each in answers)
    summary = (
        f"{counted(backlog, 'task')} {_wait(backlog)}{f', the oldest for {oldest_s:,.1f} s' if backlog else ''}; "
        f"{counted(polls, 'poll')} {_wait(polls)}; {adds_per_s:,.1f} tasks per second in, {dispatches_per_s:,.1f} out, "
        f"over the last {RATE_BUCKETS * RATE_BUCKET_S:.0f} s"
    )
    configuration = Table(
        "configuration",
        "Configuration in force",
        ("version", "read", "write"),
        [(config.version, config.read, config.write)],
        plain=plain_config(config),
    )
    tables = [configuration, _counts_table(described), _partitions_table(described), _levels_table(described)]
    return Report(
        "task queue",
        summary,
        parameters_of(task_queue),
        [*tables, _pollers_table(described, now_s)],
    )


def _counts_table(described: Described) -> Table:
    """Return the partition counts of both sources, and whether they are in force."""
    counts, config = described.counts, described.config
    database = (None, None) if counts.database is None else (counts.database.read, counts.database.write)
    rows: list[Sequence[Cell]] = [
        ("database", *database, not counts.is_from_settings),
        ("settings", counts.settings.read, counts.settings.write, counts.is_from_settings),
    ]
    target = counts.settings if counts.is_from_settings else counts.database
    notes = []
    if target is not None and target != config.counts:
        notes.append("Partitions that are removed are drained first: see their backlog below.")
    if counts.outside:
        named = ", ".join(map(str, counts.outside))
        notes.append(f"Above the counts and being drained: {counted(len(counts.outside), 'partition')} ({named}).")
    return Table("counts", "Source of the counts", ("source", "read", "write", "is_used"), rows, note=" ".join(notes))


def missing_note(described: Described) -> str:
    """Return which partitions did not respond, and why."""
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


def _level(level: tuple[int, int]) -> DualCell:
    return DualCell(f"<{level[0]}, {level[1]}>", list(level))


def _wait(number: int) -> str:
    return "waits" if number == 1 else "wait"
