"""How polls end when the frontend lets SDKs go."""

import asyncio

import pytest

from fairlead.cluster.calls import Answer, Method, Request
from fairlead.core.partitions import Partition, TaskList, TaskType
from fairlead.matching.messages import ADD, POLL, AddRequest, NewTask, PollAnswer, PollRequest
from fairlead.server.frontend_server import DrainingCaller

ORDERS = Partition(TaskList("default", "orders", TaskType.WORKFLOW), 0)


class Waiting:
    """A host that has no task; it notes whose calls were taken back."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def call(self, host: str, method: Method[Request, Answer], request: Request, *, timeout_s: float) -> Answer:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.append(method.name)
            raise
        raise AssertionError


def poll(caller: DrainingCaller) -> "asyncio.Task[PollAnswer]":
    request = PollRequest(ORDERS, "worker", "poll-1", timeout_s=60)
    return asyncio.create_task(caller.call("host", POLL, request, timeout_s=60))


async def test_polls_that_wait_are_taken_back_and_answered_empty() -> None:
    hosts = Waiting()
    caller = DrainingCaller(hosts)
    polls = [poll(caller) for _ in range(3)]
    await asyncio.sleep(0)
    caller.drain()
    assert [(await one).task for one in polls] == [None, None, None]
    assert hosts.cancelled == [POLL.name] * 3
    assert not any(one.cancelling() for one in polls)


async def test_polls_that_come_later_do_not_wait() -> None:
    hosts = Waiting()
    caller = DrainingCaller(hosts)
    caller.drain()
    assert (await poll(caller)).task is None
    assert hosts.cancelled == []


async def test_a_poll_whose_caller_has_gone_is_cancelled_all_the_same() -> None:
    caller = DrainingCaller(Waiting())
    polling = poll(caller)
    await asyncio.sleep(0)
    polling.cancel()
    caller.drain()
    with pytest.raises(asyncio.CancelledError):
        await polling


async def test_other_calls_go_on() -> None:
    caller = DrainingCaller(Waiting())
    task = NewTask(priority=3, fairness_key="", weight=1.0, payload=b"")
    adding = asyncio.create_task(caller.call("host", ADD, AddRequest(ORDERS, task), timeout_s=60))
    await asyncio.sleep(0)
    caller.drain()
    await asyncio.sleep(0.01)
    assert not adding.done()
    adding.cancel()
