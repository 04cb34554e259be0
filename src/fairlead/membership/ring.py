"""The ring as one process sees it: the hosts, and which of them owns a partition now.

A host of the cluster builds the ring from its membership (`MemberRing`); a client outside asks the hosts
(`RemoteRing`). Both use the same routing, so all processes that know the same hosts agree.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol

from msgspec import Struct

from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.core.partitions import Partition
from fairlead.core.routing import GradualChange, HashRing, Router
from fairlead.membership.members import Clock, Membership
from fairlead.rpc.hosts.caller import Caller, Method
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.matching import SPREAD_ROUTING_BATCH_SIZE

Listener = Callable[[], None]
BatchSize = int | GradualChange[int]

# Number of partitions whose owner is cached; then the cache is cleared.
ROUTES_MAX = 100_000
# Seconds between checks for changes that happen without an event: a gradual change moves partitions, and a heartbeat
# expires.
WATCH_INTERVAL_S = 1.0
# Minimum number of seconds between two refreshes of the ring, regardless of the number of failed requests.
REFRESH_INTERVAL_S_MIN = 0.1
# For a client outside the cluster: seconds between refreshes, seconds that a call may take, and hosts that it asks.
REMOTE_INTERVAL_S = 5.0
REMOTE_TIMEOUT_S = 2.0
REMOTE_ASKED_MAX = 8


class NoSeeds(FixRequest):
    """A client outside the cluster has no seed host."""


class NoResponse(RetryLater):
    """No host responded with the ring."""


class RingRequest(Struct, frozen=True, array_like=True):
    """Request the hosts of the cluster."""


class RingResponse(Struct, frozen=True, array_like=True):
    """The live hosts as `host` sees them, and the batch size of spread routing.

    `loaded` is the number of partitions that the responding host has loaded.
    """

    host: str
    hosts: list[str]
    loaded: int
    spread_batch_size: BatchSize = 0


RING = Method("cluster.Ring", RingRequest, RingResponse)


class RingView(Protocol):
    """Finds the owner of a partition, as far as this process knows."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that own partitions, by name."""
        ...

    def route(self, partition: Partition) -> str:
        """Return the host that owns `partition` now; raise `NoHosts` if there is none."""
        ...

    def on_change(self, listener: Listener) -> None:
        """Call `listener` whenever partitions may have another owner than before."""
        ...

    async def refresh(self) -> None:
        """Refresh the ring, because a response showed that it is old; if that fails, the present ring stays in use."""
        ...


class _Ring:
    """The common part of both rings: a cache of owners, listeners, and one refresh at a time."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._router = self._notified = Router(HashRing([]), 0)
        # The owner of each partition, and the wall-clock time until which it is valid.
        self._owners: dict[Partition, tuple[str, float]] = {}
        self._listeners: list[Listener] = []
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = -inf
        self._watching: asyncio.Task[None] | None = None
        self._watched_s = clock()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that own partitions, by name."""
        return self._router.ring.hosts

    def route(self, partition: Partition) -> str:
        """Return the host that owns `partition` now; raise `NoHosts` if there is none."""
        now_s = self._clock()
        known = self._owners.get(partition)
        if known is not None and now_s < known[1]:
            return known[0]
        moment_s = self._router.moment(partition)
        owner = self._router.route(partition, now_s)
        if len(self._owners) >= ROUTES_MAX:
            self._owners.clear()
        self._owners[partition] = (owner, inf if moment_s is None or moment_s <= now_s else moment_s)
        return owner

    def on_change(self, listener: Listener) -> None:
        """Call `listener` whenever partitions may have another owner than before."""
        self._listeners.append(listener)

    async def refresh(self) -> None:
        """Refresh the ring; concurrent callers share one refresh."""
        if self._refreshing is None:
            if asyncio.get_running_loop().time() - self._refreshed_s < REFRESH_INTERVAL_S_MIN:
                return
            self._refreshing = asyncio.create_task(self._refresh())
        # Unlike a plain await, this does not cancel the shared refresh when one caller is cancelled.
        await asyncio.wait([self._refreshing])

    async def close(self) -> None:
        """Stop refreshing."""
        tasks = [task for task in (self._watching, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch(self, interval_s: float) -> None:
        self._watching = asyncio.create_task(self._watch_forever(interval_s))

    async def _watch_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._refresh_by_time()
            self._notify_of_time()

    async def _refresh(self) -> None:
        try:
            await self._fetch()
        finally:
            self._refreshed_s = asyncio.get_running_loop().time()
            self._refreshing = None

    async def _fetch(self) -> None:
        """Fetch and use the present ring."""
        raise NotImplementedError

    async def _refresh_by_time(self) -> None:
        """Do the periodic work."""
        raise NotImplementedError

    def _use(self, router: Router) -> None:
        if router != self._router:
            self._router = router
            self._owners.clear()

    def _notify_of_time(self) -> None:
        """Notify the listeners of a new ring, or if a gradual change may have moved partitions since the last check."""
        since_s, self._watched_s = self._watched_s, self._clock()
        change = self._router.batch_size
        if isinstance(change, GradualChange) and since_s < change.end_s and change.start_s <= self._watched_s:
            self._notify()
        else:
            self._notify_of_change()

    def _notify_of_change(self) -> None:
        if self._router != self._notified:
            self._notify()

    def _notify(self) -> None:
        self._notified = self._router
        for listener in self._listeners:
            listener()


class MemberRing(_Ring):
    """The ring of a host of the cluster, rebuilt at each change of membership or of the batch size.

    A host whose heartbeat has expired counts as dead to all others, which have taken over its partitions; so it leaves
    itself out of its ring until a heartbeat succeeds. If it knows no other host, it stays in the ring.
    """

    def __init__(self, membership: Membership, settings: DynamicSettings, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._membership = membership
        self._batch_size = settings.get(SPREAD_ROUTING_BATCH_SIZE)
        self._was_alive = False
        membership.on_change(lambda _ring: self._rebuild())
        self._unsubscribe = settings.subscribe(SPREAD_ROUTING_BATCH_SIZE, self._use_batch_size)
        self._rebuild()

    def start(self) -> None:
        """Begin to notify the listeners of changes that come with time, without an event."""
        self._watch(WATCH_INTERVAL_S)

    async def close(self) -> None:
        """Stop refreshing."""
        self._unsubscribe()
        await super().close()

    def route(self, partition: Partition) -> str:
        """Return the host that owns `partition` now; raise `NoHosts` if no host is left."""
        if self._membership.is_alive is not self._was_alive:
            # Listeners are notified later: the caller may be a listener and must not be re-entered.
            self._use(self._present())
        return super().route(partition)

    async def _fetch(self) -> None:
        await self._membership.refresh()

    async def _refresh_by_time(self) -> None:
        self._use(self._present())

    def _use_batch_size(self, batch_size: BatchSize) -> None:
        self._batch_size = batch_size
        self._rebuild()

    def _rebuild(self) -> None:
        self._use(self._present())
        self._notify_of_change()

    def _present(self) -> Router:
        ring, self._was_alive = self._membership.ring, self._membership.is_alive
        if not self._was_alive and len(ring.hosts) > 1:
            ring = ring.without_host(self._membership.host)
        return Router(ring, self._batch_size)


class RemoteRing(_Ring):
    """The ring of a client outside the cluster: fetched from the hosts periodically, and after a stale response.

    Each refresh begins with a different host, so that a host with an old ring is not asked again and again. If no known
    host responds, the seeds are asked.
    """

    def __init__(self, caller: Caller, seeds: Sequence[str], *, clock: Clock) -> None:
        if not seeds:
            raise NoSeeds("no seed host to ask for the ring: give the address of at least one")
        super().__init__(clock=clock)
        self._caller = caller
        self._seeds = tuple(seeds)
        self._refreshes = 0

    async def open(self) -> None:
        """Fetch the ring and begin to refresh it; raise `NoResponse` if no host responds."""
        await self._ask()
        self._watch(REMOTE_INTERVAL_S)

    async def _fetch(self) -> None:
        with suppress(NoResponse):
            await self._ask()

    async def _refresh_by_time(self) -> None:
        await self.refresh()

    async def _ask(self) -> None:
        failures: list[str] = []
        for host in self._candidates():
            try:
                answer = await self._caller.call(host, RING, RingRequest(), timeout_s=REMOTE_TIMEOUT_S)
                known = self._router.ring
                ring = known.with_hosts(answer.hosts)
                router = Router(ring, answer.spread_batch_size)
            except FairleadError as failure:
                failures.append(f"{host}: {failure}")
                continue
            # A host that was alone and is leaving returns an empty ring: keep the ring that is known here.
            if router.ring.hosts:
                self._use(router)
                self._notify_of_change()
                return
            failures.append(f"{host}: knows of no host that is alive")
        raise NoResponse(
            f"no host responded with the ring: is the server running, and are these its hosts? {'; '.join(failures)}"
        )

    def _candidates(self) -> list[str]:
        # Half of the candidates are seeds: all other hosts may be gone.
        chosen = [*self._turn(self.hosts), *self._turn(self._seeds)]
        self._refreshes += 1
        return list(dict.fromkeys(chosen))

    def _turn(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Return some of the hosts. Each refresh begins with the next host."""
        first = self._refreshes % max(1, len(hosts))
        return (hosts[first:] + hosts[:first])[: REMOTE_ASKED_MAX // 2]
