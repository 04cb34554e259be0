"""Pages of a history, newest event first."""

from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
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
