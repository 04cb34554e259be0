"""All partitions that this host owns: loaded when they are first asked for, unloaded when idle or no longer owned."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from fairlead.core.errors import RetryElsewhere, RetryLater
from fairlead.core.partitions import Partition
from fairlead.matching.backlog import BacklogClosed, Clock
from fairlead.matching.messages import TaskListKind
from fairlead.matching.node import Node
from fairlead.storage.contract import LeaseLost

Request = TypeVar("Request")
Answer = TypeVar("Answer")
# Of a partition on this host; whether it is the owner, the router says.
Open = Callable[[Partition, TaskListKind], Node]
Route = Callable[[Partition], str]


class NotOwner(RetryElsewhere):
    """A partition was asked for at a host that does not own it."""


class EngineClosed(RetryElsewhere):
    """A host was asked that is shutting down."""


class TooManyPartitions(RetryLater):
    """A host has as many partitions loaded as it may."""


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """How long an unused partition stays loaded, how often that is looked at, and how long the last requests have."""

    idle_s: float = 300.0
    sweep_s: float = 2.0
    last_requests_s: float = 5.0


# Of a loaded partition's memory most is its buffer: 1,000 tasks. This many idle ones are some hundred megabytes.
PARTITIONS_LOADED_MAX = 20_000


@dataclass(slots=True, eq=False)
class _Loaded:
    node: Node
    opening: "asyncio.Task[None]"
    used_s: float
    is_open: bool = False
    # It is open, and this host owns it as far as is known: nothing else has to be looked at.
    is_ready: bool = False
    in_use: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """Sends each request to its partition, and keeps exactly those loaded that this host owns and somebody uses.

    A partition is loaded only by its owner: to load it elsewhere would take the lease from the one that has it. A
    request that meets a partition in the middle of being unloaded is tried once more, on a new one.
    """

    def __init__(
        self,
        host: str,
        *,
        open_node: Open,
        close_node: Callable[[Node], None] = lambda _: None,
        route: Route,
        clock: Clock,
        times: EngineTimes | None = None,
    ) -> None:
        self._host = host
        self._open_node = open_node
        self._close_node = close_node
        self._route = route
        self._clock = clock
        self._times = times or EngineTimes()
        self._loaded: dict[Partition, _Loaded] = {}
        # In the order in which they were begun, so that a simulation repeats itself.
        self._unloading: dict[asyncio.Task[None], None] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def loaded(self) -> list[Partition]:
        """The partitions that are loaded here."""
        return list(self._loaded)

    def nodes(self) -> Iterator[Node]:
        """The partitions that are loaded and can be asked."""
        for loaded in self._loaded.values():
            if loaded.is_open:
                yield loaded.node

    def start(self) -> None:
        """Begin to look for idle partitions."""
        self._sweeping = asyncio.create_task(self._sweep_forever())

    async def use(
        self,
        partition: Partition,
        kind: TaskListKind,
        handle: Callable[[Node, Request], Awaitable[Answer]],
        request: Request,
        *,
        is_use: bool = True,
    ) -> Answer:
        """Have a partition answer, which is loaded if need be. What is no use does not keep it loaded."""
        has_failed = False
        while True:
            loaded = self._loaded.get(partition)
            is_ready = loaded is not None and loaded.is_ready
            if loaded is None or not is_ready:
                loaded = self._load(partition, kind)
            loaded.in_use += 1
            try:
                if not is_ready:
                    # Shared by all who came while it was being loaded: one who goes must not stop it for the others.
                    await asyncio.shield(loaded.opening)
                return await handle(loaded.node, request)
            except (BacklogClosed, LeaseLost) as lost:
                if isinstance(lost, LeaseLost) and self._loaded.get(partition) is loaded:
                    self._unload(partition)
                if has_failed:
                    raise
                has_failed = True
            finally:
                loaded.in_use -= 1
                if is_use:
                    loaded.used_s = self._clock()
                if not loaded.in_use:
                    loaded.unused.set()

    def ring_changed(self) -> None:
        """Look at every partition's owner again when it is next asked for."""
        for loaded in self._loaded.values():
            loaded.is_ready = False

    def reconsider(self) -> None:
        """Unload what this host owns no longer."""
        for partition in list(self._loaded):
            if self._route(partition) != self._host:
                self._unload(partition)

    async def close(self) -> None:
        """Unload everything; requests are refused from now on."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for partition in list(self._loaded):
            self._unload(partition)
        while self._unloading:
            await asyncio.wait(self._unloading)

    def is_loaded(self, partition: Partition) -> bool:
        """Whether a partition that this host owns is loaded; it is not loaded by this."""
        self._check_owned(partition)
        return partition in self._loaded

    def _check_owned(self, partition: Partition) -> None:
        if self._is_closed:
            raise EngineClosed(f"host {self._host!r} is shutting down: ask for the partition's owner again")
        owner = self._route(partition)
        if owner != self._host:
            raise NotOwner(f"partition {partition.name!r} is owned by {owner!r}, not by {self._host!r}: ask there")

    def _load(self, partition: Partition, kind: TaskListKind) -> _Loaded:
        self._check_owned(partition)
        loaded = self._loaded.get(partition)
        if loaded is None:
            if len(self._loaded) >= PARTITIONS_LOADED_MAX:
                raise TooManyPartitions(
                    f"host {self._host!r} has {PARTITIONS_LOADED_MAX} partitions loaded: retry in a while, or add hosts"
                )
            node = self._open_node(partition, kind)
            loaded = _Loaded(node, asyncio.create_task(node.open()), self._clock())
            self._loaded[partition] = loaded
            loaded.opening.add_done_callback(lambda opened: self._opened(partition, opened))
        loaded.is_ready = loaded.is_open
        return loaded

    def _opened(self, partition: Partition, opening: "asyncio.Task[None]") -> None:
        """A partition that could not be loaded is let go at once: it may have its lease, and be at work already."""
        loaded = self._loaded.get(partition)
        if loaded is None or loaded.opening is not opening:
            return
        loaded.is_open = not opening.cancelled() and opening.exception() is None
        if not loaded.is_open:
            self._unload(partition)

    def _unload(self, partition: Partition) -> None:
        loaded = self._loaded.pop(partition)
        task = asyncio.create_task(self._close(loaded))
        self._unloading[task] = None
        task.add_done_callback(lambda done: self._unloading.pop(done, None))

    async def _close(self, loaded: _Loaded) -> None:
        await asyncio.gather(loaded.opening, return_exceptions=True)
        loaded.node.stop_waiting()
        # Those that were let in are answered first: a task that was matched may be in the middle of being started.
        loaded.unused.clear()
        if loaded.in_use:
            with suppress(TimeoutError):
                await asyncio.wait_for(loaded.unused.wait(), self._times.last_requests_s)
        await loaded.node.close()
        self._close_node(loaded.node)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._times.sweep_s)
            self.sweep()

    def sweep(self) -> None:
        """Unload what nobody has used for long, what has another owner by now, and what goes by other settings."""
        now_s = self._clock()
        for partition, loaded in list(self._loaded.items()):
            is_idle = not loaded.in_use and now_s - loaded.used_s >= self._times.idle_s
            if is_idle or loaded.node.is_outdated:
                self._unload(partition)
