"""Partition counts come from the settings or from the database; a switch between them strands no task.

TQ-8, SC-16.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from fairlead.core.partitions import Partition, PartitionConfig, PartitionCounts
from fairlead.matching.messages import CountsInfo, DescribeResponse
from fairlead.matching.operator_client import OperatorClient, TaskQueueDescription
from fairlead.matching.partition.manager import PartitionManager
from fairlead.settings import Plain
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import QueueId
from tests.matching.hosts import ORDERS, Hosts, add_to, at, hosts, new, partitions, poll_at
from tests.simulators.matching.settings import ChangingSettings
from tests.virtual_time import on_virtual_time

FROM_SETTINGS: dict[str, Plain] = {"matching.enableGetNumberOfPartitionsFromCache": False}
ROOT = QueueId(*ORDERS)
TASKS = [str(number) for number in range(20)]


def operator(there: Hosts) -> OperatorClient:
    host = next(iter(there.values()))
    return OperatorClient(there.network.caller(), host.ring, random=lambda: 0.5)


async def describe(there: Hosts) -> TaskQueueDescription:
    return await operator(there).describe(ORDERS)


async def root_of(there: Hosts) -> DescribeResponse:
    return (await describe(there)).partitions[0]


async def counts_of(there: Hosts) -> CountsInfo:
    counts = (await root_of(there)).counts
    assert counts is not None
    return counts


async def until(there: Hosts, holds: Callable[[DescribeResponse, CountsInfo], bool]) -> DescribeResponse:
    """Wait until `holds` is true for the root's description."""
    async with asyncio.timeout(60):
        while True:
            root = await root_of(there)
            if root.counts is not None and holds(root, root.counts):
                return root
            await asyncio.sleep(0.05)


async def in_force(there: Hosts, read: int, write: int | None = None) -> PartitionConfig:
    """Wait until the root uses these counts."""
    wanted = PartitionCounts(read, write or read)
    return (await until(there, lambda root, _: root.config.counts == wanted)).config


async def add_all(there: Hosts) -> None:
    for payload in TASKS:
        await there.client.add(ORDERS, new(payload))


async def poll_all(there: Hosts, count: int = len(TASKS)) -> list[str]:
    """Poll through the client until `count` tasks have come or a poll times out; returns the tasks in order."""
    got: list[str] = []
    while len(got) < count:
        task = (await there.client.poll(ORDERS, "worker", timeout_s=20)).task
        if task is None:
            break
        got.append(task.decode())
    return sorted(got, key=int)


def manager(there: Hosts, number: int) -> PartitionManager:
    (found,) = [
        one for host in there.values() for one in host.service.engine.managers() if one.partition_id == at(number)
    ]
    return found


@on_virtual_time
async def test_no_task_is_stranded_when_the_source_changes_to_the_settings_and_back() -> None:
    settings = ChangingSettings()
    async with hosts(settings=settings) as there:
        await there.client.add(ORDERS, new("0"))
        assert await poll_all(there, 1) == ["0"]
        settings.change(FROM_SETTINGS | partitions(4))
        await in_force(there, 4)
        await add_all(there)
        assert sum(1 for number in range(1, 4) if manager(there, number).queue.backlog.priorities.tasks) == 3
        settings.change({})
        await in_force(there, 4, 1)
        assert await poll_all(there) == TASKS
        assert (await in_force(there, 1)).version == 4
        assert await counts_of(there) == CountsInfo(False, PartitionCounts(1, 1), PartitionCounts(1, 1), [])


@on_virtual_time
async def test_no_task_is_stranded_when_the_source_changes_to_settings_with_fewer_partitions() -> None:
    settings = ChangingSettings(overrides=partitions(4))
    async with hosts(settings=settings) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_all(there)
        settings.change(FROM_SETTINGS)
        await in_force(there, 4, 1)
        assert (await describe(there)).total().tasks == 20
        assert await poll_all(there) == TASKS
        await in_force(there, 1)
        assert await counts_of(there) == CountsInfo(True, PartitionCounts(1, 1), PartitionCounts(4, 4), [])
        settings.change({})
        await in_force(there, 4)


@on_virtual_time
async def test_a_switch_interrupted_by_a_restart_continues_afterwards() -> None:
    settings = ChangingSettings(overrides=partitions(4))
    store = MemoryStore()
    async with hosts(settings=settings, store=store) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_all(there)
        settings.change(FROM_SETTINGS)
        await in_force(there, 4, 1)
        await there.remove("one")
        await there.add("two")
        assert (await describe(there)).total().tasks == 20
        assert await poll_all(there) == TASKS
        await in_force(there, 1)


@on_virtual_time
async def test_no_task_is_stranded_when_settings_change_while_no_host_runs() -> None:
    settings = ChangingSettings(overrides=FROM_SETTINGS | partitions(4))
    async with hosts(settings=settings) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_all(there)
        await there.remove("one")
        settings.change({})
        await there.add("two")
        assert await poll_all(there) == TASKS


@on_virtual_time
async def test_a_poll_gets_a_task_that_another_partition_stored_before_a_restart() -> None:
    async with hosts(overrides=FROM_SETTINGS | partitions(6)) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_to(there, 5, "stored")
        await there.remove("one")
        await there.add("two")
        assert (await poll_at(there, 3, timeout_s=10)).task == b"stored"


@on_virtual_time
async def test_a_client_without_settings_uses_the_partition_counts_of_the_server() -> None:
    """Such a client is the public one, `fairlead.client.connect`."""
    async with hosts(overrides=FROM_SETTINGS | partitions(4)) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_all(there)
        tasks = {number: answer.report.tasks for number, answer in (await describe(there)).partitions.items()}
        assert sorted(tasks) == [0, 1, 2, 3]
        assert all(tasks.values())


@on_virtual_time
async def test_no_task_is_stranded_if_the_stored_counts_are_lost_and_the_version_still_rises() -> None:
    settings = ChangingSettings(overrides=partitions(4))
    store = MemoryStore()
    async with hosts(settings=settings, store=store) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        for write in (3, 2, 4):
            await operator(there).update(ORDERS, read=4, write=write)
        assert (await root_of(there)).config == PartitionConfig(4, 4, 4)
        await add_all(there)
        store._queues[ROOT].config = store._queues[ROOT].rules = None
        settings.change({})
        there["one"].service.engine._unload(at(0))
        # The client and the loaded partitions still use version 4.
        await there.client.add(ORDERS, new("20"))
        assert (await describe(there)).total().tasks == 21
        assert await poll_all(there, 21) == [*TASKS, "20"]
        await until(there, lambda root, _: root.config.version > 4)
        await there.client.add(ORDERS, new("21"))
        assert await poll_all(there, 1) == ["21"]
        assert (await root_of(there)).config.counts == PartitionCounts(1, 1)


@on_virtual_time
async def test_all_partitions_agree_on_the_counts_after_the_stored_ones_were_lost() -> None:
    settings = ChangingSettings(overrides=partitions(4))
    store = MemoryStore()
    async with hosts(settings=settings, store=store) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_all(there)
        assert (await root_of(there)).config == PartitionConfig(1, 4, 4)
        store._queues[ROOT].config = store._queues[ROOT].rules = None
        settings.change(partitions(2))
        there["one"].service.engine._unload(at(0))
        await in_force(there, 2)
        assert await poll_all(there) == TASKS
        root = await until(there, lambda _, counts: not counts.outside)
        assert {one.configs.config for one in there["one"].service.engine.managers()} == {root.config}


@on_virtual_time
async def test_partitions_removed_by_force_are_drained_and_shown_until_they_are_empty() -> None:
    async with hosts(overrides=partitions(4)) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_all(there)
        await operator(there).update(ORDERS, read=1, write=1, force=True)
        description = await describe(there)
        assert description.partitions[0].counts is not None
        assert description.partitions[0].counts.outside == [1, 2, 3]
        assert description.total().tasks == 20
        assert await poll_all(there) == TASKS
        await until(there, lambda _, counts: not counts.outside)


@on_virtual_time
async def test_partitions_removed_by_force_are_drained_after_a_restart() -> None:
    async with hosts(overrides=partitions(4)) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await add_all(there)
        await operator(there).update(ORDERS, read=1, write=1, force=True)
        await there.remove("one")
        await there.add("two")
        assert (await describe(there)).total().tasks == 20
        assert await poll_all(there) == TASKS


@on_virtual_time
async def test_an_update_while_the_settings_are_the_source_is_planned_for_the_database() -> None:
    """SC-16: write the counts to the database first, then switch the source."""
    settings = ChangingSettings(overrides=FROM_SETTINGS | partitions(4))
    async with hosts(settings=settings) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        assert await counts_of(there) == CountsInfo(True, PartitionCounts(4, 4), None, [])
        answer = await operator(there).update(ORDERS, read=6, write=5)
        assert answer.is_planned
        assert (answer.before.counts, answer.after.counts) == (PartitionCounts(4, 4), PartitionCounts(6, 5))
        assert (await root_of(there)).config == PartitionConfig(1, 4, 4)
        assert await counts_of(there) == CountsInfo(True, PartitionCounts(4, 4), PartitionCounts(6, 5), [])
        # The plan survives a restart.
        await there.remove("one")
        await there.add("two")
        settings.change(partitions(4))
        assert await in_force(there, 6, 5) == PartitionConfig(2, 6, 5)
        assert await counts_of(there) == CountsInfo(False, PartitionCounts(4, 4), PartitionCounts(6, 5), [])
        # Switch back to the settings.
        settings.change(FROM_SETTINGS | partitions(6, 5))
        assert (await until(there, lambda _, counts: counts.is_from_settings)).config == PartitionConfig(2, 6, 5)


@on_virtual_time
async def test_the_scaler_starts_from_the_planned_counts_and_waits_while_the_settings_are_the_source() -> None:
    scaler: dict[str, Plain] = {
        "matching.enableAdaptiveScaler": True,
        "matching.partitionDownscaleSustainedDuration": "0s",
        "matching.adaptiveScalerUpdateInterval": "1s",
        "matching.qpsTrackerInterval": "1s",
    }
    settings = ChangingSettings(overrides=FROM_SETTINGS | partitions(4) | scaler)
    async with hosts(settings=settings) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        await operator(there).update(ORDERS, read=3, write=2)
        await asyncio.sleep(30)
        assert (await root_of(there)).config == PartitionConfig(1, 4, 4)
        explained = await operator(there).explain(ORDERS)
        assert (explained.enabled, explained.waits_for) == (False, "the settings are the source of the counts")
        settings.change(partitions(4) | scaler)
        await in_force(there, 1)
        assert (await operator(there).explain(ORDERS)).waits_for == ""
        assert (await operator(there).explain(ORDERS)).changes[0].action == "database"


@on_virtual_time
async def test_only_a_change_of_the_counts_raises_the_version() -> None:
    settings = ChangingSettings(overrides=FROM_SETTINGS | partitions(4))
    async with hosts(settings=settings) as there:
        await there.client.poll(ORDERS, "worker", timeout_s=2)
        for overrides in (partitions(4), FROM_SETTINGS | partitions(4), partitions(4)):
            settings.change(overrides)
            await asyncio.sleep(5)
        assert (await root_of(there)).config == PartitionConfig(1, 4, 4)


@pytest.mark.parametrize("number", [1, 3])
def test_a_removed_partition_takes_no_new_task(number: int) -> None:
    @on_virtual_time
    async def check() -> None:
        async with hosts(overrides=partitions(4)) as there:
            await there.client.poll(ORDERS, "worker", timeout_s=2)
            await operator(there).update(ORDERS, read=1, write=1, force=True)
            await asyncio.sleep(1)
            await add_all(there)
            stored = Counter(
                one.partition_id for one in there["one"].service.engine.managers() if one.queue.backlog.priorities.tasks
            )
            assert stored == {Partition(ORDERS, 0): 1}
            assert manager(there, number).configs.config.counts == PartitionCounts(1, 1)

    check()
