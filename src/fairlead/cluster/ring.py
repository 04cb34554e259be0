"""The ring as one process sees it: which hosts there are, and which of them owns a partition now.

A host of the cluster knows the ring from its membership (`MemberRing`), a client outside of it asks the hosts
(`RemoteRing`). Both route alike, and so agree with everybody who knows the same hosts.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol

from msgspec import Struct

from fairlead.cluster.calls import Caller, Method
from fairlead.cluster.membership import Clock, Membership
from fairlead.core.errors import FairleadError, FixRequest, RetryLater
from fairlead.core.partitions import Partition
from fairlead.core.routing import GradualChange, HashRing, Router
from fairlead.settings import DynamicSettings
from fairlead.settings.matching import SPREAD_ROUTING_BATCH_SIZE

Listener = Callable[[], None]
BatchSize = int | GradualChange[int]

# Owners are remembered for so many partitions; then the memory starts anew.
ROUTES_MAX = 100_000
# How often time itself is looked at: a gradual change moves partitions, and a heartbeat runs out, without any event.
WATCH_INTERVAL_S = 1.0
# However many requests fail at once, the ring is looked at no more often than this.
REFRESH_INTERVAL_S_MIN = 0.1
# How often a client outside the cluster asks, how long it waits for an answer, and how many it asks in turn.
REMOTE_INTERVAL_S = 5.0
REMOTE_TIMEOUT_S = 2.0
REMOTE_ASKED_MAX = 8


class NoSeeds(FixRequest):
    """A client outside the cluster was given no host to ask."""


class NoAnswer(RetryLater):
    """None of the hosts that were asked for the ring has answered."""


class RingRequest(Struct, frozen=True, array_like=True):
    """Who is in the cluster."""


class RingAnswer(Struct, frozen=True, array_like=True):
    """The hosts that are alive, as `host` sees it, and how partitions are spread over them.

    `loaded` is how many partitions the answering host has loaded.
    """

    host: str
    hosts: list[str]
    loaded: int
    spread_batch_size: BatchSize = 0


RING = Method("cluster.Ring", RingRequest, RingAnswer)


class RingView(Protocol):
    """Says which host owns a partition, as far as this process knows."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that own partitions, by name."""
        ...

    def route(self, partition: Partition) -> str:
        """The host that owns `partition` now; `NoHosts` if nobody does."""
        ...

    def on_change(self, listener: Listener) -> None:
        """Call `listener` whenever partitions may have another owner than before."""
        ...

    async def refresh(self) -> None:
        """Look again, because an answer said that the ring is old; what can't be learnt now stays as it is."""
        ...


class _Ring:
    """What both views share: owners that are remembered until they may change, listeners, and one look at a time."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._router = self._told = Router(HashRing([]), 0)
        # The owner of each partition, and until when of the wall clock it is that.
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
        """The host that owns `partition` now; `NoHosts` if nobody does."""
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
        """Look again; those who ask while somebody looks wait for the same answer."""
        if self._refreshing is None:
            if asyncio.get_running_loop().time() - self._refreshed_s < REFRESH_INTERVAL_S_MIN:
                return
            self._refreshing = asyncio.create_task(self._refresh())
        # Unlike a plain await, this ends nothing for the others when one of them goes.
        await asyncio.wait([self._refreshing])

    async def close(self) -> None:
        """Look no more."""
        tasks = [task for task in (self._watching, self._refreshing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch(self, interval_s: float) -> None:
        self._watching = asyncio.create_task(self._watch_forever(interval_s))

    async def _watch_forever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await self._look_by_time()
            self._tell_of_time()

    async def _refresh(self) -> None:
        try:
            await self._look()
        finally:
            self._refreshed_s = asyncio.get_running_loop().time()
            self._refreshing = None

    async def _look(self) -> None:
        """Learn what the ring is now."""
        raise NotImplementedError

    async def _look_by_time(self) -> None:
        """Do what is to be done now and then."""
        raise NotImplementedError

    def _use(self, router: Router) -> None:
        if router != self._router:
            self._router = router
            self._owners.clear()

    def _tell_of_time(self) -> None:
        """Tell the listeners also if some partition may have met its moment since the last time."""
        since_s, self._watched_s = self._watched_s, self._clock()
        change = self._router.batch_size
        if isinstance(change, GradualChange) and since_s < change.end_s and change.start_s <= self._watched_s:
            self._tell()
        else:
            self._tell_of_change()

    def _tell_of_change(self) -> None:
        if self._router != self._told:
            self._tell()

    def _tell(self) -> None:
        self._told = self._router
        for listener in self._listeners:
            listener()


class MemberRing(_Ring):
    """The ring of a host of the cluster, made once for each change of membership or of the batch size.

    A host that could not renew its heartbeat in time counts as dead to all others, who have taken over what it owned;
    so it leaves itself out, until it is heard again. Where it knows of no other host there is nobody to take over.
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
        """Begin to tell the listeners what only time changes."""
        self._watch(WATCH_INTERVAL_S)

    async def close(self) -> None:
        """Look no more."""
        self._unsubscribe()
        await super().close()

    def route(self, partition: Partition) -> str:
        """The host that owns `partition` now; `NoHosts` if nobody does."""
        if self._membership.is_alive is not self._was_alive:
            # The listeners hear of it by and by: they may be the very ones who ask, and must not be met halfway.
            self._use(self._present())
        return super().route(partition)

    async def _look(self) -> None:
        await self._membership.look()

    async def _look_by_time(self) -> None:
        self._use(self._present())

    def _use_batch_size(self, batch_size: BatchSize) -> None:
        self._batch_size = batch_size
        self._rebuild()

    def _rebuild(self) -> None:
        self._use(self._present())
        self._tell_of_change()

    def _present(self) -> Router:
        ring, self._was_alive = self._membership.ring, self._membership.is_alive
        if not self._was_alive and len(ring.hosts) > 1:
            ring = ring.without_host(self._membership.host)
        return Router(ring, self._batch_size)


class RemoteRing(_Ring):
    """The ring as the cluster's hosts tell it to a client outside: asked now and then, and when an answer says so.

    Each time another host is asked first, so that one which is behind does not mislead for long. The seeds are asked
    when nobody else is known, or answers.
    """

    def __init__(self, caller: Caller, seeds: Sequence[str], *, clock: Clock) -> None:
        if not seeds:
            raise NoSeeds("no host to ask for the ring: give the address of at least one")
        super().__init__(clock=clock)
        self._caller = caller
        self._seeds = tuple(seeds)
        self._looks = 0

    async def open(self) -> None:
        """Learn the ring for the first time, and follow it from now on; `NoAnswer` if there is nobody to ask."""
        await self._ask()
        self._watch(REMOTE_INTERVAL_S)

    async def _look(self) -> None:
        with suppress(NoAnswer):
            await self._ask()

    async def _look_by_time(self) -> None:
        await self.refresh()

    async def _ask(self) -> None:
        failures: list[str] = []
        for host in self._candidates():
            try:
                answer = await self._caller.call(host, RING, RingRequest(), timeout_s=REMOTE_TIMEOUT_S)
                known = self._router.ring
                # To make a ring takes much longer than to see that it is the same.
                ring = known if sorted(answer.hosts) == list(known.hosts) else HashRing(answer.hosts)
                router = Router(ring, answer.spread_batch_size)
            except FairleadError as failure:
                failures.append(f"{host}: {failure}")
                continue
            # A host that is leaving, and was alone, knows of nobody: what is known already is no worse.
            if router.ring.hosts:
                self._use(router)
                self._tell_of_change()
                return
            failures.append(f"{host}: knows of no host that is alive")
        raise NoAnswer(f"nobody tells the ring; is the server running, and are these its hosts? {'; '.join(failures)}")

    def _candidates(self) -> list[str]:
        # Half of them are seeds: everyone else may be gone.
        chosen = [*self._turn(self.hosts), *self._turn(self._seeds)]
        self._looks += 1
        return list(dict.fromkeys(chosen))

    def _turn(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Some of the hosts, beginning with another one each time."""
        first = self._looks % max(1, len(hosts))
        return (hosts[first:] + hosts[:first])[: REMOTE_ASKED_MAX // 2]
