"""Pages of a history: newest event first, and bounded in size."""

from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    GetWorkflowExecutionHistoryReverseRequest,
    GetWorkflowExecutionHistoryReverseResponse,
)

from fairlead.storage.history import StoredBatch
from tests.history.shard_world import NAMESPACE, OneHost, World
from tests.virtual_time import on_virtual_time

SIGNALS = 30


async def pages(host: OneHost, *, events_max: int) -> list[list[HistoryEvent]]:
    found = []
    token = b""
    while True:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=NAMESPACE.name,
            execution=WorkflowExecution(workflow_id="w"),
            maximum_page_size=events_max,
            next_page_token=token,
        )
        answer = GetWorkflowExecutionHistoryReverseResponse.FromString(
            await host.call("GetWorkflowExecutionHistoryReverse", "w", request)
        )
        found.append(list(answer.history.events))
        token = answer.next_page_token
        if not token:
            return found


@pytest.mark.parametrize("events_max", [1, 2, 7, 100])
@on_virtual_time
async def test_pages_in_reverse_have_every_event_once(events_max: int) -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    for number in range(SIGNALS):
        await host.signal("w", f"signal-{number}")
    forward = await host.events("w")

    backward = await pages(host, events_max=events_max)

    assert [event for page in backward for event in page] == forward[::-1]
    assert all(0 < len(page) <= events_max for page in backward)
    await world.close()


@on_virtual_time
async def test_the_last_event_is_read_without_the_rest_of_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    host = await world.start()
    await host.begin("w")
    for number in range(SIGNALS):
        await host.signal("w", f"signal-{number}")
    batches: list[StoredBatch] = []
    store: Any = host.shard.services.store
    read_branch = store.read_branch

    async def watched(*arguments: Any, **options: Any) -> list[StoredBatch]:
        page: list[StoredBatch] = await read_branch(*arguments, **options)
        batches.extend(page)
        return page

    monkeypatch.setattr(store, "read_branch", watched)
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=NAMESPACE.name, execution=WorkflowExecution(workflow_id="w"), maximum_page_size=1
    )
    await host.call("GetWorkflowExecutionHistoryReverse", "w", request)

    assert len(batches) == 1
    await world.close()


@on_virtual_time
async def test_a_batch_that_does_not_fit_into_a_page_begins_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.handlers.history_pages.PAGE_BYTES_MAX", 4000)
    world = World()
    host = await world.start()
    await host.begin("w")
    for size in (3000, 2000):
        await host.signal("w", "s" * size)
    request = GetWorkflowExecutionHistoryRequest(namespace=NAMESPACE.name, execution=WorkflowExecution(workflow_id="w"))
    found: list[History] = []
    while not found or request.next_page_token:
        page = GetWorkflowExecutionHistoryResponse.FromString(
            await host.call("GetWorkflowExecutionHistory", "w", request)
        )
        found.append(page.history)
        request.next_page_token = page.next_page_token

    assert [len(page.events) for page in found] == [3, 1]
    assert max(page.ByteSize() for page in found) <= 4000
    await world.close()
