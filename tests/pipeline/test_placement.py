"""The `placement` job, compared with the core's own router, one partition at a time."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fairlead.core.hashing import hash64
from fairlead.core.partitions import STICKY, Partition, TaskQueueId, TaskType
from fairlead.core.routing import GradualChange, HashRing, NoHosts, Router, basic_key, spread_key
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import placement
from fairlead.pipeline.kernels.routing import RingTooLarge, TaskQueues, ring_table
from fairlead.pipeline.schemas_placement import (
    LISTS,
    PLACEMENT,
    PLACEMENT_HOSTS,
    PLACEMENT_MOVES,
    PLACEMENT_SPOTS,
    PLACEMENT_TIMETABLE,
)
from fairlead.pipeline.stages.placement import (
    STEPS,
    Plan,
    comparison,
    host_loads,
    hot_spots,
    hourly_loads,
    moves,
    placed,
    recorded_lists,
    timetable,
    with_hashes,
)
from tests.pipeline.schemas import differences
from tests.pipeline.test_traffic import LakeOfFrames, frame_of

HOSTS = st.sets(st.text("abcdef0123.:", min_size=1, max_size=8), min_size=1, max_size=12)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
TASK_QUEUES = st.lists(st.tuples(NAMES, NAMES, st.sampled_from(TaskType), st.integers(1, 70)), min_size=1, max_size=6)


def partitions_of(task_list: TaskQueueId, count: int) -> list[Partition]:
    return [Partition(task_list, number) for number in range(count)]


def lists_of(drawn: list[tuple[str, str, TaskType, int]], *, batch_size: int) -> TaskQueues:
    basic, batches, counts = [], [], []
    for namespace_id, name, task_type, count in drawn:
        everything = partitions_of(TaskQueueId(namespace_id, name, task_type), count)
        basic += [hash64(basic_key(partition)) for partition in everything]
        firsts = everything[::batch_size]
        batches += [hash64(spread_key(partition, batch_size).key) for partition in firsts]
        counts.append(len(firsts))
    return TaskQueues(
        partitions=np.array([one[3] for one in drawn]),
        qps=np.ones(len(drawn)),
        basic=np.array(basic, np.uint64),
        batches=np.array(batches, np.uint64),
        batch_counts=np.array(counts),
    )


@given(hosts=HOSTS, drawn=TASK_QUEUES, batch_size=st.integers(0, 64), smaller=st.integers(1, 64))
def test_every_partition_has_the_owner_that_the_router_computes(
    hosts: set[str], drawn: list[tuple[str, str, TaskType, int]], batch_size: int, smaller: int
) -> None:
    drawn = [(namespace_id, name.removeprefix("/_sys/") or "x", *rest) for namespace_id, name, *rest in drawn]  # type: ignore[misc]
    # Batch keys do not depend on the batch size: keys computed for a smaller size also serve a larger one.
    lists = lists_of(drawn, batch_size=min(smaller, batch_size or 64))
    router = Router(HashRing(hosts), batch_size)
    expected = [
        router.route(partition, 0.0)
        for namespace_id, name, task_type, count in drawn
        for partition in partitions_of(TaskQueueId(namespace_id, name, task_type), count)
    ]
    table = ring_table(tuple(hosts), batch_size)
    assert [table.hosts[owner] for owner in lists.place(tuple(hosts), batch_size)] == expected


@given(drawn=TASK_QUEUES)
def test_the_steps_of_a_gradual_change_are_those_of_the_core(drawn: list[tuple[str, str, TaskType, int]]) -> None:
    drawn = [(namespace_id, name.removeprefix("/_sys/") or "x", *rest) for namespace_id, name, *rest in drawn]  # type: ignore[misc]
    change = GradualChange(0, 8, start_s=0.0, end_s=1.0)
    expected = [
        change.moment(basic_key(partition))
        for namespace_id, name, task_type, count in drawn
        for partition in partitions_of(TaskQueueId(namespace_id, name, task_type), count)
    ]
    assert lists_of(drawn, batch_size=8).moments().tolist() == pytest.approx(expected, rel=1e-12)


def test_a_split_list_of_task_queues_has_the_same_owners_as_the_whole() -> None:
    drawn = [("n", f"q{number}", TaskType.ACTIVITY, 1 + number % 7) for number in range(50)]
    lists, hosts = lists_of(drawn, batch_size=4), ("a", "b", "c")
    pieces = list(lists.cut(hosts=100_000))
    assert len(pieces) == 3
    for size in (0, 4):
        assert np.concatenate([one.place(hosts, size) for one in pieces]).tolist() == lists.place(hosts, size).tolist()


def test_rings_without_hosts_or_too_large_are_refused() -> None:
    with pytest.raises(NoHosts, match="name at least one"):
        ring_table((), 0)
    with pytest.raises(RingTooLarge, match="fewer hosts or smaller batches"):
        ring_table(tuple(f"host-{number}" for number in range(1_001)), 64)


TASKS = [
    ("n1", "orders", 1, 40, 80.0),
    ("n1", "päckchen", 2, 17, 3.0),
    ("n2", "a/b", 2, 1, 7.0),
    ("n2", "x", 3, 9, 0.0),
]


def routed(hosts: tuple[str, ...], batch_size: int) -> dict[Partition, str]:
    router = Router(HashRing(hosts), batch_size)
    return {
        partition: router.route(partition, 0.0)
        for namespace_id, name, task_type, count, _ in TASKS
        for partition in partitions_of(TaskQueueId(namespace_id, name, TaskType(task_type)), count)
    }


def qps_of(partition: Partition) -> float:
    return next(
        qps / count
        for namespace_id, name, task_type, count, qps in TASKS
        if partition.task_queue == (namespace_id, name, task_type)
    )


def test_the_tables_agree_with_the_router_for_each_partition(spark: SparkSession) -> None:
    hosts = ("c:1", "a:1", "b:1", "d:1", "e:1")
    plan = Plan(hosts, batch_sizes=(0, 4, 8), batch_size=4, leaving=("b:1",), joining=("f:1",))
    lists = spark.createDataFrame(TASKS, LISTS)
    found = placed(with_hashes(lists, batch_size=plan.smallest), plan).cache()
    by_size = {size: routed(hosts, size) for size in plan.batch_sizes}

    loads = {(row.batch_size, row.host): row for row in host_loads(found).collect()}
    for size, owners in by_size.items():
        counts = Counter(owners.values())
        assert {host: loads[size, host].partitions for host in hosts} == {host: counts[host] for host in hosts}
        rates = Counter[str]()
        for partition, host in owners.items():
            rates[host] += qps_of(partition)  # type: ignore[assignment]
        assert [loads[size, host].qps for host in hosts] == pytest.approx([rates[host] for host in hosts])

    for row in comparison(found).collect():
        together: dict[TaskQueueId, Counter[str]] = {}
        for partition, host in by_size[row.batch_size].items():
            together.setdefault(partition.task_queue, Counter())[host] += 1
        most = [max(counts.values()) for counts in together.values()]
        assert (row.task_lists, row.partitions, row.hosts) == (4, 67, 5)
        assert (row.together_max, row.together_mean) == (max(most), pytest.approx(sum(most) / 4))
        assert row.hosts_per_task_list == pytest.approx(sum(map(len, together.values())) / 4)
        assert row.partitions_over_mean == pytest.approx(row.partitions_max * 5 / 67)

    reported = {(row.batch_size, row.change): row for row in moves(found).collect()}
    expected: dict[tuple[int, str], list[Partition]] = {}
    for size, owners in by_size.items():
        for change, others in (
            ("leave b:1", tuple(host for host in hosts if host != "b:1")),
            ("join f:1", (*hosts, "f:1")),
        ):
            after = routed(others, size)
            expected[size, change] = [partition for partition, host in owners.items() if after[partition] != host]
        if size != 4:
            expected[size, "batch size 4"] = [one for one, host in owners.items() if by_size[4][one] != host]
    assert reported.keys() == expected.keys()
    for place, moved in expected.items():
        assert reported[place].partitions == len(moved)
        assert reported[place].partitions_share == pytest.approx(len(moved) / 67)
        assert reported[place].qps == pytest.approx(sum(map(qps_of, moved)))

    for row in timetable(found).collect():
        gradual = GradualChange(4, row.batch_size, start_s=0.0, end_s=1.0)
        reached = [one for one in by_size[0] if gradual.moment(basic_key(one)) <= row.time_share]
        moved = [one for one in reached if one in expected[row.batch_size, "batch size 4"]]
        assert (row.partitions, row.partitions_moved) == (len(reached), len(moved))
    assert timetable(found).count() == 2 * STEPS

    (hottest,) = hot_spots(found).where("batch_size = 0 AND rank = 1").collect()
    alone = Counter(host for partition, host in by_size[0].items() if partition.task_queue.name == "orders")
    assert (hottest.task_list, hottest.partitions) == ("orders", max(alone.values()))
    assert alone[hottest.host] == hottest.partitions

    for frame, schema in (
        (comparison(found), PLACEMENT),
        (host_loads(found), PLACEMENT_HOSTS),
        (hot_spots(found), PLACEMENT_SPOTS),
        (moves(found), PLACEMENT_MOVES),
        (timetable(found), PLACEMENT_TIMETABLE),
    ):
        assert differences(expected=schema, found=frame.schema) == []
    found.unpersist()


def record(**fields: Any) -> dict[str, Any]:
    return {
        "cluster": "c",
        "namespace_id": "n",
        "task_list": "x",
        "task_type": 2,
        "partition": 0,
        "host": "h:1",
    } | fields


def test_recorded_task_queues_have_their_largest_recorded_number_of_partitions(spark: SparkSession) -> None:
    records = [record(kind="added", time_us=0, partition=2), record(kind="config", time_us=10_000_000, read=5, write=1)]
    records += [
        record(kind="added", time_us=1, task_list="y", partition=6),
        record(kind="added", time_us=2, cluster="d"),
        # Each sticky task queue has its own owner, so the sum of them has none.
        record(kind="added", time_us=3, task_list=STICKY),
    ]
    found = recorded_lists(hourly_loads(frame_of(spark, records)), cluster="c").orderBy("task_list").collect()
    assert [(row.task_list, row.partitions, row.qps) for row in found] == [("x", 5, 0.1), ("y", 7, 0.1)]


def test_the_job_places_recorded_task_queues_on_the_recorded_hosts(spark: SparkSession, tmp_path: Path) -> None:
    hosts = [f"10.0.0.{number}:7235" for number in range(3)]
    records = [record(kind="added", time_us=number, partition=number, host=hosts[number % 3]) for number in range(12)]
    lake = LakeOfFrames(tmp_path, frame_of(spark, records))
    summary = placement.run(JobContext(spark, lake, options={"batch_sizes": (0, 4), "changes": 1}))
    assert summary.rows["placement"] == 2
    assert "placement_partial" not in summary.rows
    assert summary.findings["hosts"] == 3
    found = {
        row.host: row.partitions
        for row in lake.read_derived(spark, "placement_hosts").where("batch_size = 4").collect()
    }
    router = Router(HashRing(hosts), 4)
    owners = Counter(router.route(one, 0.0) for one in partitions_of(TaskQueueId("n", "x", TaskType.ACTIVITY), 12))
    assert found == {host: owners[host] for host in hosts}
    assert lake.read_derived(spark, "placement_hosts").agg(F.sum("partitions")).first() == (24,)


def test_the_busiest_cluster_is_placed_unless_another_is_chosen(spark: SparkSession, tmp_path: Path) -> None:
    records = [record(kind="added", time_us=time, cluster="d", host="h:1") for time in range(3)]
    records += [record(kind="added", time_us=0, host="h:2"), record(kind="added", time_us=0, cluster="e", host="h:3")]
    lake = LakeOfFrames(tmp_path, frame_of(spark, records))

    def hosts(**options: Any) -> set[str]:
        summary = placement.run(JobContext(spark, lake, options=options))
        found = lake.read_derived(spark, "placement_hosts").where("batch_size = 0").collect()
        assert summary.findings["cluster"] == options.get("cluster", "d")
        return {row.host for row in found}

    assert hosts() == {"h:1"}
    assert hosts(cluster="c") == {"h:2"}
    with pytest.raises(placement.NoSuchCluster, match="it has: c, d, e"):
        hosts(cluster="f")


def test_without_recorded_tasks_nothing_is_placed(spark: SparkSession, tmp_path: Path) -> None:
    lake = LakeOfFrames(tmp_path, frame_of(spark, []))
    assert placement.run(JobContext(spark, lake)).rows == {}
