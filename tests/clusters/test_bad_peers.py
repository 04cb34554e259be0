"""Clusters that are configured wrongly or say what can't be: they are told so, and everything else goes on."""

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

from fairlead.history.applying.arriving import BATCH_BYTES_MAX
from fairlead.history.stream_messages import PullAnswer, ReplicationTask
from fairlead.replication.wire import ANSWER_BYTES_MAX
from tests.cli.processes import run
from tests.clusters.converging import converged
from tests.clusters.meddling import Meddler, meddler
from tests.clusters.processes import NAMESPACE, World, clusters, register, until

# The clusters are the same for all of them; each has workflows of its own.
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
QUEUE = "nobody-polls-this"

Damage = Callable[[ReplicationTask], ReplicationTask]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing() -> AsyncIterator[Meddler]:
    """Who carries to B what A sends."""
    async with meddler() as carrier:
        yield carrier


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory, standing: Meddler) -> AsyncIterator[World]:
    """Two clusters that try everything twice."""
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


def a_line_that_does_not_reach(task: ReplicationTask) -> ReplicationTask:
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
    """The second event, as if many had come before it."""
    history = History(events=events_of(task).events[1:])
    history.events[0].event_id = last = task.last_event_id + 100
    return replace(with_events(task, history), first_event_id=last, last_event_id=last, items=((last, 1),))


# Each, and what is said of it.
DAMAGES: Mapping[Damage, str] = {
    a_gap_inside: "MalformedBatch",
    mixed_versions: "MalformedBatch",
    a_version_of_nobody: "UnownedVersion",
    a_line_that_does_not_reach: "MalformedBatch",
    versions_that_fall: "MalformedHistory",
    no_history_at_all: "MalformedBatch",
    no_events: "MalformedBatch",
    an_event_that_nobody_knows: "MalformedBatch",
    another_workflow: "MalformedBatch",
    too_many_bytes: "MalformedBatch",
    a_namespace_that_is_not_there: "Refused",
    a_branch_that_nobody_has: "LineGone",
}


# Of these a letter says truly which events it was about: they can be got again.
IN_EVENTS_ONLY = (no_history_at_all, no_events, an_event_that_nobody_knows, another_workflow, too_many_bytes)


async def is_known(client: Client, workflow_id: str) -> bool:
    try:
        await client.get_workflow_handle(workflow_id).describe()
    except RPCError as refusal:
        if refusal.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def until_known(client: Client, workflow_id: str) -> None:
    await until(lambda: is_known(client, workflow_id), f"{workflow_id} in the other cluster")


async def letters(world: World) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await world["b"].admin("dlq", "list"))["letters"]
    return listed


async def test_what_can_not_be_is_kept_as_a_dead_letter_and_changes_nothing(world: World, standing: Meddler) -> None:
    a, b = [await cluster.connect() for cluster in world.running]
    names = {damage.__name__: damage for damage in DAMAGES}
    tried_again = {a_namespace_that_is_not_there.__name__, a_branch_that_nobody_has.__name__}

    def spoil(answer: PullAnswer) -> PullAnswer:
        tasks = [names[task.workflow_id](task) if task.workflow_id in names else task for task in answer.tasks]
        return replace(answer, tasks=tuple(tasks))

    standing.change = spoil
    for name in names:
        await a.start_workflow("Any", id=name, task_queue=QUEUE)

    async def are_buried() -> bool:
        return await world.dead_letters() == len(names)

    await until(are_buried, "a dead letter of each")
    assert [await is_known(b, name) for name in names] == [False] * len(names)
    found = {letter["workflow_id"]: letter for letter in await letters(world)}
    assert {name: letter["error"].split(":")[0] for name, letter in found.items()} == {
        damage.__name__: kind for damage, kind in DAMAGES.items()
    }
    assert {name for name, letter in found.items() if letter["attempts"] > 1} == tried_again
    # Other runs have gone on, in the same streams.
    for number in range(10):
        await a.start_workflow("Any", id=f"other-{number}", task_queue=QUEUE)
    for number in range(10):
        await until_known(b, f"other-{number}")

    # An operator has those sent again that can be; what comes later of the others brings with it what was missing.
    standing.change = lambda answer: answer
    done = await world["b"].admin("dlq", "merge")
    mended = {damage.__name__ for damage in IN_EVENTS_ONLY}
    assert {name for name in names if await is_known(b, name)} == mended
    assert len(done["failures"]) == len(names) - len(mended)
    for name in names.keys() - mended:
        await a.get_workflow_handle(name).signal("any")
        await until_known(b, name)
    assert {letter["workflow_id"] for letter in await letters(world)} == names.keys() - mended
    await world["b"].admin("dlq", "purge", "--all")
    runs = await converged(world)
    assert names.keys() <= {run.workflow_id for run in runs}


@pytest.mark.parametrize(
    "nonsense", [b"\xc1 is no message", bytes(ANSWER_BYTES_MAX + 1)], ids=["unreadable", "oversize"]
)
async def test_a_stream_that_makes_no_sense_is_told_and_pulled_again(
    world: World, standing: Meddler, nonsense: bytes
) -> None:
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


async def test_with_one_that_is_not_who_it_should_be_nothing_is_exchanged(tmp_path: Path) -> None:
    # Whom B takes for A is B itself.
    async with clusters(tmp_path, "a", "b", astray={("b", "a"): "b"}) as world:

        async def is_told() -> bool:
            return "cluster not connected" in world["b"].log()

        await until(is_told, "a complaint")
        said = "says that it is 'b' with initial version 2 and increment 10, but here it is configured as 'a' with"
        assert said in world["b"].log()
        assert await world["b"].streams() == ()
        await register(await world["a"].connect(), "orders", ["a", "b"])
        assert await world["b"].describe_namespace("orders") is None
        # Once the right one answers there, all is well.
        await world.wires["b", "a"].lead_to(world["a"].address)
        await world.until_active("a", namespace="orders")
        await world.until_connected()


WRONG: Mapping[str, tuple[dict[str, Any], str]] = {
    "two of one version": (
        {"name": "a", "remotes": {"b": {"initialVersion": 1, "address": "127.0.0.1:1"}}},
        "1 is that of a, too",
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
async def test_a_server_with_a_wrong_configuration_says_so_and_does_not_start(wrong: str, tmp_path: Path) -> None:
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
