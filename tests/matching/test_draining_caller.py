"""A frontend that drains answers waiting polls, so that workers move to another host."""

import asyncio

import pytest

from fairlead.aio.drain import Drain
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.draining_caller import DrainingCaller
from fairlead.matching.messages import ADD, POLL, AddRequest, NewTask, PollRequest, PollResponse
from fairlead.rpc.hosts.caller import Method, Request, Response
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
