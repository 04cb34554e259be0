"""The description of a task queue: totals over its partitions, statistics by priority, and its pollers."""

import asyncio

import msgspec
import pytest

from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import (
    BacklogReport,
    DescribeResponse,
    Forwarded,
    KeyInfo,
    PollerInfo,
    PollRequest,
    PriorityStats,
)
from fairlead.matching.operator_client import OperatorClient, TaskQueueDescription
from fairlead.matching.partition.dispatch_counts import RECENT_BUCKET_S, RECENT_S
from fairlead.matching.partition.priority_rates import RATE_BUCKET_S, PriorityRates
from fairlead.matching.service import WORKER_BYTES_MAX, InvalidRequest
from fairlead.settings import Plain
from tests.matching.hosts import ORDERS, Hosts, add_to, at, hosts, new, partitions, poll_at
from tests.virtual_time import on_virtual_time

CONFIG = PartitionConfig(version=1, read=2, write=2)


def operator(there: Hosts) -> OperatorClient:
    return OperatorClient(there.network.caller(), next(iter(there.values())).ring, random=lambda: 0.5)


def answer(number: int, *stats: PriorityStats, pollers: tuple[PollerInfo, ...] = ()) -> DescribeResponse:
    return DescribeResponse(
        partition=number,
        host="host",
        config=CONFIG,
        report=BacklogReport(number, 0, 0.0, 0.0, 0.0),
        dispatches_per_s=0.0,
        polls_waiting=0,
        tasks_loaded=0,
        range_id=1,
        pollers=list(pollers),
        priorities=[],
        scaler_adds_per_s=0.0,
        rate_limit_per_s=0.0,
        by_priority=list(stats),
    )


def test_the_statistics_are_summed_over_partitions_and_the_age_is_the_maximum() -> None:
    described = TaskQueueDescription(
        CONFIG,
        {
            0: answer(0, PriorityStats(1, 2, 5.0, 1.0, 0.5), PriorityStats(3, 10, 1.0, 2.0, 2.0)),
            1: answer(1, PriorityStats(3, 5, 7.0, 1.0, 3.0)),
        },
    )
    assert described.by_priority() == [PriorityStats(1, 2, 5.0, 1.0, 0.5), PriorityStats(3, 15, 7.0, 3.0, 5.0)]
    assert described.total() == PriorityStats(0, 17, 7.0, 4.0, 5.5)
    assert TaskQueueDescription(CONFIG).total() == PriorityStats(0, 0, 0.0, 0.0, 0.0)


def test_a_worker_that_polls_several_partitions_is_listed_once_with_its_last_poll() -> None:
    described = TaskQueueDescription(
        CONFIG,
        {
            0: answer(0, pollers=(PollerInfo("a", 10.0, 1.0, b"old"), PollerInfo("b", 12.0))),
            1: answer(1, pollers=(PollerInfo("a", 11.0, None, b"new"),)),
        },
    )
    assert described.pollers() == [PollerInfo("b", 12.0), PollerInfo("a", 11.0, None, b"new")]


def test_the_total_rate_is_the_sum_over_the_priorities() -> None:
    rates = PriorityRates(started_s=100.0)
    assert rates.rate(100.0) == 0.0
    for _ in range(10):
        rates.add(3, 101.0)
    for _ in range(5):
        rates.add(1, 103.0)
    now_s = 100.0 + RATE_BUCKET_S
    assert rates.rates(now_s) == {3: 2.0, 1: 1.0}
    assert rates.rate(now_s) == 3.0


@on_virtual_time
async def test_each_priority_reports_its_backlog_its_age_and_its_rates() -> None:
    async with hosts() as there:
        await there.client.add(ORDERS, new("old", priority=5))
        await asyncio.sleep(10)
        for number in range(3):
            await there.client.add(ORDERS, new(str(number), priority=1))
        await asyncio.sleep(5)
        assert (await poll_at(there, 0)).task == b"0"
        await asyncio.sleep(10)
        described = await operator(there).describe(ORDERS)
        first, last = described.by_priority()
        assert (first.priority, first.tasks, last.priority, last.tasks) == (1, 2, 5, 1)
        assert first.age_s == pytest.approx(15, abs=0.1)
        assert last.age_s == pytest.approx(25, abs=0.1)
        assert first.adds_per_s == pytest.approx(3 / 25, abs=0.01)
        assert first.dispatches_per_s == pytest.approx(1 / 25, abs=0.01)
        assert last.dispatches_per_s == 0.0
        total = described.total()
        assert (total.tasks, total.age_s) == (3, last.age_s)
        assert total.adds_per_s == pytest.approx(4 / 25, abs=0.01)
        assert described.partitions[0].report.adds_per_s == total.adds_per_s
        assert described.partitions[0].dispatches_per_s == total.dispatches_per_s


@on_virtual_time
async def test_the_total_includes_tasks_that_are_not_in_memory() -> None:
    async with hosts(overrides={"matching.getTasksBatchSize": 10, "matching.getTasksReloadAt": 5}) as there:
        for number in range(60):
            await there.client.add(ORDERS, new(str(number), priority=2 + number % 3))
        described = await operator(there).describe(ORDERS)
        assert described.total().tasks == 60
        assert [one.priority for one in described.by_priority()] == [2, 3, 4]
        assert all(10 <= one.tasks <= 30 for one in described.by_priority())


@on_virtual_time
async def test_the_worker_details_of_a_forwarded_poll_are_passed_to_the_start_of_its_task() -> None:
    started: list[tuple[bytes, str, bytes]] = []

    async def start(payload: bytes, identity: str, worker: bytes) -> bytes:
        started.append((payload, identity, worker))
        return payload

    # No tasks are forwarded, so only polls move between partitions.
    overrides: dict[str, Plain] = {**partitions(3), "matching.forwarderMaxOutstandingTasks": 0}
    async with hosts("one", "two", overrides=overrides, start=start) as there:
        for number in range(3):
            await poll_at(there, number, timeout_s=0.1)

        async def poll(number: int, worker: bytes) -> bytes | None:
            request = PollRequest(at(number), f"worker-{number}", f"poll {number}", 5.0, rate_per_s=9.0, worker=worker)
            service = there[there.client.route(at(number))].service
            return (await service.poll(request)).task

        # The poll arrives at a child, is forwarded to the root, and gets a task there.
        polling = asyncio.create_task(poll(1, b"build 1"))
        await asyncio.sleep(1)
        await add_to(there, 0, "at the root")
        assert await polling == b"at the root"
        # A task waits at a child, and the root sends a poll down to it.
        await add_to(there, 2, "below")
        await asyncio.sleep(2)
        assert await poll(0, b"build 2") == b"below"
        assert started == [(b"at the root", "worker-1", b"build 1"), (b"below", "worker-0", b"build 2")]
        pollers = {one.identity: one for one in (await operator(there).describe(ORDERS)).pollers()}
        assert (pollers["worker-1"].worker, pollers["worker-1"].rate_per_s) == (b"build 1", 9.0)
        assert (pollers["worker"].worker, pollers["worker"].rate_per_s) == (b"", None)


@on_virtual_time
async def test_a_poll_with_too_large_worker_details_is_rejected() -> None:
    async with hosts() as there:
        with pytest.raises(InvalidRequest, match="worker has"):
            await there.client.poll(ORDERS, "worker", timeout_s=1, worker=bytes(WORKER_BYTES_MAX + 1))


@on_virtual_time
async def test_describe_root_returns_the_configuration() -> None:
    async with hosts("one", "two", overrides=partitions(4)) as there:
        assert (await operator(there).describe_root(ORDERS)).config == PartitionConfig(version=1, read=4, write=4)


@on_virtual_time
async def test_a_description_counts_the_polls_and_tasks_that_a_partition_forwards_and_a_root_forwards_none() -> None:
    async with hosts(overrides=partitions(2)) as there:
        await operator(there).describe_root(ORDERS)
        await asyncio.sleep(2)
        polling = asyncio.create_task(poll_at(there, 1, timeout_s=30))
        await asyncio.sleep(1)
        await add_to(there, 0, "for the poll of the child")
        assert (await polling).task == b"for the poll of the child"
        polling = asyncio.create_task(poll_at(there, 0, timeout_s=30))
        await asyncio.sleep(1)
        await add_to(there, 1, "for the poll of the root")
        assert (await polling).task == b"for the poll of the root"
        await asyncio.sleep(6)
        described = (await operator(there).describe(ORDERS)).partitions
        assert described[0].forwarded is None
        forwarded = described[1].forwarded
        assert forwarded is not None
        assert (forwarded.tasks, forwarded.polls) == (1, 1)
        assert forwarded.tasks_per_s > 0
        assert forwarded.polls_per_s > 0
        await asyncio.sleep(120)
        later = (await operator(there).describe(ORDERS)).partitions[1].forwarded
        assert later == Forwarded(1, 1, 0.0, 0.0)


@on_virtual_time
async def test_the_dispatches_of_a_key_are_counted_since_the_start_and_over_the_last_minutes() -> None:
    async with hosts() as there:
        for number in range(3):
            await there.client.add(ORDERS, new(str(number), key="tenant"))
            await poll_at(there, 0)

        async def tenant() -> KeyInfo:
            root = (await operator(there).describe(ORDERS, keys_max=1)).partitions[0]
            assert root.keys_window_s == RECENT_S
            return root.keys[0]

        assert ((await tenant()).tasks_dispatched, (await tenant()).dispatched_lately) == (3, 3)
        # Polls keep the task queue loaded.
        for _ in range(6):
            await asyncio.sleep((RECENT_S + RECENT_BUCKET_S) / 6)
            await poll_at(there, 0, timeout_s=0.1)
        assert ((await tenant()).tasks_dispatched, (await tenant()).dispatched_lately) == (3, 0)


@on_virtual_time
async def test_the_first_keys_come_with_the_number_of_all_keys() -> None:
    async with hosts() as there:
        for number in range(7):
            await there.client.add(ORDERS, new(str(number), key=f"key-{number}"))
        described = (await operator(there).describe(ORDERS, keys_max=3)).partitions[0]
        assert (len(described.keys), described.keys_total) == (3, 7)


@on_virtual_time
async def test_a_key_is_held_only_while_polls_wait_for_its_limit() -> None:
    async with hosts(overrides={"matching.fairnessKeyRps": 0.01}) as there:
        for number in range(3):
            await there.client.add(ORDERS, new(str(number), key="tenant"))

        async def is_held() -> bool:
            return (await operator(there).describe(ORDERS, keys_max=1)).partitions[0].keys[0].is_held

        assert not await is_held()
        assert (await poll_at(there, 0)).task == b"0"
        assert (await poll_at(there, 0, timeout_s=5)).task is None
        assert await is_held()


def test_an_old_hosts_description_is_read_without_the_newer_fields() -> None:
    new_one = answer(0)
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(new_one))[:-3]
    read = msgspec.convert(old, DescribeResponse)
    assert (read.forwarded, read.keys_total, read.keys_window_s) == (None, 0, 0.0)
