"""The contents of a deleted namespace are deleted, and then the namespace."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.operatorservice.v1 import DeleteNamespaceRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
)
from temporalio.service import RPCError

from fairlead.api.namespaces import Namespaces
from fairlead.history import namespace_deletion
from fairlead.storage.history import HistoryStore
from fairlead.testing import FairleadServer


async def _left(store: HistoryStore, namespace_id: str) -> int:
    count = 0
    for shard_id in range(4):
        runs = await store.list_runs(shard_id, after=None, limit=1000)
        count += sum(run.namespace_id.partition("#")[0] == namespace_id for run in runs)
    return count


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[HistoryStore]:
    """The stores of the servers that the test starts."""
    found: list[HistoryStore] = []
    opened = Namespaces.open

    async def open_and_note(self: Namespaces) -> None:
        found.append(self._store)
        await opened(self)

    monkeypatch.setattr(Namespaces, "open", open_and_note)
    monkeypatch.setattr(namespace_deletion, "POLL_S", 0.1)
    monkeypatch.setattr(namespace_deletion, "UNHEARD_S", 0.5)
    monkeypatch.setattr(namespace_deletion, "PAGE_MAX", 3)
    return found


async def test_runs_and_schedules_go_and_then_the_namespace(stores: list[HistoryStore]) -> None:
    async with FairleadServer.start(other_namespaces=["doomed"]) as server:
        client = await server.connect(namespace="doomed")
        safe = await server.connect()
        await safe.start_workflow("Nobody", id="safe", task_queue="q")
        for number in range(10):
            await client.start_workflow("Nobody", id=f"w-{number}", task_queue="q")
        await client.create_schedule(
            "s",
            Schedule(
                action=ScheduleActionStartWorkflow("Nobody", id="x", task_queue="q"),
                spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=1))]),
            ),
        )
        described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="doomed"))
        namespace_id = described.namespace_info.id
        assert await _left(stores[0], namespace_id) == 11
        await client.operator_service.delete_namespace(DeleteNamespaceRequest(namespace="doomed"))
        async with asyncio.timeout(20):
            while True:
                try:
                    await safe.workflow_service.describe_namespace(DescribeNamespaceRequest(id=namespace_id))
                except RPCError:
                    break
                await asyncio.sleep(0.05)
        assert await _left(stores[0], namespace_id) == 0
        assert await stores[0].list_visibility(namespace_id, limit=10) == []
        assert (await safe.count_workflows()).count == 1
