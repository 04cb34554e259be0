"""`fairlead admin tasklist update-partition`: changes the number of partitions manually."""

from shlex import quote

import click

from fairlead.cli.admin.cluster import Cluster, unknown
from fairlead.cli.admin.command import DEFAULT_NAMESPACE, TYPES, asks, names_task_queue
from fairlead.cli.admin.tasklist import plain_config, tasklist
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import PARTITIONS_MAX, PartitionConfig, PartitionCounts, TaskQueueId, TaskType
from fairlead.matching.messages import UpdateResponse
from fairlead.report import Report, Table

# Number of partitions above which a warning is printed: more are allowed, but usually a typing error.
PARTITIONS_USUAL_MAX = 1_000


class NoPollers(FixRequest):
    """No worker polls the task queue to change: its name is probably misspelled."""


@asks(tasklist, "update-partition", "up")
@names_task_queue
@click.option(
    "--tasklisttype",
    "--tlt",
    "type_name",
    type=click.Choice(list(TYPES), case_sensitive=False),
    help="Type of the tasks; decision means workflow. [default: workflow and activity, if in use]",
)
@click.option(
    "--num_read_partitions",
    "--nrp",
    "read",
    type=click.IntRange(1, PARTITIONS_MAX),
    help="Partitions that are polled. [default: unchanged, but at least the write partitions]",
)
@click.option(
    "--num_write_partitions",
    "--nwp",
    "write",
    type=click.IntRange(1, PARTITIONS_MAX),
    help="Partitions that get new tasks. [default: unchanged, but at most the read partitions]",
)
@click.option(
    "--force",
    "-f",
    is_flag=True,
    help="Skip the checks for pollers and stored tasks: removed partitions are drained afterwards.",
)
async def update_partition(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    type_name: str | None,
    read: int | None,
    write: int | None,
    force: bool,
) -> Report:
    """Change the number of partitions of a task queue manually.

    To add partitions takes one step. To remove partitions takes two: lower the write partitions; when the removed ones
    are drained, lower the read partitions. If you lower them earlier, the command fails, changes nothing, and names
    what to wait for. The adaptive scaler must be off for the task queue, and a worker must poll it.

    If the counts come from the settings (matching.enableGetNumberOfPartitionsFromCache is false), the command only
    saves the numbers in the database; they take effect when that setting becomes true.

    \b
    fairlead admin tasklist up --tasklist checkout --tasklisttype activity --nrp 8 --nwp 8
    fairlead admin tasklist up --tasklist checkout --tasklisttype activity --nwp 2
    fairlead admin tasklist up --tasklist checkout --tasklisttype activity --nrp 2
    """
    if read is None and write is None:
        raise click.UsageError("nothing to change: give --num_read_partitions, --num_write_partitions or both")
    types = [TYPES[type_name]] if type_name else [TaskType.WORKFLOW, TaskType.ACTIVITY]
    # Check this also with --force: a call for a missing task queue would create it.
    namespace_id = await cluster.namespace_id(namespace, name, types)
    task_queues = await _in_use(cluster, [TaskQueueId(namespace_id, name, task_type) for task_type in types])
    _warn_of_many(max(read or 1, write or 1))
    # Check all task queues before the first change.
    currents = [await _current(cluster, task_queue, force=force) for task_queue in task_queues]
    done: list[tuple[TaskQueueId, UpdateResponse]] = []
    for task_queue, current in zip(task_queues, currents, strict=True):
        wanted_read = max(current.read, write or 1) if read is None else read
        wanted_write = min(current.write, wanted_read) if write is None else write
        answer = await cluster.update(task_queue, read=wanted_read, write=wanted_write, force=force)
        done.append((cluster.as_given(task_queue), answer))
    return update_report(cluster.shown(task_queues[0]).namespace_id, name, done)


async def _in_use(cluster: Cluster, task_queues: list[TaskQueueId]) -> list[TaskQueueId]:
    """Return the given task queues that are stored; raise an error without any."""
    known = await cluster.task_queues(task_queues[0].namespace_id)
    in_use = [task_queue for task_queue in task_queues if task_queue in known]
    if not in_use:
        raise unknown(cluster.shown(task_queues[0]))
    return in_use


def _warn_of_many(partitions: int) -> None:
    if partitions > PARTITIONS_USUAL_MAX:
        click.echo(
            f"fairlead: warning: {partitions:,} partitions are many, and each is polled and kept in memory: "
            f"more than {PARTITIONS_USUAL_MAX:,} are hardly ever useful",
            err=True,
        )


async def _current(cluster: Cluster, task_queue: TaskQueueId, *, force: bool) -> PartitionCounts:
    """Return the counts in the database, or the counts in force if the database has none."""
    described = await cluster.describe(task_queue, must_exist=False)
    if not force and not any(answer.pollers for answer in described.answers):
        raise NoPollers(
            f"no worker has polled {task_queue.name!r} for {task_queue.type.name.lower()} tasks recently, nothing was "
            "changed: check the name, the namespace and --tasklisttype, or use --force"
        )
    return described.counts.database or described.config.counts


def update_report(namespace: str, name: str, done: list[tuple[TaskQueueId, UpdateResponse]]) -> Report:
    """Return the changes of each type."""
    changed = [
        f"{task_queue.type.name.lower()}: read {answer.before.read} -> {answer.after.read}, "
        f"write {answer.before.write} -> {answer.after.write}"
        for task_queue, answer in done
    ]
    columns = ("type", "read_before", "read", "write_before", "write", "version_before", "version")
    rows = [
        (
            task_queue.type.name.lower(),
            *(answer.before.read, answer.after.read),
            *(answer.before.write, answer.after.write),
            *(answer.before.version, answer.after.version),
        )
        for task_queue, answer in done
    ]
    plain = [
        {
            "type": task_queue.type.name.lower(),
            "before": plain_config(answer.before),
            "after": plain_config(answer.after),
        }
        for task_queue, answer in done
    ]
    unchanged = all(answer.before == answer.after and not answer.is_planned for _, answer in done)
    summary = "Nothing to change" if unchanged else "Successfully updated"
    note = "\n".join(_second_phase(task_queue, answer.after) for task_queue, answer in done if _is_draining(answer))
    if any(answer.is_planned for _, answer in done):
        summary = "Saved in the database"
        note = (
            "The counts come from the settings now, so nothing changes yet. To use the saved counts:\n"
            "  matching.enableGetNumberOfPartitionsFromCache: [{value: true}]"
        )
    return Report(
        "partitions",
        f"{summary} ({'; '.join(changed)})",
        {"task_queue": name, "namespace": namespace},
        [Table("updated", "", columns, rows, note=note, plain=plain)],
    )


def _is_draining(answer: UpdateResponse) -> bool:
    return not answer.is_planned and answer.after.write < min(answer.before.write, answer.after.read)


def _second_phase(task_queue: TaskQueueId, config: PartitionConfig) -> str:
    """Return the commands of the second step, to run after write was lowered."""
    named = f"--tasklist {quote(task_queue.name)} --tasklisttype {task_queue.type.name.lower()}"
    if task_queue.namespace_id != DEFAULT_NAMESPACE:
        named += f" --namespace {quote(task_queue.namespace_id)}"
    first, last = config.write, config.read - 1
    going = f"Partition {first} is" if first == last else f"Partitions {first} to {last} are"
    return (
        f"{going} drained now. Wait until the backlog there is 0:\n"
        f"  fairlead admin tasklist describe {named}\n"
        "then lower read as well:\n"
        f"  fairlead admin tasklist update-partition {named} --num_read_partitions {config.write}"
    )
