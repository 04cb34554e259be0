"""Settings, operators and metrics use namespace names; the services use ids."""

import asyncio
import dataclasses
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard
from temporalio.api.operatorservice.v1 import DeleteNamespaceRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client

from fairlead.api.namespace_lookup import FIND_NAMESPACES, GIVEN_MAX, FindNamespacesRequest, TooManyNamespaces
from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.messages import DESCRIBE, UPDATE, DescribeRequest, UpdateRequest
from fairlead.server import Server, namespace_names, new_caller
from fairlead.settings.static.config import JournalConfig, NamespaceConfig, StaticConfig
from fairlead.telemetry import configure_logs
from tests.server.test_server import QUICK, SHARED, client_of, share_store, task
from tests.server.test_workflows import ALL

PARTITIONS = 3
SETTINGS = f"""
matching.numTasklistReadPartitions: [{{value: {PARTITIONS}, constraints: {{namespace: orders, taskQueueName: q}}}}]
matching.numTasklistWritePartitions: [{{value: {PARTITIONS}, constraints: {{namespace: orders, taskQueueName: q}}}}]
"""
ORDERS = NamespaceConfig("orders")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text(SETTINGS)
    return file


@pytest.fixture
async def server(file: Path) -> AsyncIterator[Server]:
    async with start(dataclasses.replace(ALL, dynamic_file=file, namespaces=(ORDERS,))) as server:
        yield server


class start:  # noqa: N801 - reads as a function
    """Runs a server until the block ends."""

    def __init__(self, config: StaticConfig) -> None:
        self._server = Server(config, overrides=QUICK)

    async def __aenter__(self) -> Server:
        await self._server.start()
        return self._server

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()


async def add_workflow(server: Server, *, namespace: str = "orders", workflow_id: str = "one") -> str:
    """Start a workflow without a worker, so that its task waits in the queue; returns the namespace id."""
    assert server.frontend_address is not None
    client = await Client.connect(server.frontend_address, namespace=namespace)
    await client.start_workflow("Nobody", id=workflow_id, task_queue="q")
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    return described.namespace_info.id


async def config_of(server: Server, task_queue: TaskQueueId) -> PartitionConfig:
    """The partition configuration that a task queue's root reports."""
    caller, root = new_caller(), Partition(task_queue, 0)
    try:
        answer = await caller.call(server.address, DESCRIBE, DescribeRequest(root), timeout_s=5)
        return answer.config
    finally:
        await caller.close()


async def test_settings_for_a_namespace_by_its_name_hold_for_the_task_queues_of_sdks(server: Server) -> None:
    namespace_id = await add_workflow(server)
    for base in (namespace_id, f"{namespace_id}#app:v1"):
        config = await config_of(server, TaskQueueId(base, "q", TaskType.WORKFLOW))
        assert (config.read, config.write) == (PARTITIONS, PARTITIONS)
    assert (await config_of(server, TaskQueueId(namespace_id, "other", TaskType.WORKFLOW))).read == 1


async def test_a_client_of_matching_alone_gives_the_namespace_as_any_string(server: Server) -> None:
    async with client_of(server.address) as client:
        await client.add(TaskQueueId("orders", "q", TaskType.ACTIVITY), task(b"one"))
    assert (await config_of(server, TaskQueueId("orders", "q", TaskType.ACTIVITY))).read == PARTITIONS


async def test_a_namespace_that_was_created_anew_has_the_settings_of_its_name(server: Server) -> None:
    before = await add_workflow(server)
    assert server.frontend_address is not None
    client = await Client.connect(server.frontend_address)
    await client.operator_service.delete_namespace(DeleteNamespaceRequest(namespace="orders"))
    register = RegisterNamespaceRequest(namespace="orders")
    register.workflow_execution_retention_period.FromSeconds(86_400)
    await client.workflow_service.register_namespace(register)
    after = await add_workflow(server)
    assert before != after
    assert (await config_of(server, TaskQueueId(after, "q", TaskType.WORKFLOW))).read == PARTITIONS
    # The deleted namespace was renamed, so the setting does not apply to it.
    assert (await config_of(server, TaskQueueId(before, "q", TaskType.ACTIVITY))).read == 1


async def test_a_server_with_matching_alone_reads_the_names_from_the_store(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = share_store(monkeypatch)
    monkeypatch.setattr(namespace_names, "REFRESH_S", 0.02)
    await store.history.create_namespace("id-1", "orders", b"")
    async with start(dataclasses.replace(SHARED, dynamic_file=file)) as server:
        assert (await config_of(server, TaskQueueId("id-1", "q", TaskType.WORKFLOW))).read == PARTITIONS
        await store.history.rename_namespace("id-1", "orders-deleted", expected_version=1)
        await store.history.create_namespace("id-2", "orders", b"")
        # Each version's task queue is loaded on its first request, with the settings of that moment.
        async with asyncio.timeout(10):
            number = 0
            while (
                await config_of(server, TaskQueueId(f"id-2#app:{number}", "q", TaskType.WORKFLOW))
            ).read != PARTITIONS:
                number += 1
                await asyncio.sleep(0.02)
        assert (await config_of(server, TaskQueueId("id-1#app:0", "q", TaskType.WORKFLOW))).read == 1


async def test_the_journal_has_the_name_beside_the_id(tmp_path: Path) -> None:
    journal = JournalConfig(tmp_path / "journal")
    async with start(dataclasses.replace(ALL, namespaces=(ORDERS,), journal=journal)) as server:
        namespace_id = await add_workflow(server)
        async with client_of(server.address) as client:
            await client.add(TaskQueueId(f"{namespace_id}#app:v1", "q", TaskType.WORKFLOW), task(b"one"))
            await client.add(TaskQueueId("any string", "q", TaskType.WORKFLOW), task(b"one"))
    # The server has stopped, which seals its journal segments.
    for kind, expected in {
        "history": {(namespace_id, "orders")},
        "task": {(namespace_id, "orders"), (f"{namespace_id}#app:v1", "orders"), ("any string", None)},
    }.items():
        (segment,) = (tmp_path / "journal").rglob(f"{kind}.*.zst")
        with zstandard.open(segment, "rt") as lines:
            records = [json.loads(line) for line in lines]
        assert {(record["namespace_id"], record.get("namespace")) for record in records} == expected


async def test_the_log_has_the_namespace_name() -> None:
    log = io.StringIO()
    configure_logs("debug", "json", stream=log)
    caller = new_caller()
    async with start(dataclasses.replace(ALL, namespaces=(ORDERS,))) as server:
        namespace_id = await add_workflow(server)
        root = Partition(TaskQueueId(namespace_id, "q", TaskType.WORKFLOW), 0)
        await caller.call(server.address, UPDATE, UpdateRequest(root, read=4, write=4, force=True), timeout_s=5)
    await caller.close()
    (changed,) = [line for line in log.getvalue().splitlines() if "partition_config_changed" in line]
    assert json.loads(changed)["namespace"] == "orders"
    assert namespace_id not in log.getvalue()


async def test_operators_find_a_namespace_by_its_name_and_by_its_id(server: Server) -> None:
    namespace_id = await add_workflow(server)
    caller = new_caller()
    try:
        for given in ("orders", namespace_id):
            request = FindNamespacesRequest([given, "nobody", "", "\0"])
            answer = await caller.call(server.address, FIND_NAMESPACES, request, timeout_s=5)
            assert [(each.id, each.name) for each in answer.found] == [(namespace_id, "orders")]
            assert answer.is_any_registered
        too_many = FindNamespacesRequest(["x"] * (GIVEN_MAX + 1))
        with pytest.raises(TooManyNamespaces, match="ask for 1000 at most"):
            await caller.call(server.address, FIND_NAMESPACES, too_many, timeout_s=5)
    finally:
        await caller.close()
