"""A frontend that drains answers waiting polls and long polls, so that SDKs move to another host."""

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

from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.history.client import HistoryClient
from fairlead.matching.messages import ADD, POLL, AddRequest, NewTask, PollRequest, PollResponse
from fairlead.rpc.hosts.caller import Method, Request, Response
from fairlead.server.frontend_server import Drain, DrainingCaller, DrainingHistory
from tests.patience import step

ORDERS = Partition(TaskQueueId("default", "orders", TaskType.WORKFLOW), 0)


class Waiting:
    """A host without tasks; records the cancelled calls."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.append(method.name)
            raise
        raise AssertionError


def poll(caller: DrainingCaller) -> "asyncio.Task[PollResponse]":
    request = PollRequest(ORDERS, "worker", "poll-1", timeout_s=60)
    return asyncio.create_task(caller.call("host", POLL, request, timeout_s=60))


async def test_draining_cancels_waiting_polls_and_answers_them_empty() -> None:
    hosts = Waiting()
    drain = Drain()
    caller = DrainingCaller(hosts, drain)
    polls = [poll(caller) for _ in range(3)]
    await asyncio.sleep(0)
    drain.begin()
    assert [(await one).task for one in polls] == [None, None, None]
    assert hosts.cancelled == [POLL.name] * 3
    assert not any(one.cancelling() for one in polls)


async def test_a_poll_during_draining_is_answered_at_once() -> None:
    hosts = Waiting()
    drain = Drain()
    caller = DrainingCaller(hosts, drain)
    drain.begin()
    assert (await poll(caller)).task is None
    assert hosts.cancelled == []


async def test_draining_does_not_hide_that_a_polls_caller_cancelled_it() -> None:
    drain = Drain()
    caller = DrainingCaller(Waiting(), drain)
    polling = poll(caller)
    await asyncio.sleep(0)
    polling.cancel()
    drain.begin()
    with pytest.raises(asyncio.CancelledError):
        await polling


async def test_other_calls_continue_during_draining() -> None:
    drain = Drain()
    caller = DrainingCaller(Waiting(), drain)
    task = NewTask(priority=3, fairness_key="", weight=1.0, payload=b"")
    adding = asyncio.create_task(caller.call("host", ADD, AddRequest(ORDERS, task), timeout_s=60))
    await asyncio.sleep(0)
    drain.begin()
    await step()
    assert not adding.done()
    adding.cancel()


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
    ) -> bytes:
        self.asked.append(name)
        await asyncio.sleep(timeout_s)
        return b"no news"


@pytest.mark.parametrize("drains_before", [True, False])
async def test_a_long_poll_for_the_end_of_a_workflow_returns_without_news_during_draining(drains_before: bool) -> None:
    drain, history = Drain(), NoNews()
    client = DrainingHistory(history, drain)
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
    client = DrainingHistory(history, drain)
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
    client = DrainingHistory(NoNews(), drain)
    request = SignalWorkflowExecutionRequest()
    signalling = asyncio.create_task(client.call("SignalWorkflowExecution", "n", "w", request, timeout_s=0.05))
    await asyncio.sleep(0)
    drain.begin()
    assert await signalling == b"no news"
