"""A frontend that drains answers long polls for runs, so that SDKs move to another host."""

import asyncio

import msgspec
import pytest
from google.protobuf.message import Message
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage as Stage
from temporalio.api.update.v1 import Meta, UpdateRef
from temporalio.api.update.v1 import Request as UpdateRequest
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    PollWorkflowExecutionUpdateRequest,
    PollWorkflowExecutionUpdateResponse,
    SignalWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.aio.drain import Drain
from fairlead.history.client import HistoryClient
from fairlead.history.draining_client import DrainingClient


class NoNews(HistoryClient):
    """A history service in which nothing happens: it responds at the timeout, with the time waited."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def call(
        self,
        name: str,
        namespace_id: str,
        workflow_id: str,
        request: Message | msgspec.Struct,
        *,
        timeout_s: float = 10.0,
        sticky_task_queue: str = "",
    ) -> bytes:
        self.asked.append(name)
        await asyncio.sleep(timeout_s)
        return b"no news"


@pytest.mark.parametrize("drains_before", [True, False])
async def test_a_long_poll_for_the_end_of_a_workflow_returns_without_news_during_draining(drains_before: bool) -> None:
    drain, history = Drain(), NoNews()
    client = DrainingClient(history, drain)
    if drains_before:
        drain.begin()
    request = GetWorkflowExecutionHistoryRequest(wait_new_event=True)
    waiting = asyncio.create_task(client.call("GetWorkflowExecutionHistory", "n", "w", request, timeout_s=60))
    await asyncio.sleep(0)
    drain.begin()
    assert await asyncio.wait_for(waiting, 5) == b"no news"
    assert history.asked == ["GetWorkflowExecutionHistory"] * (1 if drains_before else 2)


async def test_a_waiting_update_call_returns_so_that_its_caller_retries() -> None:
    drain, history = Drain(), NoNews()
    client = DrainingClient(history, drain)
    update = UpdateWorkflowExecutionRequest(request=UpdateRequest(meta=Meta(update_id="u")))
    poll_update = PollWorkflowExecutionUpdateRequest(update_ref=UpdateRef(update_id="u"))
    updating = asyncio.create_task(client.call("UpdateWorkflowExecution", "n", "w", update, timeout_s=60))
    polling = asyncio.create_task(client.call("PollWorkflowExecutionUpdate", "n", "w", poll_update, timeout_s=60))
    await asyncio.sleep(0)
    drain.begin()
    updated = UpdateWorkflowExecutionResponse.FromString(await updating)
    polled = PollWorkflowExecutionUpdateResponse.FromString(await polling)
    assert (updated.update_ref.update_id, polled.update_ref.update_id) == ("u", "u")
    assert updated.stage == polled.stage == Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED
    assert not polled.HasField("outcome")


async def test_operations_without_a_wait_continue_during_draining() -> None:
    drain = Drain()
    client = DrainingClient(NoNews(), drain)
    request = SignalWorkflowExecutionRequest()
    signalling = asyncio.create_task(client.call("SignalWorkflowExecution", "n", "w", request, timeout_s=0.05))
    await asyncio.sleep(0)
    drain.begin()
    assert await signalling == b"no news"
