"""Forwarding of polls and tasks between partitions when calls are cancelled, late or rejected, or hosts are down."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from fairlead.core.errors import FairleadError, RetryLater
from fairlead.core.partitions import Partition, PartitionConfig
from fairlead.matching.client import POLL_MARGIN_S
from fairlead.matching.messages import POLL, PollRequest
from fairlead.matching.partition.dispatcher import Dispatcher
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.waiting_poll import Redirect, WaitingPoll
from fairlead.matching.task_starter import NotStarted
from fairlead.rpc.hosts.caller import CallLost, Method
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import QueueId, StoreUnavailable
from tests.matching.hosts import ORDERS, Hosts, add_to, at, hosts, new, partitions, poll_at
from tests.simulators.matching.settings import ChangingSettings
from tests.virtual_time import on_virtual_time


def manager(there: Hosts, number: int) -> PartitionManager:
    managers = there[there.client.route(at(number))].service.engine.managers()
    return next(one for one in managers if one.partition_id == at(number))


async def warm(there: Hosts, partitions: int) -> None:
    for number in range(partitions):
        await add_to(there, number, "warm")
        assert (await poll_at(there, number)).task == b"warm"
    # Virtual time.
    await asyncio.sleep(2)


async def stop(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@on_virtual_time
async def test_a_second_poll_is_forwarded_after_the_first_ended_without_a_task() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await warm(there, 2)
        assert (await poll_at(there, 1, timeout_s=5)).task is None
        polling = asyncio.create_task(poll_at(there, 1, timeout_s=60))
        await asyncio.sleep(3)
        began_s = asyncio.get_running_loop().time()
        await add_to(there, 0, "for the root")
        assert (await polling).task == b"for the root"
        assert asyncio.get_running_loop().time() - began_s < 2


@on_virtual_time
async def test_a_poll_cancelled_during_its_redirect_returns_its_forwarding_token() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await warm(there, 2)
        child = manager(there, 1)
        polling = asyncio.create_task(poll_at(there, 1, timeout_s=60))
        withdraw = Dispatcher.withdraw

        def withdraw_and_cancel(self: Dispatcher, poll: WaitingPoll, instead: Redirect | None = None) -> bool:
            done = withdraw(self, poll, instead)
            if instead is not None:
                polling.cancel()
            return done

        with patch.object(Dispatcher, "withdraw", withdraw_and_cancel):
            await asyncio.gather(polling, return_exceptions=True)
        assert polling.cancelled()
        assert child.dependencies.forwarder.polls_out == 0


@on_virtual_time
async def test_a_poll_whose_forwarding_fails_is_counted_and_waits_locally() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await warm(there, 2)
        child = manager(there, 1)
        before = child.counts.forwarded_polls
        ask = child.dependencies.peers.ask

        async def fail(partition: Partition, method: Method[Any, Any], request: Any, *, timeout_s: float) -> Any:
            if method is POLL:
                raise RetryLater("the parent can't be reached")
            return await ask(partition, method, request, timeout_s=timeout_s)

        child.dependencies.peers.ask = fail  # type: ignore[method-assign]
        polling = asyncio.create_task(poll_at(there, 1, timeout_s=60))
        await asyncio.sleep(3)
        assert child.counts.forwarded_polls_failed == child.counts.forwarded_polls - before > 0
        await add_to(there, 1, "here")
        assert (await polling).task == b"here"


@on_virtual_time
async def test_cancelled_forwarded_polls_leave_no_state_behind() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await warm(there, 2)
        for _ in range(50):
            polling = asyncio.create_task(poll_at(there, 1, timeout_s=60))
            await asyncio.sleep(0.6)
            await stop(polling)
        assert not manager(there, 0).idle_polls._from_children
        assert manager(there, 1).dependencies.forwarder.polls_out == 0


@on_virtual_time
async def test_the_rate_limit_of_a_worker_holds_at_the_partition_its_polls_are_sent_to() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await warm(there, 2)
        for number in range(40):
            await add_to(there, 1, str(number))
        got = Counter[str]()

        async def work() -> None:
            while True:
                if (await poll_at(there, 0, timeout_s=30, rate_per_s=2.0)).task is not None:
                    got["tasks"] += 1

        workers = [asyncio.create_task(work()) for _ in range(5)]
        await asyncio.sleep(5)
        await stop(*workers)
        assert 0 < got["tasks"] <= 14


@on_virtual_time
async def test_the_rate_limit_of_a_worker_ends_when_the_worker_is_gone() -> None:
    async with hosts() as there:
        await warm(there, 1)
        await add_to(there, 0, "first")
        await poll_at(there, 0, rate_per_s=0.01, identity="slow")
        await asyncio.sleep(120)
        for number in range(20):
            await add_to(there, 0, str(number))
        got = [(await poll_at(there, 0, timeout_s=1.0, identity="another")).task for _ in range(20)]
        assert None not in got


@on_virtual_time
async def test_a_task_that_history_rejects_is_stored_and_retried() -> None:
    tries = Counter[bytes]()

    async def refuse_at_first(payload: bytes, _identity: str, _worker: bytes) -> bytes | NotStarted:
        tries[payload] += 1
        await asyncio.sleep(0.001)
        return NotStarted.REFUSED if tries[payload] <= 10 else payload

    async with hosts(start=refuse_at_first) as there:
        polling = asyncio.create_task(poll_at(there, 0, timeout_s=20))
        await asyncio.sleep(1)
        assert await add_to(there, 0, "busy") is False
        assert (await polling).task == b"busy"
        assert tries[b"busy"] == 11
        assert manager(there, 0).queue.backlog.priorities.tasks == 0


@on_virtual_time
async def test_a_poll_recalled_before_it_arrives_at_the_parent_returns_at_once() -> None:
    async with hosts(overrides={**partitions(2), "matching.forwarderMaxOutstandingTasks": 0}) as there:
        await warm(there, 2)
        peers = manager(there, 1).dependencies.peers
        ask = peers.ask

        async def ask_slowly(partition: Partition, method: Any, request: Any, *, timeout_s: float) -> Any:
            if method is POLL:
                await asyncio.sleep(0.2)
            return await ask(partition, method, request, timeout_s=timeout_s)

        peers.ask = ask_slowly  # type: ignore[method-assign]
        polling = asyncio.create_task(poll_at(there, 1, timeout_s=60))
        await asyncio.sleep(0.1)
        began_s = asyncio.get_running_loop().time()
        await add_to(there, 1, "mine")
        assert (await polling).task == b"mine"
        assert asyncio.get_running_loop().time() - began_s < 0.5


@on_virtual_time
async def test_a_poll_sent_down_to_a_dead_host_gets_a_response_before_its_caller_times_out() -> None:
    async with hosts(overrides={**partitions(2), "matching.forwarderMaxOutstandingTasks": 0}) as there:
        await warm(there, 2)
        for number in range(3):
            await add_to(there, 1, str(number))
        peers = manager(there, 0).dependencies.peers
        ask = peers.ask

        async def ask_the_dead(partition: Partition, method: Any, request: Any, *, timeout_s: float) -> Any:
            if method is POLL and partition.number == 1:
                await asyncio.sleep(timeout_s)
                raise CallLost("no response")
            return await ask(partition, method, request, timeout_s=timeout_s)

        peers.ask = ask_the_dead  # type: ignore[method-assign]
        await asyncio.sleep(1.5)
        began_s = asyncio.get_running_loop().time()
        # Call the service directly: only the handler itself limits the time, as for a call from another host.
        assert (await there["one"].service.poll(PollRequest(at(0), "worker", "poll", 0.3))).task is None
        assert asyncio.get_running_loop().time() - began_s < 0.3 + POLL_MARGIN_S


@on_virtual_time
async def test_a_poll_that_waits_for_a_forwarding_token_is_forwarded_after_a_pause() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await warm(there, 2)
        first = asyncio.create_task(poll_at(there, 1, timeout_s=60))
        await asyncio.sleep(0.5)
        second = asyncio.create_task(poll_at(there, 1, timeout_s=60))
        await asyncio.sleep(0.5)
        # Pause the forwarder, as after a failed forwarding of a task.
        manager(there, 1).dependencies.forwarder.pause(0.5)
        await add_to(there, 0, "first")
        assert (await first).task == b"first"
        await asyncio.sleep(3)
        began_s = asyncio.get_running_loop().time()
        await add_to(there, 0, "second")
        assert (await second).task == b"second"
        assert asyncio.get_running_loop().time() - began_s < 1


@on_virtual_time
async def test_a_stored_task_that_cannot_be_started_does_not_fail_all_polls() -> None:
    failed = 0

    async def fail(_payload: bytes, _identity: str, _worker: bytes) -> bytes:
        raise StoreUnavailable("history does not respond")

    async with hosts(start=fail) as there:

        async def work() -> None:
            nonlocal failed
            while True:
                try:
                    await poll_at(there, 0, timeout_s=30)
                except FairleadError:
                    failed += 1

        await add_to(there, 0, "poison")
        workers = [asyncio.create_task(work()) for _ in range(5)]
        await asyncio.sleep(3)
        await stop(*workers)
        assert 0 < failed < 20


class FailsOnce:
    """A store that calls `then` at the next request for a lease, and fails the request."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None

    async def before(self, operation: str, queue: QueueId | None) -> None:
        if operation == "take_lease" and self.then is not None:
            then, self.then = self.then, None
            then()
            raise StoreUnavailable("not now")

    async def after(self, operation: str, queue: QueueId | None) -> None:
        """No faults after an operation."""


@on_virtual_time
async def test_a_request_during_a_failed_load_of_its_partition_is_served_at_once() -> None:
    faults = FailsOnce()
    async with hosts(store=MemoryStore(faults)) as there:
        second: list[asyncio.Task[bool]] = []
        faults.then = lambda: second.append(asyncio.create_task(add_to(there, 0, "second")))
        first = asyncio.create_task(add_to(there, 0, "first"))
        await asyncio.gather(first, return_exceptions=True)
        assert isinstance(first.exception(), StoreUnavailable)
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*second, return_exceptions=True)
        assert asyncio.get_running_loop().time() - began_s < 1


@on_virtual_time
async def test_a_partition_whose_settings_have_changed_is_loaded_again() -> None:
    settings = ChangingSettings(overrides={"matching.enableGetNumberOfPartitionsFromCache": False, **partitions(2)})
    async with hosts(settings=settings) as there:
        await warm(there, 2)
        settings.change({**partitions(2)})
        await asyncio.sleep(5)
        await there.client.add(ORDERS, new("a"))
        assert manager(there, 0).configs.config == PartitionConfig(version=1, read=2, write=2)
