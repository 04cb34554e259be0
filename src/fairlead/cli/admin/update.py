"""`fairlead admin tasklist update-partition`: the number of partitions, changed by hand."""

import click

from fairlead.cli.admin.cluster import Cluster, unknown
from fairlead.cli.admin.command import TYPES, asks, names_task_list
from fairlead.cli.admin.tasklist import tasklist
from fairlead.cli.report import Report, Table
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import PARTITIONS_MAX, PartitionConfig, TaskList, TaskType
from fairlead.matching.messages import UpdateAnswer


class NoPollers(FixRequest):
    """Nobody works on the task list that is to be changed: its name is probably another."""


@asks(tasklist, "update-partition", "up")
@names_task_list
@click.option(
    "--tasklisttype",
    "--tlt",
    "type_name",
    type=click.Choice(list(TYPES), case_sensitive=False),
    help="The type of its tasks; decision means workflow. [default: workflow and activity, those in use]",
)
@click.option(
    "--num_read_partitions",
    "--nrp",
    "read",
    type=click.IntRange(1, PARTITIONS_MAX),
    help="Partitions that are polled. [default: as now, or as many as write]",
)
@click.option(
    "--num_write_partitions",
    "--nwp",
    "write",
    type=click.IntRange(1, PARTITIONS_MAX),
    help="Partitions that take new tasks, of those that are polled. [default: as now, or as many as read]",
)
@click.option("--force", "-f", is_flag=True, help="Without the checks; tasks may wait where nobody looks.")
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
    """Change the number of partitions of a task list by hand.

    More partitions take one step. Fewer take two: lower write, wait until the partitions outside it are drained, then
    lower read; what comes too early is refused and says what to wait for. The adaptive scaler must be off for the
    task list, and somebody must poll it.

    \b
    fairlead admin tasklist up --tasklist checkout --tasklisttype activity --nrp 8 --nwp 8
    fairlead admin tasklist up --tasklist checkout --tasklisttype activity --nwp 2
    fairlead admin tasklist up --tasklist checkout --tasklisttype activity --nrp 2
    """
    if read is None and write is None:
        raise click.UsageError("nothing to change: give --num_read_partitions, --num_write_partitions or both")
    types = [TYPES[type_name]] if type_name else [TaskType.WORKFLOW, TaskType.ACTIVITY]
    task_lists = [TaskList(namespace, name, task_type) for task_type in types]
    if not force:
        task_lists = await _in_use(cluster, task_lists)
    # All of them before any change.
    currents = [await _current(cluster, task_list, force=force) for task_list in task_lists]
    done: list[tuple[TaskList, UpdateAnswer]] = []
    for task_list, current in zip(task_lists, currents, strict=True):
        wanted_read = max(current.read, write or 1) if read is None else read
        wanted_write = min(current.write, wanted_read) if write is None else write
        answer = await cluster.update(task_list, read=wanted_read, write=wanted_write, force=force)
        done.append((task_list, answer))
    return update_report(namespace, name, done)


async def _in_use(cluster: Cluster, task_lists: list[TaskList]) -> list[TaskList]:
    """Those of the types that the store knows: where two were meant and one is used, that one was meant."""
    known = await cluster.task_lists(task_lists[0].namespace_id)
    in_use = [task_list for task_list in task_lists if task_list in known]
    if not in_use:
        raise unknown(task_lists[0])
    return in_use


async def _current(cluster: Cluster, task_list: TaskList, *, force: bool) -> PartitionConfig:
    described = await cluster.describe(task_list, must_exist=False)
    if not force and not any(answer.pollers for answer in described.answers):
        raise NoPollers(
            f"no worker has polled {task_list.name!r} for {task_list.type.name.lower()} tasks of late, nothing was "
            "changed: check the name, the namespace and --tasklisttype, or use --force"
        )
    return described.config


def update_report(namespace: str, name: str, done: list[tuple[TaskList, UpdateAnswer]]) -> Report:
    """What was changed, type by type."""
    changed = [
        f"{task_list.type.name.lower()}: read {answer.before.read} -> {answer.after.read}, "
        f"write {answer.before.write} -> {answer.after.write}"
        for task_list, answer in done
    ]
    columns = ("type", "read_before", "read", "write_before", "write", "version_before", "version")
    rows = [
        (
            task_list.type.name.lower(),
            *(answer.before.read, answer.after.read),
            *(answer.before.write, answer.after.write),
            *(answer.before.version, answer.after.version),
        )
        for task_list, answer in done
    ]
    unchanged = all(answer.before == answer.after for _, answer in done)
    summary = "Nothing to change" if unchanged else "Successfully updated"
    drains = any(answer.after.write < answer.after.read for _, answer in done)
    note = "The partitions outside write are drained now; then lower read. Watch: fairlead admin tasklist describe"
    table = Table("updated", "", columns, rows, note=note if drains else "")
    return Report(
        "partitions", f"{summary} ({'; '.join(changed)})", {"task list": name, "namespace": namespace}, [table]
    )
