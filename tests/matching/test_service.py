import asyncio
import math
from collections import Counter

import pytest

from fairlead.core.fairness import InvalidFairnessKey, InvalidWeight
from fairlead.core.partitions import InvalidName, NotDrained, PartitionConfig, WriteNotLowered
from fairlead.matching.messages import (
    ADD,
    DESCRIBE,
    UPDATE,
    AddRequest,
    DescribeRequest,
    DescribeResponse,
    PollRequest,
    QueueKind,
    StaleConfig,
    UpdateRequest,
)
from fairlead.matching.partition.limits import InvalidWorkerRate
from fairlead.matching.partition.task_validation import InvalidPoll, InvalidTask
from fairlead.matching.partition.task_writer import AppendQueueFull
from fairlead.matching.service import InvalidRequest
from fairlead.settings import Plain
from tests.matching.hosts import ORDERS, Hosts, add_to, at, hosts, new, partitions, poll_at
from tests.virtual_time import on_virtual_time


async def describe(there: Hosts, number: int) -> DescribeResponse:
    caller, host = there.network.caller(), there.client.route(at(number))
    return await caller.call(host, DESCRIBE, DescribeRequest(at(number), with_drain=True), timeout_s=5)


async def load_all(there: Hosts, *, partitions: int) -> None:
    """Load the root, which loads all other partitions."""
    await describe(there, 0)
    await there.loaded(partitions=partitions)
    # A new client asks the root first.
    await there.client.add(ORDERS, new("first"))
    assert (await there.client.poll(ORDERS, "worker", timeout_s=5)).task == b"first"


async def poll_until_empty(there: Hosts, number: int) -> list[bytes]:
    got = []
    while (answer := await poll_at(there, number, timeout_s=5)).task is not None:
        got.append(answer.task)
    return got


@on_virtual_time
async def test_tasks_and_polls_of_a_client_match_across_partitions() -> None:
    """TQ-1: callers see one task queue."""
    async with hosts("one", "two", "three", overrides=partitions(4)) as there:

        async def poll() -> list[bytes]:
            got = []
            while (answer := await there.client.poll(ORDERS, "worker", timeout_s=1)).task is not None:
                got.append(answer.task)
            return got

        polls = [asyncio.create_task(poll()) for _ in range(8)]
        answers = await asyncio.gather(*(there.client.add(ORDERS, new(str(number))) for number in range(200)))
        polled = await asyncio.gather(*polls)
        assert Counter(int(task) for tasks in polled for task in tasks) == Counter(range(200))
        assert answers[-1].config == PartitionConfig(version=1, read=4, write=4)


# --- forwarding in the tree


@on_virtual_time
async def test_a_task_is_matched_with_a_poll_that_waits_at_another_partition() -> None:
    """TQ-3, TQ-4: a task at partition 5 and a poll at partition 3 meet at the root."""
    async with hosts("one", "two", overrides={**partitions(6), "matching.forwarderMaxChildrenPerNode": 2}) as there:
        await load_all(there, partitions=6)
        poll = asyncio.create_task(poll_at(there, 3))
        await asyncio.sleep(0.1)
        assert await add_to(there, 5, "a") is True
        answer = await poll
        assert (answer.task, answer.was_forwarded) == (b"a", True)
        assert (await describe(there, 5)).report.tasks == 0


@on_virtual_time
async def test_a_forwarded_task_without_a_match_is_stored_by_the_child_not_by_the_parent() -> None:
    """FL-3."""
    async with hosts(overrides=partitions(2)) as there:
        await load_all(there, partitions=2)
        assert await add_to(there, 1, "a") is False
        child, root = await describe(there, 1), await describe(there, 0)
        assert child.drain is not None
        assert root.drain is not None
        assert (child.drain.stored_tasks, root.drain.stored_tasks) == (1, 0)


@on_virtual_time
async def test_a_poll_at_the_parent_is_recalled_when_a_task_arrives_at_its_own_partition() -> None:
    """FL-8: a forwarded poll still gets tasks of its own partition."""
    overrides = {**partitions(2), "matching.forwarderMaxOutstandingTasks": 0}
    async with hosts(overrides=overrides) as there:
        await load_all(there, partitions=2)
        poll = asyncio.create_task(poll_at(there, 1, timeout_s=50))
        await asyncio.sleep(1)
        assert (await describe(there, 0)).polls_waiting == 1
        assert await add_to(there, 1, "a") is False
        began_s = asyncio.get_running_loop().time()
        assert (await poll).task == b"a"
        assert asyncio.get_running_loop().time() - began_s < 0.1


@on_virtual_time
async def test_the_number_of_polls_that_wait_at_the_parent_is_bounded() -> None:
    """TQ-6: the bound is `matching.forwarderMaxOutstandingPolls`."""
    overrides = {**partitions(2), "matching.forwarderMaxOutstandingPolls": 3}
    async with hosts(overrides=overrides) as there:
        await load_all(there, partitions=2)
        polls = [asyncio.create_task(poll_at(there, 1, timeout_s=20)) for _ in range(10)]
        await asyncio.sleep(1)
        assert ((await describe(there, 0)).polls_waiting, (await describe(there, 1)).polls_waiting) == (3, 7)
        assert [answer.task for answer in await asyncio.gather(*polls)] == [None] * 10
        assert ((await describe(there, 0)).polls_waiting, (await describe(there, 1)).polls_waiting) == (0, 0)


@on_virtual_time
async def test_a_cancelled_poll_is_cancelled_at_the_parent_too() -> None:
    async with hosts("one", "two", overrides=partitions(3)) as there:
        await load_all(there, partitions=3)
        poll = asyncio.create_task(poll_at(there, 2, timeout_s=50))
        await asyncio.sleep(1)
        assert (await describe(there, 0)).polls_waiting == 1
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        assert (await describe(there, 0)).polls_waiting == 0
        assert await add_to(there, 2, "a") is False
        assert (await poll_at(there, 2)).task == b"a"


async def _drain_s(there: Hosts, *, polls: int, tasks: int) -> float:
    """The time in seconds that polls at the root need to drain another partition; each poll works 10 ms on a task."""
    await load_all(there, partitions=4)
    await asyncio.gather(*(add_to(there, 3, str(number)) for number in range(tasks)))
    began_s = asyncio.get_running_loop().time()
    left = set(range(tasks))

    async def work() -> None:
        while left:
            answer = await poll_at(there, 0, timeout_s=20)
            if answer.task is not None:
                left.discard(int(answer.task))
                await asyncio.sleep(0.01)

    workers = [asyncio.create_task(work()) for _ in range(polls)]
    while left:  # noqa: ASYNC110 - on virtual time it costs nothing
        await asyncio.sleep(0.01)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return asyncio.get_running_loop().time() - began_s


@on_virtual_time
async def test_polls_at_the_root_drain_the_backlog_of_a_child_at_full_speed() -> None:
    """FL-9: polls are sent down to the backlog. Forwarding tasks up the tree alone takes many times as long."""
    async with hosts("one", "two", overrides=partitions(4)) as there:
        sent_down_s = await _drain_s(there, polls=4, tasks=400)
    overrides = {**partitions(4), "matching.forwarderMaxOutstandingPollsDown": 0}
    async with hosts("one", "two", overrides=overrides) as there:
        upward_s = await _drain_s(there, polls=4, tasks=400)
    # Four polls of 10 ms each need one second for 400 tasks.
    assert 1.0 <= sent_down_s < 2.5
    assert upward_s > 30


# --- the configuration


@on_virtual_time
async def test_the_error_of_a_request_with_an_old_configuration_carries_the_new_one() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await there.client.add(ORDERS, new("a"))
        with pytest.raises(StaleConfig) as raised:
            await add_to(there, 2, "b")
        assert raised.value.config == PartitionConfig(version=1, read=2, write=2)
        with pytest.raises(StaleConfig):
            await poll_at(there, 2)


@on_virtual_time
async def test_partitions_are_removed_in_two_phases_and_no_task_is_lost() -> None:
    """SC-3: lower write, wait until drained, lower read."""
    async with hosts("one", "two", overrides=partitions(4)) as there:
        await load_all(there, partitions=4)
        for number in range(20):
            await add_to(there, 3, str(number))
        caller = there.network.caller()

        async def update(read: int, write: int) -> PartitionConfig:
            root = there.client.route(at(0))
            return (await caller.call(root, UPDATE, UpdateRequest(at(0), read, write), timeout_s=5)).after

        with pytest.raises(WriteNotLowered):
            await update(2, 2)
        assert await update(4, 2) == PartitionConfig(version=2, read=4, write=2)
        with pytest.raises(NotDrained):
            await update(2, 2)
        assert len(await poll_until_empty(there, 0)) == 20
        assert await update(2, 2) == PartitionConfig(version=3, read=2, write=2)
        # The client still has the first version: its add is retried with the new one.
        answer = await there.client.add(ORDERS, new("late"))
        assert answer.config.version == 3
        assert (await there.client.poll(ORDERS, "worker", timeout_s=5)).task == b"late"


@on_virtual_time
async def test_the_scaler_follows_the_load_up_and_down() -> None:
    """SC-9, SC-10, SC-11: read and write rise together; write falls first, read after the partitions have drained."""
    overrides: dict[str, Plain] = {
        "matching.enableAdaptiveScaler": True,
        "matching.partitionUpscaleRPS": 100,
        "matching.partitionUpscaleSustainedDuration": "3s",
        "matching.partitionDownscaleSustainedDuration": "3s",
        "matching.adaptiveScalerUpdateInterval": "1s",
        "matching.qpsTrackerInterval": "2s",
    }
    seen: list[PartitionConfig] = []
    async with hosts("one", "two", overrides=overrides) as there:

        async def load(rate: int, seconds: float) -> None:
            for _ in range(int(rate * seconds)):
                answer = await there.client.add(ORDERS, new("x"))
                if not seen or seen[-1] != answer.config:
                    seen.append(answer.config)
                await asyncio.sleep(1 / rate)

        async def work() -> None:
            while True:
                await there.client.poll(ORDERS, "worker", timeout_s=20)

        workers = [asyncio.create_task(work()) for _ in range(4)]
        await load(350, 20)
        await load(20, 30)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    counts = [(config.read, config.write) for config in seen]
    # The scaler raises the counts once, to exactly the needed number; then it only lowers them.
    assert counts[:2] == [(1, 1), (4, 4)]
    assert counts[1:] == sorted(counts[1:], reverse=True)
    assert counts[-1] == (1, 1)


# --- hosts that join and leave


@on_virtual_time
async def test_a_leaving_host_hands_its_partitions_over_without_a_failed_request() -> None:
    async with hosts("one", "two", "three", overrides=partitions(8)) as there:
        client = there.client
        added, polled = Counter[bytes](), Counter[bytes]()
        is_over = False

        async def produce(name: str) -> None:
            for number in range(300):
                await client.add(ORDERS, new(f"{name}-{number}"))
                added[f"{name}-{number}".encode()] += 1
                await asyncio.sleep(0.01)

        async def work() -> None:
            while not is_over:
                answer = await client.poll(ORDERS, "worker", timeout_s=2)
                if answer.task is not None:
                    polled[answer.task] += 1

        workers = [asyncio.create_task(work()) for _ in range(6)]
        producers = [asyncio.create_task(produce(str(number))) for number in range(4)]
        await asyncio.sleep(1)
        await there.remove("three")
        await asyncio.sleep(0.5)
        await there.add("four")
        await asyncio.sleep(0.5)
        await there.remove("two")
        await asyncio.gather(*producers)
        async with asyncio.timeout(30):
            while polled.keys() != added.keys():  # noqa: ASYNC110 - on virtual time it costs nothing
                await asyncio.sleep(0.1)
        is_over = True
        await asyncio.gather(*workers)
        assert len(added) == 1200


# --- limits


@on_virtual_time
async def test_the_rate_limit_of_a_task_queue_holds_over_all_partitions() -> None:
    overrides = {**partitions(4), "matching.overrideTaskListRps": 40}
    async with hosts("one", "two", overrides=overrides) as there:
        await load_all(there, partitions=4)
        await asyncio.gather(*(add_to(there, number % 4, str(number)) for number in range(400)))
        got = 0

        async def work() -> None:
            nonlocal got
            while True:
                if (await there.client.poll(ORDERS, "worker", timeout_s=5)).task is not None:
                    got += 1

        workers = [asyncio.create_task(work()) for _ in range(8)]
        await asyncio.sleep(5)
        # Each partition has a burst of one second, and then its share of the rate.
        assert 150 <= got <= 40 * 5 + 44
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


@on_virtual_time
async def test_the_lowest_rate_limit_of_the_workers_holds_until_they_leave() -> None:
    async with hosts() as there:
        await there.client.add(ORDERS, new("a"))
        await there.client.poll(ORDERS, "slow", timeout_s=1, rate_per_s=5)
        await there.client.poll(ORDERS, "fast", timeout_s=1, rate_per_s=50)
        assert (await describe(there, 0)).rate_limit_per_s == 5
        await asyncio.sleep(61)
        await there.client.poll(ORDERS, "fast", timeout_s=1, rate_per_s=60)
        assert (await describe(there, 0)).rate_limit_per_s == 60


# --- invalid input


@on_virtual_time
async def test_invalid_requests_are_rejected_with_the_reason_and_have_no_effect() -> None:
    """FL-18: the error names the field and its value."""
    async with hosts(overrides={"limit.blobSize.error": 100}) as there:
        add, poll = there.client.add, there.client.poll
        for name in ("", "x" * 1001, "/_sys/mine/1", "a\0b"):
            with pytest.raises(InvalidName):
                await add(ORDERS._replace(name=name), new("a"))
        with pytest.raises(InvalidTask, match="payload has 101 bytes"):
            await add(ORDERS, new("x" * 101))
        with pytest.raises(InvalidTask, match="priority is 0"):
            await add(ORDERS, new("a", priority=0))
        with pytest.raises(InvalidFairnessKey):
            await add(ORDERS, new("a", key="k" * 65))
        for weight in (-1.0, math.nan, math.inf):
            with pytest.raises(InvalidWeight):
                await add(ORDERS, new("a", weight=weight))
        with pytest.raises(InvalidRequest, match="identity has 1001 characters"):
            await poll(ORDERS, "w" * 1001, timeout_s=1)
        for rate_per_s in (-1.0, math.nan):
            with pytest.raises(InvalidWorkerRate):
                await poll(ORDERS, "worker", timeout_s=1, rate_per_s=rate_per_s)
        with pytest.raises(InvalidPoll, match="give more than 0"):
            await poll_at(there, 0, timeout_s=-0.5)
        for timeout_s in (0.0, -1.0, math.nan):
            with pytest.raises(InvalidPoll, match="give more than 0"):
                await there["one"].service.poll(PollRequest(at(0), "worker", "poll", timeout_s))
        sticky = AddRequest(at(1), new("a"), QueueKind.STICKY)
        with pytest.raises(InvalidRequest, match="sticky"):
            await there.network.caller().call("one", ADD, sticky, timeout_s=5)
        assert (await describe(there, 0)).report.tasks == 0


@on_virtual_time
async def test_a_full_append_queue_rejects_tasks_and_loses_none() -> None:
    overrides = {"matching.outstandingTaskAppendsThreshold": 5, "matching.maxTaskBatchSize": 1}
    async with hosts(overrides=overrides) as there:
        adds = [asyncio.create_task(there.client.add(ORDERS, new(str(number)))) for number in range(100)]
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert refused
        assert all(isinstance(outcome, AppendQueueFull) for outcome in refused)
        kept = {str(number).encode() for number, outcome in enumerate(outcomes) if not isinstance(outcome, Exception)}
        assert set(await poll_until_empty(there, 0)) == kept


# --- description


@on_virtual_time
async def test_a_partition_reports_its_backlog_its_age_and_its_top_keys() -> None:
    async with hosts() as there:
        for number in range(6):
            await there.client.add(ORDERS, new(str(number), key="big" if number < 4 else "small"))
        await asyncio.sleep(30)
        answer = await there.network.caller().call(
            "one", DESCRIBE, DescribeRequest(at(0), with_drain=True, keys_max=10), timeout_s=5
        )
        assert (answer.report.tasks, round(answer.report.age_s)) == (6, 30)
        assert answer.drain is not None
        assert answer.drain.stored_tasks == 6
        assert [(key.fairness_key, key.tasks_loaded) for key in answer.keys] == [("big", 4), ("small", 2)]
        assert answer.keys[0].lead > answer.keys[1].lead
        for _ in range(6):
            await there.client.poll(ORDERS, "worker", timeout_s=5)
        await asyncio.sleep(6)
        answer = await describe(there, 0)
        assert (answer.report.tasks, answer.report.age_s) == (0, 0)
        assert answer.dispatches_per_s > 0
        assert [poller.identity for poller in answer.pollers] == ["worker"]
