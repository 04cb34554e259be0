"""The examples of the NDC rules, end to end: three clusters, each in its own process.

Each step of an example is checked through the public API and through `fairlead admin history tree`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import NamedTuple

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from pyspark.sql import SparkSession
from temporalio.api.command.v1 import (
    Command,
    ScheduleActivityTaskCommandAttributes,
    StartTimerCommandAttributes,
)
from temporalio.api.common.v1 import ActivityType
from temporalio.api.enums.v1 import CommandType, EventType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    PollWorkflowTaskQueueRequest,
    RespondActivityTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from tests.data_centers.convergence import reconciled
from tests.data_centers.meddler import Detained, Meddler, meddler
from tests.data_centers.processes import ClusterProcess, World, clusters, until
from tests.sdk.stage import execution

# All tests share the clusters; each has its own namespaces.
pytestmark = [pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
QUEUE = "nobody-polls-this"
# The workflow's first task has a long delay: its events are exactly those that the test makes.
NEVER = "0 0 29 2 *"
POLL_S = 5.0
TIMER_S = 8

TREE_OF_BOTH = ["1-2 v1, 3 v2", "├─ 4 v2", "└─ 4 v3  <- current"]

Pairs = list[tuple[int, int]]


class View(NamedTuple):
    """A run as a cluster shows it: its events with their versions, and the version histories of its branches."""

    events: Pairs
    # The current one first.
    branches: list[Pairs]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing() -> AsyncIterator[Meddler]:
    """The proxy between A and B: it forwards A's stream to B."""
    async with meddler() as carrier:
        yield carrier


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    tmp_path_factory: pytest.TempPathFactory, standing: Meddler, spark: SparkSession
) -> AsyncIterator[World]:
    """Clusters A, B and C with initial versions 1, 2 and 3, and 10 as the increment; they agree in the end."""
    folder = tmp_path_factory.mktemp("document")
    async with clusters(folder, "a", "b", "c", between={("b", "a"): standing}) as running:
        await running.until_connected()
        yield running
        await running.until_caught_up()
        assert await running.dead_letters() == 0
        assert await reconciled(running, spark, folder) > 0


async def view(cluster: ClusterProcess, namespace: str, workflow_id: str, run_id: str = "") -> View:
    client = await cluster.connect(namespace)
    history = await client.get_workflow_handle(workflow_id, run_id=run_id or None).fetch_history()
    tree = await cluster.tree(workflow_id, run_id, namespace=namespace)
    return View(
        [(event.event_id, event.version) for event in history.events], [list(items) for _, items in tree.branches]
    )


async def drawn(cluster: ClusterProcess, namespace: str, workflow_id: str) -> tuple[list[str], list[Pairs]]:
    """The tree of a run as `fairlead admin history tree` draws it, and its branches, the current one first."""
    shown = await cluster.admin("history", "tree", workflow_id, "--namespace", namespace)
    branches = sorted(shown["branches"], key=lambda branch: not branch["is_current"])
    assert [branch["is_current"] for branch in branches] == [True] + [False] * (len(branches) - 1)
    return shown["tree"], [
        [(item["event_id"], item["version"]) for item in branch["version_history"]] for branch in branches
    ]


async def until_has(cluster: ClusterProcess, namespace: str, workflow_id: str, events: int) -> None:
    """Wait until the workflow has this number of events."""
    client = await cluster.connect(namespace)

    async def is_there() -> bool:
        return len((await client.get_workflow_handle(workflow_id).fetch_history()).events) >= events

    await until(is_there, f"{events} events of {workflow_id} in {cluster.name}")


async def all_see(world: World, names: str, namespace: str, workflow_id: str, expected: View) -> None:
    """Wait until clusters have the run's events, and check that they show exactly this."""
    for name in names:
        await until_has(world[name], namespace, workflow_id, len(expected.events))
    views = await asyncio.gather(*(view(world[name], namespace, workflow_id) for name in names))
    assert dict(zip(names, views, strict=True)) == dict.fromkeys(names, expected)


async def fail_over(world: World, namespace: str, to: str, expected_version: int) -> None:
    """Force a failover by the public API, at the target cluster."""
    await world.update_active(to, asked=to, namespace=namespace)
    described = await world[to].describe_namespace(namespace)
    assert described is not None
    assert (described.replication_config.active_cluster_name, described.failover_version) == (to, expected_version)


async def add_option(client: Client, workflow_id: str) -> None:
    """Add an event that is not reapplied from a losing branch."""
    request = UpdateWorkflowExecutionOptionsRequest(
        namespace=client.namespace, workflow_execution=execution(workflow_id)
    )
    request.update_mask.paths.append("versioning_override")
    request.workflow_execution_options.versioning_override.auto_upgrade = True
    await client.workflow_service.update_workflow_execution_options(request)


async def test_the_versions_of_namespaces_follow_the_documents_example(world: World) -> None:
    """NDC-2, NDC-3: two namespaces and their failovers."""

    async def everywhere(namespace: str, active: str, version: int) -> None:
        await world.until_active(active, namespace=namespace)
        for cluster in world.running:
            described = await cluster.describe_namespace(namespace)
            assert described is not None
            assert described.is_global_namespace
            assert (described.replication_config.active_cluster_name, described.failover_version) == (active, version)
        # All new events have this version, whichever cluster gets the request.
        for cluster in world.running:
            client = await cluster.connect(namespace)
            name = f"{namespace}-{version}-{cluster.name}"
            handle = await client.start_workflow("Any", id=name, task_queue=QUEUE)
            await handle.signal("any")
            there = await world[active].connect(namespace)
            history = await there.get_workflow_handle(name).fetch_history()
            assert {event.version for event in history.events} == {version}
            assert len(history.events) == 3

    # At T = 0 alpha is registered.
    await world.share("alpha", active="a")
    await everywhere("alpha", "a", 1)
    # At T = 1 beta is registered.
    await world.share("beta", active="b")
    await everywhere("beta", "b", 2)
    # At T = 2 alpha is updated.
    await fail_over(world, "alpha", "b", 2)
    await everywhere("alpha", "b", 2)
    # At T = 3 beta is updated.
    await fail_over(world, "beta", "a", 11)
    await everywhere("beta", "a", 11)


async def test_version_histories_without_a_conflict_follow_the_documents_example(world: World) -> None:
    """NDC-7: the example without a conflict."""
    await world.share("gamma", active="a")
    a = await world["a"].connect("gamma")
    # T = 0: event 1 with version 1
    handle = await a.start_workflow("Any", id="w", task_queue=QUEUE, cron_schedule=NEVER)
    await all_see(world, "abc", "gamma", "w", View([(1, 1)], [[(1, 1)]]))
    # T = 1: event 2 with version 1
    await handle.signal("any")
    await all_see(world, "abc", "gamma", "w", View([(1, 1), (2, 1)], [[(2, 1)]]))
    # T = 2: event 3 with version 1
    await handle.signal("any")
    await all_see(world, "abc", "gamma", "w", View([(1, 1), (2, 1), (3, 1)], [[(3, 1)]]))
    # T = 3: the namespace's version is 2 now; event 4 with version 2
    await fail_over(world, "gamma", "b", 2)
    b = await world["b"].connect("gamma")
    await b.get_workflow_handle("w").signal("any")
    await all_see(world, "abc", "gamma", "w", View([(1, 1), (2, 1), (3, 1), (4, 2)], [[(3, 1), (4, 2)]]))
    # T = 4: event 5 with version 2; requested at a passive cluster.
    await handle.signal("any")
    await all_see(world, "abc", "gamma", "w", View([(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)], [[(3, 1), (5, 2)]]))


async def test_version_histories_with_a_conflict_follow_the_documents_example(world: World) -> None:
    """NDC-8, NDC-9, NDC-10: the example with a conflict."""
    await world.share("delta", active="a")
    a, b, c = [await world[name].connect("delta") for name in "abc"]
    # At T = 0 both B and C have three events.
    await a.start_workflow("Any", id="w", task_queue=QUEUE, cron_schedule=NEVER)
    await a.get_workflow_handle("w").signal("any")
    await until_has(world["b"], "delta", "w", 2)
    await fail_over(world, "delta", "b", 2)
    await b.get_workflow_handle("w").signal("any")
    await all_see(world, "abc", "delta", "w", View([(1, 1), (2, 1), (3, 2)], [[(2, 1), (3, 2)]]))
    await world.until_active("b", namespace="delta")
    # T = 1 in B: event 4 with version 2; it is not replicated
    await world.cut_off("c")
    await add_option(b, "w")
    await all_see(world, "b", "delta", "w", View([(1, 1), (2, 1), (3, 2), (4, 2)], [[(2, 1), (4, 2)]]))
    # T = 1 in C: the namespace fails over to it; event 4 with version 3
    await fail_over(world, "delta", "c", 3)
    await c.get_workflow_handle("w").signal("any")
    await all_see(world, "c", "delta", "w", View([(1, 1), (2, 1), (3, 2), (4, 3)], [[(2, 1), (3, 2), (4, 3)]]))
    # T = 2: the writes of each arrive in the other; the branch with the highest version is the current one
    world.heal()
    both = View([(1, 1), (2, 1), (3, 2), (4, 3)], [[(2, 1), (3, 2), (4, 3)], [(2, 1), (4, 2)]])

    for name in "abc":

        async def has_both(cluster: ClusterProcess = world[name]) -> bool:
            return len((await cluster.tree("w", namespace="delta")).branches) == 2

        await until(has_both, f"both branches in {name}")
    await all_see(world, "abc", "delta", "w", both)
    pictures = await asyncio.gather(*(drawn(world[name], "delta", "w") for name in "abc"))
    assert [branches for _, branches in pictures] == [both.branches] * 3
    assert pictures[0] == pictures[1] == pictures[2]
    assert pictures[0][0] == TREE_OF_BOTH


async def test_a_run_that_arrives_after_its_successor_is_a_zombie_until_it_closes(
    world: World, standing: Meddler
) -> None:
    """NDC-11, NDC-12: run 2 arrives in B before run 1."""
    namespace = "zombies"
    await world.share(namespace, active="a")
    a, b = [await world[name].connect(namespace) for name in "ab"]
    # The proxy holds back B's tasks, and sends run 2 first.
    detained = Detained(standing, lambda task: task.workflow_id == "w")
    first = await a.start_workflow("Any", id="w", task_queue=QUEUE)
    await first.terminate()
    second = await a.start_workflow("Any", id="w", task_queue=QUEUE)
    run_1, run_2 = first.result_run_id or "", second.result_run_id or ""
    await detained.until_held(3)
    assert [task.run_id for task in detained.held] == [run_1, run_1, run_2]
    assert await listed(b) == {}

    detained.let_go(detained.held[2])
    await until_has(world["b"], namespace, "w", 2)
    assert await is_zombie(world["b"], namespace, run_2) is False

    # Run 1 can't be a second open run: it is a zombie, which lists don't show.
    detained.let_go(detained.held[0])
    await until_tree(world["b"], namespace, run_1)
    assert await is_zombie(world["b"], namespace, run_1) is True
    assert await listed(b) == {run_2: WorkflowExecutionStatus.RUNNING}
    assert (await b.get_workflow_handle("w").describe()).run_id == run_2
    # A zombie can't be changed even where the namespace is active; the current run can.
    await fail_over(world, namespace, "b", 2)
    with pytest.raises(RPCError) as raised:
        await b.get_workflow_handle("w", run_id=run_1).signal("any")
    assert raised.value.status is RPCStatusCode.NOT_FOUND
    await b.get_workflow_handle("w").signal("any")
    assert (await view(world["b"], namespace, "w", run_2)).events == [(1, 1), (2, 1), (3, 2)]
    assert (await view(world["b"], namespace, "w", run_1)).events == [(1, 1), (2, 1)]

    # Only a replication task changes it: its end.
    detained.let_go(detained.held[0])
    expected = {run_1: WorkflowExecutionStatus.TERMINATED, run_2: WorkflowExecutionStatus.RUNNING}
    for cluster in world.running:
        client = await cluster.connect(namespace)
        await until_listed(client, expected)
        assert await is_zombie(cluster, namespace, run_1) is False
        await until_has(cluster, namespace, "w", 3)
        assert (await view(cluster, namespace, "w", run_1)).events == [(1, 1), (2, 1), (3, 1)]
        assert (await view(cluster, namespace, "w", run_2)).events == [(1, 1), (2, 1), (3, 2)]
    assert detained.held == []
    detained.end()


async def test_a_task_of_a_losing_branch_is_discarded(world: World) -> None:
    """NDC-14."""
    namespace = "stale"
    await world.share(namespace, active="a")
    a, b, c = [await world[name].connect(namespace) for name in "abc"]
    await a.start_workflow("Any", id="w", task_queue="deciders", task_timeout=timedelta(seconds=2))
    for name in "abc":
        await until_has(world[name], namespace, "w", 2)
    await fail_over(world, namespace, "b", 2)
    await world.until_active("b", namespace=namespace)
    task = await b.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name="deciders"), identity="decider")
    )
    await until_has(world["c"], namespace, "w", 3)
    await world.cut_off("c")
    # T = 0: events of version 2 generate tasks in B: one is started, one waits, one is a timer.
    await b.workflow_service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(
            namespace=namespace,
            task_token=task.task_token,
            commands=[_activity("taken"), _activity("waiting"), _timer()],
        )
    )
    taken = await b.workflow_service.poll_activity_task_queue(_poll(namespace, "taken"))
    assert taken.activity_id == "taken"
    before = await view(world["b"], namespace, "w")
    assert before == View([(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2), (7, 2)], [[(2, 1), (7, 2)]])
    # T = 1: in C, which does not have the start, the same workflow task times out.
    await fail_over(world, namespace, "c", 3)
    await until_has(world["c"], namespace, "w", 5)
    ahead = await view(world["c"], namespace, "w")
    assert ahead.events[:4] == [(1, 1), (2, 1), (3, 2), (4, 3)]
    world.heal()
    for name in "ab":

        async def is_switched(cluster: ClusterProcess = world[name]) -> bool:
            tree = await cluster.tree("w", namespace=namespace)
            return [items[-1][1] for _, items in tree.branches] == [3, 2]

        await until(is_switched, f"the branch of C current in {name}")
    described = (await b.get_workflow_handle("w").describe()).raw_description
    assert list(described.pending_activities) == []
    await world.until_active("c", namespace=namespace)
    # T = 2: B is active again and loads the tasks: they belong to a losing branch.
    await fail_over(world, namespace, "b", 12)
    with pytest.raises(RPCError) as raised:
        await b.workflow_service.respond_activity_task_completed(
            RespondActivityTaskCompletedRequest(namespace=namespace, task_token=taken.task_token)
        )
    assert raised.value.status is RPCStatusCode.NOT_FOUND
    assert await nothing_comes(b, "waiting")
    # Real time: the timer of the losing branch becomes due in another process, and must do nothing.
    await asyncio.sleep(max(0.0, TIMER_S - POLL_S))
    await world.until_caught_up()
    for client in (a, b, c):
        history = await client.get_workflow_handle("w").fetch_history()
        kinds = [EventType.Name(event.event_type) for event in history.events]
        assert not [kind for kind in kinds if "ACTIVITY" in kind or "TIMER" in kind]
    # The workflow continues on the current branch.
    again = await b.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name="deciders"), identity="decider")
    )
    # No workflow task was ever completed on that branch.
    assert again.previous_started_event_id == 0
    complete = Command(command_type=CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION)
    complete.complete_workflow_execution_command_attributes.SetInParent()
    await b.workflow_service.respond_workflow_task_completed(
        RespondWorkflowTaskCompletedRequest(namespace=namespace, task_token=again.task_token, commands=[complete])
    )
    for client in (a, b, c):
        await until_listed(client, {again.workflow_execution.run_id: WorkflowExecutionStatus.COMPLETED})


Listed = Mapping[str, WorkflowExecutionStatus | None]


async def listed(client: Client) -> Listed:
    """The listed runs, with their status."""
    return {one.run_id: one.status async for one in client.list_workflows("WorkflowId = 'w'")}


async def until_listed(client: Client, expected: Listed) -> None:
    """Wait until lists show these runs."""

    async def are_there() -> bool:
        return await listed(client) == expected

    await until(are_there, f"{expected} at {client.service_client.config.target_host}")


async def is_zombie(cluster: ClusterProcess, namespace: str, run_id: str) -> bool:
    return (await cluster.tree("w", run_id, namespace=namespace)).is_zombie


async def until_tree(cluster: ClusterProcess, namespace: str, run_id: str) -> None:
    """Wait until a cluster has a run."""

    async def is_there() -> bool:
        return bool((await cluster.tree("w", run_id, namespace=namespace)).branches)

    await until(is_there, f"run {run_id} in {cluster.name}")


async def nothing_comes(client: Client, queue: str) -> bool:
    """Whether a poll for an activity task returns empty."""
    try:
        answer = await client.workflow_service.poll_activity_task_queue(
            _poll(client.namespace, queue), timeout=timedelta(seconds=POLL_S)
        )
    except RPCError as late:
        return late.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
    return answer.task_token == b""


def _activity(name: str) -> Command:
    return Command(
        command_type=CommandType.COMMAND_TYPE_SCHEDULE_ACTIVITY_TASK,
        schedule_activity_task_command_attributes=ScheduleActivityTaskCommandAttributes(
            activity_id=name,
            activity_type=ActivityType(name="Any"),
            task_queue=TaskQueue(name=name),
            schedule_to_close_timeout=Duration(seconds=600),
            start_to_close_timeout=Duration(seconds=600),
        ),
    )


def _timer() -> Command:
    return Command(
        command_type=CommandType.COMMAND_TYPE_START_TIMER,
        start_timer_command_attributes=StartTimerCommandAttributes(
            timer_id="t", start_to_fire_timeout=Duration(seconds=TIMER_S)
        ),
    )


def _poll(namespace: str, queue: str) -> PollActivityTaskQueueRequest:
    return PollActivityTaskQueueRequest(namespace=namespace, task_queue=TaskQueue(name=queue), identity="worker")
