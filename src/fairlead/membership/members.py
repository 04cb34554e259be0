"""Membership by heartbeat: each host writes heartbeats to the store, and builds its ring from the live hosts."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core.errors import FixRequest
from fairlead.core.routing import HashRing
from fairlead.storage.tasks import Member, OutcomeUnknown, StoreUnavailable, TaskStore
from fairlead.storage.watched import moment
from fairlead.telemetry.logs import get_log

Clock = Callable[[], float]
RingListener = Callable[[HashRing], None]

_log = get_log("cluster.membership")


class InvalidMembership(FixRequest):
    """The times are too short: a host would count as dead between two of its own heartbeats."""


@dataclass(frozen=True, slots=True)
class MembershipTimes:
    """Seconds between heartbeats, and seconds for which a heartbeat counts.

    A host stays alive while at least one heartbeat arrives in every `alive_s`. The clocks of the hosts must differ by
    much less than `alive_s`.
    """

    heartbeat_s: float = 1.0
    alive_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_s <= self.alive_s:
            raise InvalidMembership(
                f"alive_s is {self.alive_s} with a heartbeat every {self.heartbeat_s} s: "
                "give alive_s at least two heartbeat intervals"
            )


class RingChange(NamedTuple):
    """Hosts that joined or went.

    A host in `left` announced that it leaves; a host in `timed_out` sent no heartbeat in time.
    """

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    timed_out: tuple[str, ...] = ()


class Membership:
    """Keeps this host in the cluster; its ring equals the rings of the other hosts within one heartbeat.

    While the store is unreachable, the last ring stays in use: no host can learn of changes then. A host whose own
    heartbeat has expired knows that it counts as dead (`is_alive`), and owns nothing.
    """

    def __init__(
        self,
        store: TaskStore,
        host: str,
        *,
        clock: Clock,
        times: MembershipTimes | None = None,
        ring: HashRing | None = None,
    ) -> None:
        """`ring` is the first ring, from which later rings are computed; empty by default."""
        self._store = store
        self._host = host
        self._clock = clock
        self._times = times or MembershipTimes()
        self._ring = ring or HashRing([])
        self._latest_change = RingChange()
        # Expiry time of the heartbeat of each host in the ring.
        self._expires_s: dict[str, float] = {}
        self._alive_until_s = float("-inf")
        self._is_out_since_s: float | None = None
        self._listeners: list[RingListener] = []
        self._beating: asyncio.Task[None] | None = None

    @property
    def host(self) -> str:
        """The name of this host in the cluster."""
        return self._host

    @property
    def ring(self) -> HashRing:
        """The ring of the live hosts, as far as this host knows."""
        return self._ring

    @property
    def latest_change(self) -> RingChange:
        """The difference between the present ring and the previous ring."""
        return self._latest_change

    @property
    def is_alive(self) -> bool:
        """Whether this host's last heartbeat has not expired, so that it counts as alive."""
        return self._clock() < self._alive_until_s

    def on_change(self, listener: RingListener) -> None:
        """Call `listener` with each new ring, and at once with the present ring if it has hosts."""
        self._listeners.append(listener)
        if self._ring.hosts:
            listener(self._ring)

    async def join(self) -> None:
        """Enter the cluster and stay in it; when this returns, the host is in its own ring."""
        await self._beat()
        self._beating = asyncio.create_task(self._beat_forever())

    async def leave(self) -> None:
        """Leave the cluster at once, so that other hosts take over while this host can still respond."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        self._alive_until_s = float("-inf")
        # If the store is unreachable, the heartbeat expires.
        with suppress(StoreUnavailable, OutcomeUnknown):
            await self._store.leave(self._host)
        self._use([Member(host, expires_s) for host, expires_s in self._expires_s.items() if host != self._host])

    async def beat(self) -> None:
        """Send a heartbeat and refresh the ring; if the store is unavailable, the next heartbeat does both."""
        try:
            await self._beat()
        except (StoreUnavailable, OutcomeUnknown) as failure:
            self._note_silence(failure)

    async def refresh(self) -> None:
        """Refresh the ring without a heartbeat, so that a host that has left does not join again."""
        with suppress(StoreUnavailable):
            await self._refresh(self._clock())

    async def _beat(self) -> None:
        now_s = self._clock()
        until_s = now_s + self._times.alive_s
        # Compare expiry times with the time of the heartbeat, not with the present time: if the store or this process
        # has stalled, this host's own heartbeat has expired by now, and a single host would remove itself from its
        # ring.
        members = await self._store.heartbeat(Member(self._host, until_s), now_s=now_s)
        self._alive_until_s = until_s
        self._note_heard(now_s)
        self._use(members)

    async def _refresh(self, now_s: float) -> None:
        self._use(await self._store.members(now_s=now_s))

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._times.heartbeat_s)
            try:
                await self.beat()
            except Exception as failure:  # noqa: BLE001 - heartbeats must continue after any error
                _log.error("heartbeat failed", host=self._host, exc_info=failure)
                self._note_silence(failure)

    def _use(self, members: Sequence[Member]) -> None:
        known, now_s = self._expires_s, self._clock()
        self._expires_s = {member.host: member.expires_s for member in members}
        hosts = tuple(sorted(self._expires_s))
        if hosts == self._ring.hosts:
            return
        gone = sorted(known.keys() - self._expires_s.keys())
        self._latest_change = RingChange(
            joined=tuple(host for host in hosts if host not in known),
            left=tuple(host for host in gone if now_s < known[host]),
            timed_out=tuple(host for host in gone if now_s >= known[host]),
        )
        self._ring = self._ring.with_hosts(hosts)
        for listener in self._listeners:
            listener(self._ring)

    def _note_silence(self, failure: Exception) -> None:
        """Log once per outage that this host counts as dead."""
        # A host that has left, or never joined, sends no heartbeats on purpose.
        if self._is_out_since_s is not None or self.is_alive or self._alive_until_s == float("-inf"):
            return
        self._is_out_since_s = self._alive_until_s - self._times.alive_s
        fields = {"host": self._host, "since": moment(self._is_out_since_s), "error": str(failure)}
        if len(self._ring.hosts) > 1:
            _log.warning("the store can't be reached: this host owns nothing until it can", **fields)
        else:
            # No other host can have taken over, so the host still owns its partitions and shards.
            _log.warning("the store can't be reached: this host could not renew its heartbeat", **fields)

    def _note_heard(self, now_s: float) -> None:
        if self._is_out_since_s is not None:
            out_s = round(now_s - self._is_out_since_s, 3)
            _log.info("the store can be reached again: this host is back", host=self._host, out_s=out_s)
            self._is_out_since_s = None
