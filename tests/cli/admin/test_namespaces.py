"""`fairlead admin` finds a namespace by its name or its id, on a server with a namespace registry."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairlead.cli.admin.cluster import UnknownNamespace, UnknownTaskQueue
from fairlead.cli.admin.command import admin
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.server import Server
from fairlead.settings.static.config import NamespaceConfig
from tests.server.test_namespace_names import add_workflow
from tests.server.test_server import QUICK, client_of, task
from tests.server.test_workflows import ALL

QUEUE = ("--tasklist", "q")


@dataclass(frozen=True, slots=True)
class World:
    """A server with a task queue `q` in the registered namespace `orders`."""

    server: Server
    namespace_id: str

    async def run(self, *arguments: str) -> Result:
        """Run a command in a thread of this process: a new process takes seconds to load the command."""
        return await asyncio.to_thread(CliRunner().invoke, admin, ["--address", self.server.address, *arguments])

    async def ask(self, *arguments: str) -> Any:
        done = await self.run(*arguments, "-o", "json")
        assert done.exit_code == 0, done.exception
        return json.loads(done.stdout)

    async def add(self, namespace_id: str, name: str = "q") -> None:
        async with client_of(self.server.address) as client:
            await client.add(TaskQueueId(namespace_id, name, TaskType.WORKFLOW), task(b"one"))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    server = Server(dataclasses.replace(ALL, namespaces=(NamespaceConfig("orders"),)), overrides=QUICK)
    await server.start()
    yield World(server, await add_workflow(server))
    await server.stop()


async def test_commands_take_the_name_or_the_id_and_print_the_name(world: World) -> None:
    by_name, by_id = ((*QUEUE, "--namespace", namespace) for namespace in ("orders", world.namespace_id))
    for command in (("tasklist", "describe"), ("scaler", "explain"), ("fairness", "top")):
        assert (await world.ask(*command, *by_name))["parameters"]["namespace"] == "orders"
    described = await world.ask("tasklist", "describe", *by_id)
    assert described["headline"].startswith("1 task waits")
    assert described["parameters"]["namespace"] == "orders"
    listed = (await world.ask("tasklist", "list"))["task_queues"]
    assert [(row["task_queue"], row["namespace"]) for row in listed] == [("q", "orders")]
    of_one = await world.ask("tasklist", "list", "--namespace", world.namespace_id)
    assert (of_one["parameters"], len(of_one["task_queues"])) == ({"namespace": "orders"}, 1)
    tree = await world.run("history", "tree", "one", "--namespace", world.namespace_id)
    assert tree.exit_code == 0, tree.exception


async def test_the_number_of_partitions_can_be_changed_by_namespace_name(world: World) -> None:
    named = (*QUEUE, "--namespace", "orders", "--tasklisttype", "workflow")
    await world.ask("tasklist", "update-partition", *named, "--nrp", "3", "--nwp", "3", "--force")
    done = await world.run("tasklist", "update-partition", *named, "--nwp", "2", "--force")
    assert done.exit_code == 0, done.exception
    # The output suggests the next command with the namespace's name, not its id.
    assert "--tasklist q --tasklisttype workflow --namespace orders" in done.stdout
    assert (await world.ask("tasklist", "describe", *named[:4]))["configuration"]["read"] == 3


async def test_an_unknown_namespace_is_reported_with_what_to_do(world: World) -> None:
    for command in (("tasklist", "describe", *QUEUE), ("tasklist", "update-partition", *QUEUE, "--nrp", "2")):
        done = await world.run(*command, "--namespace", "odrers")
        assert isinstance(done.exception, UnknownNamespace)
        assert str(done.exception).startswith("no namespace with the name or id 'odrers': `temporal operator namespace")
    done = await world.run("tasklist", "describe", "--tasklist", "other", "--namespace", "orders")
    assert isinstance(done.exception, UnknownTaskQueue)
    assert str(done.exception).startswith("no task queue 'other' for workflow tasks in namespace 'orders': ")


async def test_a_namespace_that_only_matching_knows_is_found_as_well(world: World) -> None:
    await world.add("any string")
    described = await world.ask("tasklist", "describe", *QUEUE, "--namespace", "any string")
    assert described["parameters"]["namespace"] == "any string"
    # Two namespaces have the same name: the registered one is used, unless only the other one has the task queue.
    await world.add("orders", "only-there")
    assert (await world.ask("tasklist", "describe", "--tasklist", "only-there", "--namespace", "orders"))["levels"]
    listed = (await world.ask("tasklist", "list", "--namespace", "orders"))["task_queues"]
    assert sorted((row["task_queue"], row["namespace"]) for row in listed) == [
        ("only-there", "orders (unregistered)"),
        ("q", "orders"),
    ]


async def test_the_task_queue_of_a_worker_version_is_listed_and_can_be_described(world: World) -> None:
    await world.add(f"{world.namespace_id}#app:v1")
    listed = (await world.ask("tasklist", "list"))["task_queues"]
    assert [row["namespace"] for row in listed] == ["orders", "orders (version app:v1)"]
    described = await world.ask("tasklist", "describe", *QUEUE, "--namespace", "orders#app:v1")
    assert described["parameters"]["namespace"] == "orders (version app:v1)"
