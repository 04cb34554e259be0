"""Clusters that are misconfigured or send impossible data get errors, and everything else continues."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from fairlead.history.messages.stream import PullResponse, ReplicationTask
from fairlead.history.ndc.incoming_batch import BATCH_BYTES_MAX
from fairlead.replication.wire import ANSWER_BYTES_MAX
from tests.cli.processes import run
from tests.data_centers.convergence import converged
from tests.data_centers.meddler import Meddler, meddler
from tests.data_centers.processes import NAMESPACE, World, clusters, register, until

# All tests share the clusters; each has its own workflows.
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
QUEUE = "nobody-polls-this"

Damage = Callable[[ReplicationTask], ReplicationTask]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing() -> AsyncIterator[Meddler]:
    """The proxy between A and B: it forwards A's stream to B."""
    async with meddler() as carrier:
        yield carrier


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, standing: Meddler) -> AsyncIterator[World]:
    """Two clusters with few attempts for each task."""
    folder = tmp_path_factory.mktemp("peers")
    settings = {"replication.attempts": 2}
    async with clusters(folder, "a", "b", between={("b", "a"): standing}, settings=settings) as running:
        await running.until_connected()
        await running.share(active="a")
        yield running


def events_of(task: ReplicationTask) -> History:
    return History.FromString(task.events)


def with_events(task: ReplicationTask, history: History) -> ReplicationTask:
    return replace(task, events=history.SerializeToString())


def a_gap_inside(task: ReplicationTask) -> ReplicationTask:
    history = events_of(task)
    history.events[-1].event_id += 1
    return replace(with_events(task, history), items=((task.last_event_id + 1, 1),))


def mixed_versions(task: ReplicationTask) -> ReplicationTask:
    history = events_of(task)
    history.events[-1].version = 2
    return replace(with_events(task, history), items=((task.last_event_id - 1, 1), (task.last_event_id, 2)))


def a_version_of_nobody(task: ReplicationTask) -> ReplicationTask:
    history = events_of(task)
    for event in history.events:
        event.version = 9
    return replace(with_events(task, history), items=((task.last_event_id, 9),))


def a_branch_that_does_not_reach(task: ReplicationTask) -> ReplicationTask:
    return replace(task, items=((1, 1),))


def versions_that_fall(task: ReplicationTask) -> ReplicationTask:
    return replace(task, items=((1, 11), (task.last_event_id, 1)))


def no_history_at_all(task: ReplicationTask) -> ReplicationTask:
    return replace(task, events=b"\xff\xff\xff")


def no_events(task: ReplicationTask) -> ReplicationTask:
    return replace(task, events=b"")


def an_event_that_nobody_knows(task: ReplicationTask) -> ReplicationTask:
    history = events_of(task)
    history.events[-1].event_type = 9_999  # type: ignore[assignment]
    return with_events(task, history)


def another_workflow(task: ReplicationTask) -> ReplicationTask:
    history = events_of(task)
    history.events[0].workflow_execution_started_event_attributes.workflow_id = "another"
    return with_events(task, history)


def too_many_bytes(task: ReplicationTask) -> ReplicationTask:
    history = events_of(task)
    history.events[0].workflow_execution_started_event_attributes.input.payloads.add(data=bytes(BATCH_BYTES_MAX))
    return with_events(task, history)


def a_namespace_that_is_not_there(task: ReplicationTask) -> ReplicationTask:
    return replace(task, namespace_id="00000000-0000-0000-0000-000000000000")


def a_branch_that_nobody_has(task: ReplicationTask) -> ReplicationTask:
    """The second event, as if many events came before it."""
    history = History(events=events_of(task).events[1:])
    history.events[0].event_id = last = task.last_event_id + 100
    return replace(with_events(task, history), first_event_id=last, last_event_id=last, items=((last, 1),))


# Each damage, and the error that it must cause.
DAMAGES: Mapping[Damage, str] = {
    a_gap_inside: "MalformedBatch",
    mixed_versions: "MalformedBatch",
    a_version_of_nobody: "UnownedVersion",
    a_branch_that_does_not_reach: "MalformedBatch",
    versions_that_fall: "MalformedHistory",
    no_history_at_all: "MalformedBatch",
    no_events: "MalformedBatch",
    an_event_that_nobody_knows: "MalformedBatch",
    another_workflow: "MalformedBatch",
    too_many_bytes: "MalformedBatch",
    a_namespace_that_is_not_there: "NotFound",
    a_branch_that_nobody_has: "BranchGone",
}


# Damages for which the dead letter names the right events: these can be fetched again.
IN_EVENTS_ONLY = (no_history_at_all, no_events, an_event_that_nobody_knows, another_workflow, too_many_bytes)


async def is_known(client: Client, workflow_id: str) -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def until_known(client: Client, workflow_id: str) -> None:
    await until(lambda: is_known(client, workflow_id), f"{workflow_id} in the other cluster")


async def dead_letters(world: World) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await world["b"].admin("dlq", "list"))["dead_letters"]
    return listed


async def test_an_impossible_task_becomes_a_dead_letter_and_changes_nothing(world: World, standing: Meddler) -> None:
    """FL-69."""
    a, b = [await cluster.connect() for cluster in world.running]
    names = {damage.__name__: damage for damage in DAMAGES}
    tried_again = {a_namespace_that_is_not_there.__name__, a_branch_that_nobody_has.__name__}

    def spoil(answer: PullResponse) -> PullResponse:
        tasks = [names[task.workflow_id](task) if task.workflow_id in names else task for task in answer.tasks]
        return replace(answer, tasks=tuple(tasks))

    standing.change = spoil
    for name in names:
        await a.start_workflow("Any", id=name, task_queue=QUEUE)

    async def are_dead_letters() -> bool:
        return await world.dead_letters() == len(names)

    await until(are_dead_letters, "a dead letter of each")
    assert [await is_known(b, name) for name in names] == [False] * len(names)
    found = {dead_letter["workflow_id"]: dead_letter for dead_letter in await dead_letters(world)}
    assert {name: dead_letter["error"].split(":")[0] for name, dead_letter in found.items()} == {
        damage.__name__: kind for damage, kind in DAMAGES.items()
    }
    assert {name for name, dead_letter in found.items() if dead_letter["attempts"] > 1} == tried_again
    # Other runs have continued, in the same streams.
    for number in range(10):
        await a.start_workflow("Any", id=f"other-{number}", task_queue=QUEUE)
    for number in range(10):
        await until_known(b, f"other-{number}")

    # An operator merges those that can be fetched again; for the others, later tasks fetch the missing events.
    standing.change = lambda answer: answer
    done = await world["b"].admin("dlq", "merge")
    mended = {damage.__name__ for damage in IN_EVENTS_ONLY}
    assert {name for name in names if await is_known(b, name)} == mended
    assert len(done["failures"]) == len(names) - len(mended)
    for name in names.keys() - mended:
        await a.get_workflow_handle(name).signal("any")
        await until_known(b, name)
    assert {dead_letter["workflow_id"] for dead_letter in await dead_letters(world)} == names.keys() - mended
    await world["b"].admin("dlq", "purge", "--all")
    runs = await converged(world)
    assert names.keys() <= {run.workflow_id for run in runs}


@pytest.mark.parametrize(
    "nonsense", [b"\xc1 is no message", bytes(ANSWER_BYTES_MAX + 1)], ids=["unreadable", "oversize"]
)
async def test_an_invalid_stream_is_reported_and_pulled_again(world: World, standing: Meddler, nonsense: bytes) -> None:
    a, b = [await cluster.connect() for cluster in world.running]
    name = f"after-{len(nonsense)}"
    standing.change = lambda _answer: nonsense
    await a.start_workflow("Any", id=name, task_queue=QUEUE)

    async def is_told() -> bool:
        return all(stream.error for stream in await world["b"].streams())

    await until(is_told, "an error of each stream")
    assert not await is_known(b, name)
    standing.change = lambda answer: answer
    await until_known(b, name)
    await converged(world)


async def test_a_cluster_with_an_unexpected_name_is_not_replicated_with(tmp_path: Path) -> None:
    # The address configured for A leads to B itself.
    async with clusters(tmp_path, "a", "b", astray={("b", "a"): "b"}) as world:

        async def is_told() -> bool:
            return "cluster not connected" in world["b"].log()

        await until(is_told, "a complaint")
        said = "is 'b' with initial version 2 and increment 10, but here it is configured as 'a' with"
        assert said in world["b"].log()
        assert await world["b"].streams() == ()
        await register(await world["a"].connect(), "orders", ["a", "b"])
        assert await world["b"].describe_namespace("orders") is None
        # Replication begins once the right cluster responds there.
        await world.wires["b", "a"].lead_to(world["a"].address)
        await world.until_active("a", namespace="orders")
        await world.until_connected()


WRONG: Mapping[str, tuple[dict[str, Any], str]] = {
    "two of one version": (
        {"name": "a", "remotes": {"b": {"initialVersion": 1, "address": "127.0.0.1:1"}}},
        "1 is also the version of a",
    ),
    "a version as large as the increment": (
        {"name": "a", "initialVersion": 10, "increment": 10},
        "the initial version 10 must be below the increment, which is 10",
    ),
    "itself as another": (
        {"name": "a", "remotes": {"a": {"initialVersion": 2, "address": "127.0.0.1:1"}}},
        "is the name of this cluster itself",
    ),
    "no address": ({"name": "a", "remotes": {"b": {"initialVersion": 2}}}, "has no address"),
    "no name": ({"initialVersion": 2}, "has no name"),
}


@pytest.mark.parametrize("wrong", list(WRONG))
async def test_a_server_with_an_invalid_configuration_reports_it_and_does_not_start(wrong: str, tmp_path: Path) -> None:
    cluster, said = WRONG[wrong]
    file = tmp_path / "fairlead.yaml"
    file.write_text(json.dumps({"cluster": cluster}))
    done = await run("server", "start", "--config", str(file), folder=tmp_path)
    assert done.code != 0
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "fairlead.db").exists()


async def test_unknown_clusters_are_refused(world: World) -> None:
    client = await world["a"].connect()
    with pytest.raises(RPCError, match="Invalid cluster name: x") as registered:
        await register(client, "unknown", ["a", "x"])
    assert registered.value.status is RPCStatusCode.INVALID_ARGUMENT
    request = UpdateNamespaceRequest(namespace=NAMESPACE)
    request.replication_config.active_cluster_name = "x"
    with pytest.raises(RPCError, match="x") as updated:
        await client.workflow_service.update_namespace(request)
    assert updated.value.status is RPCStatusCode.INVALID_ARGUMENT
    done = await world["b"].admin_done("failover", NAMESPACE, "--to", "x")
    assert done.code != 0
    assert "cluster 'x' is not known here" in done.err
    for cluster in world.running:
        described = await cluster.describe_namespace()
        assert described is not None
        assert (described.replication_config.active_cluster_name, described.failover_version) == ("a", 1)
