import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.core.partitions import Partition as PartitionId
from fairlead.core.partitions import TaskList, TaskType
from fairlead.matching.backlog import NewTask
from fairlead.matching.engine import Engine, EngineClosed, EngineTimes, NotOwner
from fairlead.matching.partition import Partition, Started
from fairlead.storage.contract import QueueId, StoreUnavailable
from fairlead.storage.memory import MemoryStore

TASK_LIST = TaskList("namespace", "orders", TaskType.ACTIVITY)
ROOT, CHILD = PartitionId(TASK_LIST, 0), PartitionId(TASK_LIST, 1)


class Cluster:
    """Hosts on one store; who owns which partition is set by the test."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.owners: dict[PartitionId, str] = {ROOT: "a", CHILD: "a"}
        self.engines: dict[str, Engine] = {}
        self.opened = 0
        self.now_s = 0.0
        self.is_store_away = False

    def engine(self, host: str) -> Engine:
        if host not in self.engines:
            self.engines[host] = Engine(
                host,
                open_partition=self.open_partition,
                route=lambda partition: self.owners[partition],
                clock=lambda: self.now_s,
                times=EngineTimes(idle_s=300.0, sweep_s=1000.0),
            )
            self.engines[host].start()
        return self.engines[host]

    def open_partition(self, queue: QueueId) -> Partition:
        self.opened += 1
        if self.is_store_away:
            raise StoreUnavailable("away")
        return Partition(self.store, queue, clock=asyncio.get_running_loop().time, start=self.start)

    async def start(self, _payload: bytes, _identity: str) -> Started:
        return Started.STARTED


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    for engine in cluster.engines.values():
        await engine.close()


def new(payload: str) -> NewTask:
    return NewTask(3, "", 1.0, payload.encode())


async def test_a_partition_is_loaded_once_however_many_ask_for_it(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await asyncio.gather(*(engine.add(ROOT, new(str(number))) for number in range(50)))
    assert cluster.opened == 1
    assert engine.loaded == [ROOT]
    got = {await engine.poll(ROOT, "worker", timeout_s=5) for _ in range(50)}
    assert len(got) == 50


async def test_partitions_do_not_share_their_tasks(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await engine.add(ROOT, new("root"))
    await engine.add(CHILD, new("child"))
    assert await engine.poll(CHILD, "worker", timeout_s=5) == b"child"
    assert await engine.poll(ROOT, "worker", timeout_s=5) == b"root"


async def test_only_the_owner_loads_a_partition(cluster: Cluster) -> None:
    """Facts, temporal-matching 5: elsewhere a misrouted request steals the lease."""
    await cluster.engine("a").add(ROOT, new("kept"))
    with pytest.raises(NotOwner, match="owned by 'a', not by 'b'"):
        await cluster.engine("b").add(ROOT, new("misrouted"))
    assert cluster.engine("b").loaded == []
    await cluster.engine("a").add(ROOT, new("and kept"))


async def test_when_ownership_moves_the_old_owner_unloads_and_the_new_one_goes_on(cluster: Cluster) -> None:
    old, new_owner = cluster.engine("a"), cluster.engine("b")
    for number in range(20):
        await old.add(ROOT, new(str(number)))
    waiting = asyncio.create_task(old.poll(CHILD, "worker", timeout_s=60))
    await asyncio.sleep(0.01)
    cluster.owners = {ROOT: "b", CHILD: "b"}
    old.reconsider()
    assert old.loaded == []
    # The poll that waited is answered empty, so that its caller asks the new owner.
    assert await asyncio.wait_for(waiting, 5) is None
    got = {await new_owner.poll(ROOT, "worker", timeout_s=5) for _ in range(20)}
    assert len(got) == 20


async def test_an_idle_partition_is_unloaded_and_loaded_again_when_needed(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await engine.add(ROOT, new("waits"))
    poll = asyncio.create_task(engine.poll(CHILD, "worker", timeout_s=60))
    await asyncio.sleep(0.01)
    cluster.now_s = 299.0
    engine.sweep()
    assert engine.loaded == [ROOT, CHILD]
    cluster.now_s = 300.0
    engine.sweep()
    # A poll still waits at the child: it is in use.
    assert engine.loaded == [CHILD]
    assert await engine.poll(ROOT, "worker", timeout_s=5) == b"waits"
    poll.cancel()
    await asyncio.gather(poll, return_exceptions=True)


async def test_a_lost_lease_is_noticed_and_the_partition_loaded_anew(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await engine.add(ROOT, new("before"))
    await cluster.store.take_lease(QueueId("namespace", "orders", TaskType.ACTIVITY))
    await engine.add(ROOT, new("after"))
    assert cluster.opened == 2
    assert {await engine.poll(ROOT, "worker", timeout_s=5) for _ in range(2)} == {b"before", b"after"}


async def test_a_partition_that_could_not_be_loaded_is_tried_again(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    cluster.is_store_away = True
    with pytest.raises(StoreUnavailable):
        await engine.add(ROOT, new("refused"))
    cluster.is_store_away = False
    await engine.add(ROOT, new("kept"))
    assert await engine.poll(ROOT, "worker", timeout_s=5) == b"kept"


async def test_a_caller_that_goes_while_a_partition_is_loaded_does_not_stop_it_for_others(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    gone = asyncio.create_task(engine.poll(ROOT, "gone", timeout_s=60))
    stays = asyncio.create_task(engine.add(ROOT, new("kept")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await stays
    assert await engine.poll(ROOT, "worker", timeout_s=5) == b"kept"


async def test_a_host_that_shuts_down_refuses_and_loses_nothing(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await engine.add(ROOT, new("kept"))
    await engine.close()
    with pytest.raises(EngineClosed, match="shutting down"):
        await engine.add(ROOT, new("refused"))
    cluster.owners[ROOT] = "b"
    assert await cluster.engine("b").poll(ROOT, "worker", timeout_s=5) == b"kept"
