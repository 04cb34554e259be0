"""All partitions that this host owns: loaded when they are first asked for, unloaded when idle or no longer owned."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from fairlead.core.errors import RetryElsewhere, RetryLater
from fairlead.core.partitions import Partition as PartitionId
from fairlead.matching.backlog import BacklogClosed, Clock, NewTask
from fairlead.matching.partition import Partition
from fairlead.storage.contract import LeaseLost, QueueId

Answer = TypeVar("Answer")
# Of a partition on this host; whether it is the owner, the router says.
Open = Callable[[QueueId], Partition]
Route = Callable[[PartitionId], str]


class NotOwner(RetryElsewhere):
    """A partition was asked for at a host that does not own it."""


class EngineClosed(RetryLater):
    """A host was asked that is shutting down."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """How long an unused partition stays loaded, and how often that is looked at."""

    idle_s: float = 300.0
    sweep_s: float = 15.0


@dataclass(slots=True, eq=False)
class _Loaded:
    partition_id: PartitionId
    partition: Partition
    opening: "asyncio.Task[None]"
    used_s: float
    in_use: int = 0


class Engine:
    """Sends each request to its partition, and keeps exactly those loaded that this host owns and somebody uses.

    A partition is loaded only by its owner: to load it elsewhere would take the lease from the one that has it. A
    request that meets a partition in the middle of being unloaded is tried once more, on a new one.
    """

    def __init__(
        self, host: str, *, open_partition: Open, route: Route, clock: Clock, times: EngineTimes | None = None
    ) -> None:
        self._host = host
        self._open_partition = open_partition
        self._route = route
        self._clock = clock
        self._times = times or EngineTimes()
        self._loaded: dict[QueueId, _Loaded] = {}
        self._unloading: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def loaded(self) -> list[PartitionId]:
        """The partitions that are loaded here."""
        return [loaded.partition_id for loaded in self._loaded.values()]

    def start(self) -> None:
        """Begin to look for idle partitions."""
        self._sweeping = asyncio.create_task(self._sweep_forever())

    async def add(self, partition_id: PartitionId, task: NewTask) -> bool:
        """Take a task in, see `Partition.add`."""
        return await self._use(partition_id, lambda partition: partition.add(task))

    async def poll(self, partition_id: PartitionId, identity: str, *, timeout_s: float) -> bytes | None:
        """Wait for a task, see `Partition.poll`."""
        return await self._use(partition_id, lambda partition: partition.poll(identity, timeout_s=timeout_s))

    def reconsider(self) -> None:
        """The ring has changed: unload what this host owns no longer."""
        for queue, loaded in list(self._loaded.items()):
            if self._route(loaded.partition_id) != self._host:
                self._unload(queue)

    async def close(self) -> None:
        """Unload everything; requests are refused from now on."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for queue in list(self._loaded):
            self._unload(queue)
        await asyncio.gather(*self._unloading)

    async def _use(self, partition_id: PartitionId, request: Callable[[Partition], Awaitable[Answer]]) -> Answer:
        try:
            return await self._use_once(partition_id, request)
        except (BacklogClosed, LeaseLost):
            return await self._use_once(partition_id, request)

    async def _use_once(self, partition_id: PartitionId, request: Callable[[Partition], Awaitable[Answer]]) -> Answer:
        queue = QueueId(partition_id.task_list.namespace_id, partition_id.name, partition_id.task_list.type)
        loaded = self._load(queue, partition_id)
        loaded.in_use += 1
        try:
            # Shared by all who came while it was being loaded: one who goes must not stop it for the others.
            await asyncio.shield(loaded.opening)
            return await request(loaded.partition)
        except LeaseLost:
            if self._loaded.get(queue) is loaded:
                self._unload(queue)
            raise
        finally:
            loaded.in_use -= 1
            loaded.used_s = self._clock()

    def _load(self, queue: QueueId, partition_id: PartitionId) -> _Loaded:
        if self._is_closed:
            raise EngineClosed(f"host {self._host!r} is shutting down: ask for the partition's owner again")
        owner = self._route(partition_id)
        if owner != self._host:
            raise NotOwner(f"partition {partition_id.name!r} is owned by {owner!r}, not by {self._host!r}: ask there")
        loaded = self._loaded.get(queue)
        if loaded is not None and loaded.opening.done() and loaded.opening.exception() is not None:
            # It could not be loaded the last time.
            self._unload(queue)
            loaded = None
        if loaded is None:
            partition = self._open_partition(queue)
            loaded = _Loaded(partition_id, partition, asyncio.create_task(partition.open()), self._clock())
            self._loaded[queue] = loaded
        return loaded

    def _unload(self, queue: QueueId) -> None:
        loaded = self._loaded.pop(queue)
        task = asyncio.create_task(_close(loaded))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._times.sweep_s)
            self.sweep()

    def sweep(self) -> None:
        """Unload what nobody has used for long, and what has another owner by now."""
        now_s = self._clock()
        for queue, loaded in list(self._loaded.items()):
            is_idle = not loaded.in_use and now_s - loaded.used_s >= self._times.idle_s
            if is_idle or loaded.partition.backlog.lease.lost.is_set():
                self._unload(queue)


async def _close(loaded: _Loaded) -> None:
    await asyncio.gather(loaded.opening, return_exceptions=True)
    await loaded.partition.close()
