from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.core.routing import BATCH_SIZE_MAX, GradualChange, HashRing, InvalidBatchSize, NoHosts, Router

HOSTS = [f"10.0.0.{number}:7235" for number in range(20)]
RING = HashRing(HOSTS)
QUEUE = TaskQueueId("ns", "queue", TaskType.ACTIVITY)
PARTITIONS = [
    Partition(TaskQueueId("ns", f"queue-{queue}", TaskType.ACTIVITY), number)
    for queue in range(200)
    for number in range(16)
]
NOW_S = 1000.0

task_queues = st.builds(
    TaskQueueId,
    st.text(alphabet="nsx-", max_size=4),
    st.text(alphabet="queue:-", min_size=1, max_size=8),
    st.sampled_from(TaskType),
)


def placement(router: Router) -> dict[Partition, str]:
    return {partition: router.route(partition, NOW_S) for partition in PARTITIONS}


def moves(before: Router, after: Router) -> list[tuple[str, str]]:
    """The old and new host of each partition that has moved."""
    old, new = placement(before), placement(after)
    return [(old[partition], new[partition]) for partition in PARTITIONS if old[partition] != new[partition]]


def test_basic_routing_looks_up_the_key_of_the_partition() -> None:
    """MC-6."""
    assert Router(RING, 0).route(Partition(QUEUE, 25), NOW_S) == RING.lookup("ns:/_sys/queue/25:2")


def test_partition_25_with_batch_size_8_is_on_the_second_host_of_batch_3() -> None:
    """MC-7: the example of the rule."""
    assert Router(RING, 8).route(Partition(QUEUE, 25), NOW_S) == RING.lookup_n("ns:queue:3:2", 2)[1]


def test_batch_0_is_looked_up_without_its_number() -> None:
    """MC-9."""
    assert [Router(RING, 8).route(Partition(QUEUE, number), NOW_S) for number in range(8)] == list(
        RING.lookup_n("ns:queue:2", 8)
    )


@given(task_queue=task_queues, batch_size=st.integers(0, BATCH_SIZE_MAX))
def test_the_root_has_the_same_host_as_with_basic_routing_for_every_batch_size(
    task_queue: TaskQueueId, batch_size: int
) -> None:
    root = Partition(task_queue, 0)

    assert Router(RING, batch_size).route(root, NOW_S) == Router(RING, 0).route(root, NOW_S)


@given(
    task_queue=task_queues,
    host_count=st.integers(1, 20),
    batch_size=st.integers(1, 20),
    batch=st.integers(0, 5),
)
def test_partitions_of_a_batch_are_on_different_hosts_or_spread_evenly_over_all(
    task_queue: TaskQueueId, host_count: int, batch_size: int, batch: int
) -> None:
    """MC-10: with fewer hosts than partitions in a batch, the partitions wrap around."""
    router = Router(HashRing(HOSTS[:host_count]), batch_size)
    members = [Partition(task_queue, batch * batch_size + index) for index in range(batch_size)]
    load = Counter(router.route(member, NOW_S) for member in members)

    assert len(load) == min(batch_size, host_count)
    if batch_size <= host_count:
        assert set(load.values()) == {1}
    assert max(load.values()) - min(load.values()) <= 1


def test_basic_routing_may_put_several_partitions_of_a_task_queue_on_one_host() -> None:
    """MC-6: these hot spots are avoided by spread routing."""
    shared = Counter((partition.task_queue, host) for partition, host in placement(Router(RING, 0)).items())
    spread = Counter((partition.task_queue, host) for partition, host in placement(Router(RING, 16)).items())

    assert max(shared.values()) >= 4
    assert max(spread.values()) == 1


def test_basic_routing_moves_only_the_partitions_of_a_host_that_leaves() -> None:
    for gone in HOSTS[:5]:
        moved = moves(Router(RING, 0), Router(RING.without_host(gone), 0))
        assert {origin for origin, _ in moved} == {gone}
        assert 0.5 / 20 < len(moved) / len(PARTITIONS) < 1.6 / 20


def test_basic_routing_moves_partitions_only_to_a_host_that_joins() -> None:
    moved = moves(Router(RING, 0), Router(RING.with_host("new"), 0))

    assert {target for _, target in moved} == {"new"}
    assert 0.5 / 21 < len(moved) / len(PARTITIONS) < 1.6 / 21


def test_spread_routing_moves_more_partitions_with_larger_batches() -> None:
    """MC-12: a larger batch spreads better and moves more partitions.

    With N hosts and batches of size s, the partition at index i moves if the host that left is among the first i + 1
    hosts of its batch. So (s + 1) / 2 / N of the partitions move: about 1/N for basic routing, 2.5/N, 4.5/N and 8.5/N
    here.
    """
    shares = {}
    for batch_size in (0, 4, 8, 16):
        moved = [
            len(moves(Router(RING, batch_size), Router(RING.without_host(gone), batch_size))) for gone in HOSTS[:8]
        ]
        shares[batch_size] = sum(moved) / len(moved) / len(PARTITIONS)

    assert shares[0] < shares[4] < shares[8] < shares[16]
    for batch_size in (4, 8, 16):
        assert shares[batch_size] == pytest.approx((batch_size + 1) / 2 / 20, rel=0.25)


def test_spread_routing_balances_hosts_at_least_as_well_as_basic_routing() -> None:
    basic = Counter(placement(Router(RING, 0)).values())
    spread = Counter(placement(Router(RING, 16)).values())

    assert max(spread.values()) <= max(basic.values())
    assert max(basic.values()) < 1.4 * len(PARTITIONS) / len(HOSTS)


def test_changing_the_number_of_partitions_moves_no_partition() -> None:
    """MC-13: the owner depends on the partition only, never on the number of partitions."""
    router = Router(RING, 8)
    four = {number: router.route(Partition(QUEUE, number), NOW_S) for number in range(4)}
    forty = {number: router.route(Partition(QUEUE, number), NOW_S) for number in range(40)}

    assert four.items() <= forty.items()


def test_changing_the_batch_size_moves_most_partitions_but_no_root() -> None:
    """MC-14."""
    before, after = placement(Router(RING, 0)), placement(Router(RING, 8))
    moved = [partition for partition in PARTITIONS if before[partition] != after[partition]]

    assert len(moved) / len(PARTITIONS) > 0.8
    assert all(partition.number != 0 for partition in moved)


def test_a_gradual_change_moves_each_partition_once_from_old_to_new() -> None:
    """MC-15: a partition is on its old or its new host, and never goes back."""
    old, new = placement(Router(RING, 0)), placement(Router(RING, 8))
    router = Router(RING, GradualChange(0, 8, start_s=1000.0, end_s=2000.0))
    arrived: set[Partition] = set()
    for step in range(11):
        now_s = 1000.0 + 100.0 * step
        hosts = {partition: router.route(partition, now_s) for partition in PARTITIONS}
        assert all(hosts[partition] in {old[partition], new[partition]} for partition in PARTITIONS)
        here = {partition for partition in PARTITIONS if hosts[partition] == new[partition] != old[partition]}
        assert arrived <= here
        arrived = here

    assert {partition: router.route(partition, 999.9) for partition in PARTITIONS} == old
    assert {partition: router.route(partition, 2000.0) for partition in PARTITIONS} == new


def test_a_gradual_change_moves_partitions_of_one_batch_one_by_one() -> None:
    change = GradualChange(0, 8, start_s=1000.0, end_s=2000.0)
    router = Router(RING, change)
    old, new = Router(RING, 0), Router(RING, 8)
    moving = [
        Partition(QUEUE, number)
        for number in range(8)
        if old.route(Partition(QUEUE, number), NOW_S) != new.route(Partition(QUEUE, number), NOW_S)
    ]
    counts = {
        sum(router.route(partition, now_s) == new.route(partition, now_s) for partition in moving)
        for now_s in range(1000, 2001)
    }

    assert len(moving) >= 4
    assert counts == set(range(len(moving) + 1))


def test_a_router_over_an_empty_ring_raises_a_retryable_error() -> None:
    for batch_size in (0, 8):
        with pytest.raises(NoHosts):
            Router(HashRing([]), batch_size).route(Partition(QUEUE, 3), NOW_S)


@pytest.mark.parametrize(
    "batch_size", [-1, GradualChange(-1, 8, 0.0, 1.0), GradualChange(8, BATCH_SIZE_MAX + 1, 0.0, 1.0)]
)
def test_a_router_rejects_a_batch_size_out_of_range(batch_size: int | GradualChange[int]) -> None:
    with pytest.raises(InvalidBatchSize):
        Router(RING, batch_size)
