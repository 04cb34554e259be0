"""Loads the partitions that this host owns at their first request, and unloads idle and lost partitions."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from fairlead.aio.event import LightEvent
from fairlead.core.errors import RetryElsewhere
from fairlead.core.partitions import Partition
from fairlead.matching.clock import Clock
from fairlead.matching.load_limits import LoadedPartitions, LoadLimits, TooManyPolls
from fairlead.matching.messages import QueueKind
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.task_writer import BacklogClosed
from fairlead.storage.tasks import LeaseLost

Request = TypeVar("Request")
Response = TypeVar("Response")
# Makes the manager of a partition that this host owns.
Open = Callable[[Partition, QueueKind], PartitionManager]
Route = Callable[[Partition], str]


class NotOwner(RetryElsewhere):
    """A request reached a host that does not own its partition."""


class EngineClosed(RetryElsewhere):
    """A request reached a host that is shutting down."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """Times of the engine, in seconds.

    `idle_s`: time for which an unused partition stays loaded. `sweep_s`: interval between checks for idle partitions.
    `last_requests_s`: time for requests in progress to end before their partition is closed.
    """

    idle_s: float = 300.0
    sweep_s: float = 2.0
    last_requests_s: float = 5.0


# Number of partitions that are opened at the same time: enough to share transactions, and few enough that opening a
# thousand new task queues takes little memory.
OPENINGS_MAX = 64


@dataclass(slots=True, eq=False)
class _Loaded:
    manager: PartitionManager
    # None when the opening has ended.
    opening: "asyncio.Task[None] | None"
    used_s: float
    is_open: bool = False
    # True if the partition is open and, as far as this host knows, owned by it: requests then need no further check.
    is_ready: bool = False
    in_use: int = 0
    # Set when the last request has ended; None unless the partition is being unloaded.
    unused: LightEvent | None = None


class Engine:
    """Passes each request to its partition; loads partitions that this host owns, and unloads unused ones.

    Only the owner loads a partition: another host would take the lease from the owner. If a partition is unloaded
    during a request, the request is repeated once, with the partition loaded again.
    """

    def __init__(
        self,
        host: str,
        *,
        open_manager: Open,
        close_manager: Callable[[PartitionManager], None] = lambda _: None,
        route: Route,
        clock: Clock,
        times: EngineTimes | None = None,
        limits: LoadLimits | None = None,
    ) -> None:
        self._host = host
        self._limits = limits or LoadLimits()
        self._room = LoadedPartitions(self._limits, sweep=self._unload_idle)
        # Number of requests in progress; nearly all of them are waiting polls.
        self._in_use = 0
        self._polls_max = self._limits.polls()
        self._open_manager = open_manager
        self._close_manager = close_manager
        self._route = route
        self._clock = clock
        self._times = times or EngineTimes()
        self._loaded: dict[Partition, _Loaded] = {}
        # In order of start, so that a simulation repeats itself.
        self._unloading: dict[asyncio.Task[None], None] = {}
        self._openings = asyncio.Semaphore(OPENINGS_MAX)
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def loaded(self) -> list[Partition]:
        """The loaded partitions."""
        return list(self._loaded)

    def managers(self) -> Iterator[PartitionManager]:
        """Yield the managers of all partitions that are open."""
        for loaded in self._loaded.values():
            if loaded.is_open:
                yield loaded.manager

    def all_managers(self) -> Iterator[PartitionManager]:
        """Yield the managers of all partitions that are loaded or being loaded."""
        for loaded in self._loaded.values():
            yield loaded.manager

    def start(self) -> None:
        """Begin to check for idle partitions."""
        self._sweeping = asyncio.create_task(self._sweep_forever())

    async def use(
        self,
        partition: Partition,
        kind: QueueKind,
        handle: Callable[[PartitionManager, Request], Awaitable[Response]],
        request: Request,
        *,
        is_use: bool = True,
    ) -> Response:
        """Call `handle` with the partition's manager, which is loaded if needed.

        A call with `is_use=False` does not keep the partition loaded.
        """
        has_failed = False
        while True:
            loaded = self._loaded.get(partition)
            is_ready = loaded is not None and loaded.is_ready
            if loaded is None or not is_ready:
                loaded = self._load(partition, kind)
            loaded.in_use += 1
            self._in_use += 1
            try:
                if not is_ready and loaded.opening is not None:
                    # All waiting requests share one opening: cancelling one of them must not cancel the opening.
                    await asyncio.shield(loaded.opening)
                return await handle(loaded.manager, request)
            except (BacklogClosed, LeaseLost) as lost:
                if isinstance(lost, LeaseLost) and self._loaded.get(partition) is loaded:
                    self._unload(partition)
                if has_failed:
                    raise
                has_failed = True
            finally:
                loaded.in_use -= 1
                self._in_use -= 1
                if is_use:
                    loaded.used_s = self._clock()
                if loaded.unused is not None and not loaded.in_use:
                    loaded.unused.set()

    def check_poll(self) -> None:
        """Raise `TooManyPolls` if no further poll may wait here."""
        if self._in_use >= self._polls_max:
            raise TooManyPolls(
                f"{self._in_use} requests wait at host {self._host!r}: run fewer pollers, add hosts, or raise"
                " matching.waitingPolls"
            )

    def ready(self, partition: Partition) -> PartitionManager | None:
        """The manager of a partition that is loaded and owned by this host as far as it knows; None otherwise."""
        loaded = self._loaded.get(partition)
        if loaded is None or self._is_closed:
            return None
        if not loaded.is_ready:
            if not loaded.is_open or self._route(partition) != self._host:
                return None
            loaded.is_ready = True
        return loaded.manager

    def ring_changed(self) -> None:
        """Check the owner of each partition again at its next request."""
        for loaded in self._loaded.values():
            loaded.is_ready = False

    def reconsider(self) -> None:
        """Unload the partitions that this host no longer owns."""
        for partition in list(self._loaded):
            if self._route(partition) != self._host:
                self._unload(partition)

    async def close(self) -> None:
        """Unload all partitions and reject further requests."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for partition in list(self._loaded):
            self._unload(partition)
        while self._unloading:
            await asyncio.wait(self._unloading)

    def is_loaded(self, partition: Partition) -> bool:
        """Whether a partition that this host owns is loaded; does not load it."""
        self._check_owned(partition)
        return partition in self._loaded

    def _check_owned(self, partition: Partition) -> None:
        if self._is_closed:
            raise EngineClosed(f"host {self._host!r} is shutting down: look up the partition's owner again")
        owner = self._route(partition)
        if owner != self._host:
            raise NotOwner(f"partition {partition.name!r} is owned by {owner!r}, not by {self._host!r}: call that host")

    def _load(self, partition: Partition, kind: QueueKind) -> _Loaded:
        self._check_owned(partition)
        loaded = self._loaded.get(partition)
        if loaded is None:
            self._room.check(partition.task_queue.namespace_id, self._clock())
            manager = self._open_manager(partition, kind)
            opening = asyncio.create_task(self._open(manager))
            loaded = _Loaded(manager, opening, self._clock())
            self._loaded[partition] = loaded
            self._room.add(partition.task_queue.namespace_id)
            opening.add_done_callback(lambda opened: self._opened(partition, opened))
        loaded.is_ready = loaded.is_open
        return loaded

    async def _open(self, manager: PartitionManager) -> None:
        async with self._openings:
            await manager.open()

    def _opened(self, partition: Partition, opening: "asyncio.Task[None]") -> None:
        """Unload a partition whose opening failed: it may hold its lease, and parts of it may be running."""
        loaded = self._loaded.get(partition)
        if loaded is None or loaded.opening is not opening:
            return
        loaded.is_open = not opening.cancelled() and opening.exception() is None
        loaded.opening = None
        if not loaded.is_open:
            self._unload(partition)

    def _unload(self, partition: Partition) -> None:
        loaded = self._loaded.pop(partition)
        self._room.remove(partition.task_queue.namespace_id)
        task = asyncio.create_task(self._close(loaded))
        self._unloading[task] = None
        task.add_done_callback(lambda done: self._unloading.pop(done, None))

    async def _close(self, loaded: _Loaded) -> None:
        if loaded.opening is not None:
            await asyncio.gather(loaded.opening, return_exceptions=True)
        loaded.manager.stop_waiting()
        # Let the requests in progress end first: a matched task may be about to start.
        if loaded.in_use:
            loaded.unused = LightEvent()
            with suppress(TimeoutError):
                await asyncio.wait_for(loaded.unused.wait(), self._times.last_requests_s)
        await loaded.manager.close()
        self._close_manager(loaded.manager)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._times.sweep_s)
            self.sweep()

    def sweep(self) -> None:
        """Unload partitions that are idle, have lost their lease, or have a changed fixed setting."""
        self._polls_max = self._limits.polls()
        self._unload_idle(self._times.idle_s)

    def _unload_idle(self, idle_s: float) -> None:
        now_s = self._clock()
        for partition, loaded in list(self._loaded.items()):
            is_idle = not loaded.in_use and now_s - loaded.used_s >= idle_s
            if is_idle or loaded.manager.is_outdated:
                self._unload(partition)
