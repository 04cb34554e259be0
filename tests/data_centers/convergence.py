"""Check that clusters have converged: by their public API, and by their journals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from google.protobuf.json_format import MessageToDict
from pyspark.sql import SparkSession
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowExecutionStatus

from fairlead.history.messages.stream import TreeRequest
from fairlead.history.service import TREE
from tests.data_centers.processes import NAMESPACE, ClusterProcess, World, until
from tests.replication.reconciled import assert_reconciled


class Run(NamedTuple):
    """The key of a run."""

    workflow_id: str
    run_id: str


class Seen(NamedTuple):
    """A run as a cluster shows it."""

    status: WorkflowExecutionStatus | None
    history: History
    # The version histories of its branches, the current one first.
    branches: list[tuple[tuple[int, int], ...]]
    is_zombie: bool


async def seen(cluster: ClusterProcess, namespace: str = NAMESPACE) -> dict[Run, Seen]:
    """All runs that a cluster lists."""
    client = await cluster.connect(namespace)
    found: dict[Run, Seen] = {}
    async with cluster.operated() as operated:
        async for one in client.list_workflows():
            history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
            tree = await operated.ask(TREE, TreeRequest(namespace, one.id, one.run_id))
            first, *others = [items for _, items in tree.branches]
            found[Run(one.id, one.run_id)] = Seen(
                one.status, History(events=history.events), [first, *sorted(others)], tree.is_zombie
            )
    return found


async def converged(world: World, namespace: str = NAMESPACE, *, dead_letters: int = 0) -> Mapping[Run, Seen]:
    """Wait until all clusters show the same: no zombies, no other dead letters, no workflow with two open runs."""
    views: dict[str, dict[Run, Seen]] = {}

    async def are_same() -> bool:
        await world.until_caught_up()
        for cluster in world.running:
            views[cluster.name] = await seen(cluster, namespace)
        one, *others = views.values()
        return all(other == one for other in others)

    try:
        await until(are_same, "the same in all clusters")
    except AssertionError as late:
        late.add_note("\n".join(_differences(views)))
        raise
    found = next(iter(views.values()))
    assert [run for run, one in found.items() if one.is_zombie] == []
    running = [run.workflow_id for run, one in found.items() if one.status is WorkflowExecutionStatus.RUNNING]
    assert len(running) == len(set(running)), running
    assert await world.dead_letters() == dead_letters
    return found


async def reconciled(world: World, spark: SparkSession, folder: Path) -> int:
    """Stop all clusters, and have the pipeline compare their journals; returns the number of runs."""
    for cluster in world.running:
        await cluster.stop()
    (journal,) = {cluster.journal for cluster in world.clusters.values()}
    return assert_reconciled(spark, journal, lake=folder / "lake", expect=list(world.clusters))


def _differences(views: Mapping[str, Mapping[Run, Seen]]) -> Sequence[str]:
    """A short description of each difference."""
    lines: list[str] = []
    for run in sorted(set().union(*views.values())):
        there = {name: view.get(run) for name, view in views.items()}
        one, *others = there.values()
        if all(other == one for other in others):
            continue
        lines.append(f"{run.workflow_id} {run.run_id}:")
        for name, each in there.items():
            lines.append(f"  {name}: {'nothing' if each is None else _brief(each)}")
    return lines


def _brief(one: Seen) -> str:
    status = None if one.status is None else one.status.name
    last = MessageToDict(one.history.events[-1])
    return f"{status}, zombie {one.is_zombie}, {one.branches}, {len(one.history.events)} events, the last is {last}"
