import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog

from fairlead.api.codes import code_of
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.engine import Engine, EngineClosed, EngineTimes, NotOwner
from fairlead.matching.forwarding.peers import Peers
from fairlead.matching.handlers.add_task import add_task
from fairlead.matching.handlers.poll_task import poll_task
from fairlead.matching.load_limits import FULL_IDLE_S, LoadLimits, TooManyPartitions, TooManyPolls
from fairlead.matching.messages import AddRequest, NewTask, PollRequest, QueueKind
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.task_starter import start_plainly
from fairlead.rpc import Code
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.settings import DynamicSettings
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import QueueId, StoreUnavailable
from fairlead.telemetry import Metrics
from tests.matching.hosts import partitions
from tests.patience import step, until

TASK_QUEUE = TaskQueueId("namespace", "orders", TaskType.ACTIVITY)
ROOT, CHILD = Partition(TASK_QUEUE, 0), Partition(TASK_QUEUE, 1)


class Owners:
    """A ring whose owners the test sets."""

    def __init__(self) -> None:
        self.owners = {ROOT: "a", CHILD: "a"}

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.owners.values())))

    def route(self, partition: Partition) -> str:
        return self.owners[partition]

    def on_change(self, listener: object) -> None:
        """Listeners are never called."""

    async def refresh(self) -> None:
        """The ring is always up to date."""


class Cluster:
    """Hosts on one store; the test sets the owner of each partition. The hosts can't call each other."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ring = Owners()
        self.engines: dict[str, Engine] = {}
        self.settings = DynamicSettings(overrides=partitions(2))
        self.metrics = Metrics()
        self.opened = 0
        self.now_s = 0.0
        self.is_store_away = False
        self.limits = LoadLimits()

    def engine(self, host: str) -> Engine:
        if host not in self.engines:
            self.engines[host] = Engine(
                host,
                open_manager=self.open_manager,
                route=self.ring.route,
                clock=lambda: self.now_s,
                times=EngineTimes(idle_s=300.0, sweep_s=1000.0),
                limits=self.limits,
            )
            self.engines[host].start()
        return self.engines[host]

    def open_manager(self, partition: Partition, kind: QueueKind) -> PartitionManager:
        self.opened += 1
        if self.is_store_away:
            raise StoreUnavailable("away")
        return PartitionManager(
            partition,
            kind,
            host="any",
            store=self.store,
            peers=Peers(LocalNetwork().caller(), self.ring),
            settings=self.settings,
            clock=asyncio.get_running_loop().time,
            start=start_plainly,
            counts=self.metrics.partition(*TASK_QUEUE, partition.number),
            log_of=lambda _: structlog.get_logger(),
        )


async def add(engine: Engine, partition: Partition, payload: str) -> bool:
    request = AddRequest(partition, NewTask(3, "", 1.0, payload.encode()))
    return (await engine.use(partition, QueueKind.NORMAL, add_task, request)).is_started


async def poll(engine: Engine, partition: Partition, *, timeout_s: float = 5) -> bytes | None:
    request = PollRequest(partition, "worker", "poll", timeout_s)
    return (await engine.use(partition, QueueKind.NORMAL, poll_task, request)).task


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    for engine in cluster.engines.values():
        await engine.close()


async def test_concurrent_requests_load_a_partition_once(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await asyncio.gather(*(add(engine, ROOT, str(number)) for number in range(50)))
    assert cluster.opened == 1
    assert engine.loaded == [ROOT]
    got = {await poll(engine, ROOT) for _ in range(50)}
    assert len(got) == 50


async def test_partitions_do_not_share_their_tasks(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await add(engine, ROOT, "root")
    await add(engine, CHILD, "child")
    assert await poll(engine, CHILD) == b"child"
    assert await poll(engine, ROOT) == b"root"


async def test_only_the_owner_loads_a_partition(cluster: Cluster) -> None:
    """FL-16: a misrouted request doesn't take the lease from the owner."""
    await add(cluster.engine("a"), ROOT, "kept")
    with pytest.raises(NotOwner, match="owned by 'a', not by 'b'"):
        await add(cluster.engine("b"), ROOT, "misrouted")
    assert cluster.engine("b").loaded == []
    await add(cluster.engine("a"), ROOT, "and kept")


async def test_the_old_owner_unloads_a_moved_partition_and_the_new_owner_dispatches_its_tasks(cluster: Cluster) -> None:
    """MC-16: a host unloads the partitions that it no longer owns."""
    old, new_owner = cluster.engine("a"), cluster.engine("b")
    for number in range(20):
        await add(old, ROOT, str(number))
    waiting = asyncio.create_task(poll(old, CHILD, timeout_s=60))
    await until(lambda: CHILD in old.loaded)
    await step()
    cluster.ring.owners = {ROOT: "b", CHILD: "b"}
    old.reconsider()
    assert old.loaded == []
    # The waiting poll gets an empty response, so that its caller asks the new owner.
    assert await asyncio.wait_for(waiting, 5) is None
    got = {await poll(new_owner, ROOT) for _ in range(20)}
    assert len(got) == 20


async def test_an_idle_partition_is_unloaded_and_loaded_again_when_needed(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await add(engine, ROOT, "waits")
    waiting = asyncio.create_task(poll(engine, CHILD, timeout_s=60))
    await until(lambda: CHILD in engine.loaded)
    await step()
    cluster.now_s = 299.0
    engine.sweep()
    assert engine.loaded == [ROOT, CHILD]
    cluster.now_s = 300.0
    engine.sweep()
    # A poll still waits at the child, so the child is in use.
    assert engine.loaded == [CHILD]
    assert await poll(engine, ROOT) == b"waits"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_partition_whose_lease_is_lost_is_loaded_again(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await add(engine, ROOT, "before")
    await cluster.store.take_lease(QueueId("namespace", "orders", TaskType.ACTIVITY))
    await add(engine, ROOT, "after")
    assert cluster.opened == 2
    assert {await poll(engine, ROOT) for _ in range(2)} == {b"before", b"after"}


async def test_the_next_request_retries_a_failed_load(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    cluster.is_store_away = True
    with pytest.raises(StoreUnavailable):
        await add(engine, ROOT, "refused")
    cluster.is_store_away = False
    await add(engine, ROOT, "kept")
    assert await poll(engine, ROOT) == b"kept"


async def test_a_cancelled_caller_does_not_cancel_the_load_of_a_partition_for_others(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    gone = asyncio.create_task(poll(engine, ROOT, timeout_s=60))
    stays = asyncio.create_task(add(engine, ROOT, "kept"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await stays
    assert await poll(engine, ROOT) == b"kept"


async def test_a_closed_engine_rejects_requests_and_loses_no_task(cluster: Cluster) -> None:
    engine = cluster.engine("a")
    await add(engine, ROOT, "kept")
    await engine.close()
    with pytest.raises(EngineClosed, match="shutting down"):
        await add(engine, ROOT, "refused")
    cluster.ring.owners[ROOT] = "b"
    assert await poll(cluster.engine("b"), ROOT) == b"kept"


@pytest.mark.parametrize("limits", [LoadLimits(partitions=lambda: 1), LoadLimits(namespace_partitions=lambda _: 1)])
async def test_a_host_loads_a_bounded_number_of_partitions_and_idle_ones_make_room(
    cluster: Cluster, limits: LoadLimits
) -> None:
    cluster.limits = limits
    engine = cluster.engine("a")
    await add(engine, ROOT, "root")
    with pytest.raises(TooManyPartitions, match="1 partitions"):
        await add(engine, CHILD, "refused")
    assert code_of(TooManyPartitions("")) is Code.RESOURCE_EXHAUSTED
    cluster.now_s += FULL_IDLE_S
    await add(engine, CHILD, "child")
    assert engine.loaded == [CHILD]
    # A partition with a waiting poll is not idle.
    waiting = asyncio.create_task(poll(engine, CHILD, timeout_s=60))
    assert await waiting == b"child"
    waiting = asyncio.create_task(poll(engine, CHILD, timeout_s=60))
    await asyncio.sleep(0)
    cluster.now_s += FULL_IDLE_S
    with pytest.raises(TooManyPartitions):
        await add(engine, ROOT, "refused")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_host_accepts_a_bounded_number_of_waiting_polls(cluster: Cluster) -> None:
    cluster.limits = LoadLimits(polls=lambda: 2)
    engine = cluster.engine("a")
    waiting = [asyncio.create_task(poll(engine, ROOT, timeout_s=60)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyPolls, match=r"matching\.waitingPolls"):
        engine.check_poll()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    engine.check_poll()
