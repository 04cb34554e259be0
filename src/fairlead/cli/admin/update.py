"""`fairlead admin tasklist update-partition`: the number of partitions, changed by hand."""

from shlex import quote

import click

from fairlead.cli.admin.cluster import Cluster, unknown
from fairlead.cli.admin.command import DEFAULT_NAMESPACE, TYPES, asks, names_task_list
from fairlead.cli.admin.tasklist import plain_config, tasklist
from fairlead.cli.report import Report, Table
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import PARTITIONS_MAX, PartitionConfig, TaskList, TaskType
from fairlead.matching.messages import UpdateAnswer

# More are allowed, and are mostly a slip of the hand.
PARTITIONS_USUAL_MAX = 1_000


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
@click.option(
    "--force",
    "-f",
    is_flag=True,
    help="Without looking for pollers and for tasks that are stored: some may wait where nobody looks.",
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
    # By force, too: to ask for a task list that there is not would make one.
    task_lists = await _in_use(cluster, [TaskList(namespace, name, task_type) for task_type in types])
    _warn_of_many(max(read or 1, write or 1))
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


def _warn_of_many(partitions: int) -> None:
    if partitions > PARTITIONS_USUAL_MAX:
        click.echo(
            f"fairlead: warning: {partitions:,} partitions are a lot, each is polled and kept in memory: "
            f"more than {PARTITIONS_USUAL_MAX:,} are hardly ever of use",
            err=True,
        )


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
    plain = [
        {
            "type": task_list.type.name.lower(),
            "before": plain_config(answer.before),
            "after": plain_config(answer.after),
        }
        for task_list, answer in done
    ]
    unchanged = all(answer.before == answer.after for _, answer in done)
    summary = "Nothing to change" if unchanged else "Successfully updated"
    note = "\n".join(_second_phase(task_list, answer.after) for task_list, answer in done if _is_draining(answer))
    return Report(
        "partitions",
        f"{summary} ({'; '.join(changed)})",
        {"task_list": name, "namespace": namespace},
        [Table("updated", "", columns, rows, note=note, plain=plain)],
    )


def _is_draining(answer: UpdateAnswer) -> bool:
    return answer.after.write < min(answer.before.write, answer.after.read)


def _second_phase(task_list: TaskList, config: PartitionConfig) -> str:
    """What is left to do after write was lowered."""
    named = f"--tasklist {quote(task_list.name)} --tasklisttype {task_list.type.name.lower()}"
    if task_list.namespace_id != DEFAULT_NAMESPACE:
        named += f" --namespace {quote(task_list.namespace_id)}"
    first, last = config.write, config.read - 1
    going = f"Partition {first} is" if first == last else f"Partitions {first} to {last} are"
    return (
        f"{going} drained now. Wait until the backlog there is 0:\n"
        f"  fairlead admin tasklist describe {named}\n"
        "then lower read as well:\n"
        f"  fairlead admin tasklist update-partition {named} --num_read_partitions {config.write}"
    )
