"""Matching's journal records, from a cluster in one process."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from fairlead.core.partitions import STICKY, Partition, TaskQueueId, TaskType
from fairlead.journal import Journal, read_segment
from fairlead.matching.messages import AddRequest, NewTask, PollRequest, QueueKind
from fairlead.server import LocalCluster
from fairlead.settings import DynamicSettings, Plain
from fairlead.telemetry import Metrics
from tests.patience import step, until

ORDERS = TaskQueueId("ns", "orders", TaskType.ACTIVITY)


class JournaledCluster:
    """A cluster with a journal, and the journal's records after the cluster has stopped."""

    def __init__(self, folder: Path, **overrides: Plain) -> None:
        self._folder = folder
        self.settings = DynamicSettings(overrides={key.replace("_", "."): value for key, value in overrides.items()})

    async def __aenter__(self) -> LocalCluster:
        self._journal = await Journal.open(
            self._folder, cluster="c", host="host-0", settings=self.settings, metrics=Metrics()
        )
        self._cluster = LocalCluster(settings=self.settings, journal=self._journal.tasks())
        return await self._cluster.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.__aexit__()
        await self._journal.close()

    def records(self, *kinds: str) -> list[dict[str, Any]]:
        found = [one for path in sorted(self._folder.glob("c/task.*.zst")) for one in read_segment(path)]
        return [one for one in found if one["kind"] in kinds] if kinds else found


def task(key: str = "tenant", *, weight: float = 2.0) -> NewTask:
    return NewTask(3, key, weight, b"payload")


async def _polls(cluster: LocalCluster) -> bool:
    """Whether a poll waits at the root."""
    description = await cluster.operator().describe(ORDERS)
    return any(one.polls_waiting for one in description.partitions.values())


async def test_a_sync_matched_task_has_records_of_its_add_and_match(tmp_path: Path) -> None:
    journaled = JournaledCluster(tmp_path)
    async with journaled as cluster:
        client = cluster.client()
        polling = asyncio.create_task(client.poll(ORDERS, "worker", timeout_s=10))
        await until(lambda: _polls(cluster))
        await client.add(ORDERS, task())
        await polling
    added, matched = journaled.records("added", "matched", "acked")
    common = {
        "namespace_id": "ns",
        "task_list": "orders",
        "task_type": 2,
        "partition": 0,
        "host": "host-0",
        "fairness_key": "tenant",
        "weight": 2.0,
        "priority": 3,
    }
    assert added == {"time_us": added["time_us"], "kind": "added", **common}
    assert matched == {
        "time_us": matched["time_us"],
        "kind": "matched",
        **common,
        "was_sync": True,
        "was_forwarded": False,
        "wait_us": matched["wait_us"],
    }
    assert 0 <= matched["wait_us"] <= 1_000_000
    assert added["time_us"] <= matched["time_us"]


async def test_a_backlogged_task_has_a_match_record_and_an_ack_record_with_its_pass(tmp_path: Path) -> None:
    journaled = JournaledCluster(tmp_path)
    async with journaled as cluster:
        client = cluster.client()
        for _ in range(3):
            await client.add(ORDERS, task())
        # The waiting time of the tasks that the records must show.
        await asyncio.sleep(0.2)
        for _ in range(3):
            assert (await client.poll(ORDERS, "worker", timeout_s=10)).task is not None
    assert Counter(one["kind"] for one in journaled.records("added", "matched", "acked")) == {
        "added": 3,
        "matched": 3,
        "acked": 3,
    }
    matched, acked = journaled.records("matched"), journaled.records("acked")
    assert [one["was_sync"] for one in matched] == [False] * 3
    assert all(one["wait_us"] >= 200_000 for one in matched)
    passes = [one["pass"] for one in matched]
    assert passes == sorted(set(passes))
    assert [one["pass"] for one in acked] == passes


async def test_a_record_has_the_effective_weight(tmp_path: Path) -> None:
    journaled = JournaledCluster(tmp_path, matching_fairnessKeyWeights={"tenant": 5.0})
    async with journaled as cluster:
        client = cluster.client()
        await client.add(ORDERS, task())
        await client.add(ORDERS, task("another", weight=0.0))
    assert [one["weight"] for one in journaled.records("added")] == [5.0, 1.0]


async def test_an_empty_poll_is_recorded_only_at_the_polled_partition_with_its_wait(tmp_path: Path) -> None:
    journaled = JournaledCluster(tmp_path, matching_numTasklistReadPartitions=2, matching_numTasklistWritePartitions=2)
    async with journaled as cluster:
        service = next(iter(cluster.hosts.values())).matching
        # The root has to be loaded first: it decides the number of partitions.
        await service.add(AddRequest(Partition(ORDERS, 0), task()))
        await service.poll(PollRequest(Partition(ORDERS, 0), "worker", "poll-0", 5.0))
        answer = await service.poll(PollRequest(Partition(ORDERS, 1), "worker", "poll-1", 0.6))
        assert answer.task is None
    (empty,) = journaled.records("poll_empty")
    assert empty["partition"] == 1
    assert 400_000 <= empty["wait_us"] <= 3_000_000


async def test_a_forwarded_task_has_a_forward_record_at_the_child_and_a_match_record_at_the_parent(
    tmp_path: Path,
) -> None:
    journaled = JournaledCluster(tmp_path, matching_numTasklistReadPartitions=2, matching_numTasklistWritePartitions=2)
    async with journaled as cluster:
        service = next(iter(cluster.hosts.values())).matching
        polling = asyncio.ensure_future(service.poll(PollRequest(Partition(ORDERS, 0), "worker", "poll-0", 10.0)))
        await until(lambda: _polls(cluster))
        answer = await service.add(AddRequest(Partition(ORDERS, 1), task()))
        assert answer.is_started
        await polling
    (added,), (forwarded,), (matched,) = (
        journaled.records("added"),
        journaled.records("forwarded"),
        journaled.records("matched"),
    )
    assert (added["partition"], forwarded["partition"], matched["partition"]) == (1, 1, 0)
    assert matched["was_forwarded"] is True
    assert matched["was_sync"] is True
    assert forwarded["fairness_key"] == "tenant"


async def test_each_partition_records_its_configurations(tmp_path: Path) -> None:
    journaled = JournaledCluster(tmp_path)
    async with journaled as cluster:
        await cluster.client().add(ORDERS, task())
        await cluster.operator().update(ORDERS, read=3, write=3, force=False)
    at_root = [
        (one["version"], one["read"], one["write"]) for one in journaled.records("config") if one["partition"] == 0
    ]
    assert at_root == [(1, 1, 1), (2, 3, 3)]


async def test_a_backlog_is_recorded_at_intervals_and_its_end_once(tmp_path: Path) -> None:
    journaled = JournaledCluster(tmp_path, journal_backlogInterval="100ms")
    async with journaled as cluster:
        client = cluster.client()
        for _ in range(4):
            await client.add(ORDERS, task())
        # Records are readable only after the end: wait for a few intervals.
        await asyncio.sleep(0.5)
        for _ in range(4):
            await client.poll(ORDERS, "worker", timeout_s=10)
        # The end of the backlog is recorded at the next interval.
        await asyncio.sleep(0.3)
    snapshots = journaled.records("backlog")
    # On a busy machine, an interval may end while the tasks are being added.
    full = [one for one in snapshots if one["tasks"] == 4]
    assert full[0]["pollers"] == 0
    ages = [one["age_us"] for one in full]
    assert len(ages) >= 2
    assert ages == sorted(ages)
    assert [one["tasks"] for one in snapshots].count(0) == 1


async def test_all_sticky_task_queues_of_a_namespace_have_one_name_in_the_journal(tmp_path: Path) -> None:
    journaled = JournaledCluster(tmp_path)
    async with journaled as cluster:
        service = next(iter(cluster.hosts.values())).matching
        place = Partition(TaskQueueId("ns", "worker-4711", TaskType.WORKFLOW), 0)
        polling = asyncio.ensure_future(service.poll(PollRequest(place, "worker", "poll", 10.0, kind=QueueKind.STICKY)))
        await step()
        await service.add(AddRequest(place, task(), kind=QueueKind.STICKY))
        await polling
    assert {one["task_list"] for one in journaled.records("added", "matched")} == {STICKY}
