"""Nexus on a separate server: across restarts, across namespaces, and as an operator sees it."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import EventType
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.patience import PATIENCE_S
from tests.sdk.programs.nexus import Calls, Desk, Handled
from tests.sdk.test_durability import Victim

WAIT_S_MAX = PATIENCE_S


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Victim]:
    victim = Victim(tmp_path)
    await victim.start()
    try:
        yield victim
    finally:
        victim.kill()


async def endpoint(client: Client, target: EndpointTarget) -> str:
    name = f"to-{uuid.uuid4()}"
    await client.operator_service.create_nexus_endpoint(
        CreateNexusEndpointRequest(spec=EndpointSpec(name=name, target=target))
    )
    return name


def workers_of(queue: str, namespace: str = "default") -> EndpointTarget:
    return EndpointTarget(worker=EndpointTarget.Worker(namespace=namespace, task_queue=queue))


def caller(client: Client) -> Worker:
    return Worker(client, task_queue="callers", workflows=[Calls], workflow_runner=UnsandboxedWorkflowRunner())


def handler(client: Client) -> Worker:
    return Worker(
        client,
        task_queue="handlers",
        workflows=[Handled],
        nexus_service_handlers=[Desk()],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )


async def call(client: Client, name: str, operation: str, given: Any, **options: Any) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow(
        Calls.run, args=[name, operation, given, options], id=str(uuid.uuid4()), task_queue="callers"
    )


async def until(there: Callable[[], Awaitable[bool]]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        # A server that was just killed does not respond.
        with contextlib.suppress(RPCError):
            if await there():
                return
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


def has(handle: WorkflowHandle[Any, Any], event: EventType.ValueType) -> Callable[[], Awaitable[bool]]:
    async def there() -> bool:
        return any(each.event_type == event for each in (await handle.fetch_history()).events)

    return there


async def test_operations_survive_a_server_that_is_killed(server: Victim) -> None:
    """Scheduled operations are called again, and the completion of started operations arrives."""
    client = await Client.connect(server.address)
    name = await endpoint(client, workers_of("handlers"))
    async with caller(client):
        async with handler(client):
            begun = await call(client, name, "start", ["handled", "wait"])
            await until(has(begun, EventType.EVENT_TYPE_NEXUS_OPERATION_STARTED))
        waiting = await call(client, name, "echo", "after all")
        await until(has(waiting, EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED))
        server.kill()
        await server.start()
        async with handler(client):
            assert await asyncio.wait_for(waiting.result(), WAIT_S_MAX) == [None, "echo after all"]
            await client.get_workflow_handle("handled").signal("end", "well")
            server.kill()
            await server.start()
            token, result = await asyncio.wait_for(begun.result(), WAIT_S_MAX)
            assert (bool(token), result) == (True, "handled well")


async def test_an_endpoint_leads_into_another_namespace(server: Victim) -> None:
    client = await Client.connect(server.address)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace="other", workflow_execution_retention_period=Duration(seconds=86400))
    )
    other = await Client.connect(server.address, namespace="other")
    name = await endpoint(client, workers_of("handlers", "other"))
    async with caller(client), handler(other):
        echoed = await call(client, name, "echo", "from afar")
        begun = await call(client, name, "start", ["handled", "at once"])
        assert await asyncio.wait_for(echoed.result(), WAIT_S_MAX) == [None, "echo from afar"]
        assert (await asyncio.wait_for(begun.result(), WAIT_S_MAX))[1] == "handled at once"
        assert (await other.get_workflow_handle("handled").describe()).namespace == "other"


async def test_a_call_to_an_external_endpoint_fails_with_the_reason(server: Victim) -> None:
    client = await Client.connect(server.address)
    external = EndpointTarget(external=EndpointTarget.External(url="http://127.0.0.1:1/there"))
    name = await endpoint(client, external)
    async with caller(client):
        message, *_, cause = await (await call(client, name, "echo", "x")).result()
    assert message == "nexus operation completed unsuccessfully"
    assert "this server does not call external addresses" in cause


async def test_the_official_command_line_manages_endpoints(server: Victim) -> None:
    def temporal(*arguments: str) -> Any:
        command = [str(Path(sys.executable).with_name("temporal")), "operator", "nexus", "endpoint", *arguments]
        options = ["--address", server.address, "--output", "json"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        assert done.returncode == 0, done.stderr
        try:
            return json.loads(done.stdout)
        except ValueError:
            return done.stdout

    def all_of_it() -> None:
        target = ["--target-namespace", "default", "--target-task-queue", "queue"]
        temporal("create", "--name", "desk", "--description", "where things are done", *target)
        assert [each["spec"]["name"] for each in temporal("list")] == ["desk"]
        temporal("update", "--name", "desk", "--target-task-queue", "another")
        found = temporal("get", "--name", "desk")
        assert found["spec"]["target"]["worker"]["taskQueue"] == "another"
        temporal("delete", "--name", "desk")
        assert not temporal("list")

    await asyncio.to_thread(all_of_it)
