"""Membership by heartbeat: every host says in the store that it is alive, and makes its ring of those who do."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core.errors import FixRequest
from fairlead.core.routing import HashRing
from fairlead.storage.contract import Member, OutcomeUnknown, StoreUnavailable, TaskStore
from fairlead.storage.watched import moment
from fairlead.telemetry.logs import get_log

Clock = Callable[[], float]
RingListener = Callable[[HashRing], None]

_log = get_log("cluster.membership")


class InvalidMembership(FixRequest):
    """A host would be taken for dead between two of its own heartbeats."""


@dataclass(frozen=True, slots=True)
class MembershipTimes:
    """How often a host says that it is alive, and for how long that holds.

    Of several heartbeats in a row that are lost, or late, one is enough. The clocks of the hosts may differ by much
    less than the time that a heartbeat holds.
    """

    heartbeat_s: float = 1.0
    alive_s: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_s <= self.alive_s:
            raise InvalidMembership(
                f"a heartbeat every {self.heartbeat_s} s that holds for {self.alive_s} s: "
                "let it hold for at least two of them"
            )


class RingChange(NamedTuple):
    """Who came and who went. One who timed out was silent until its heartbeat ran out; one who left has said so."""

    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    timed_out: tuple[str, ...] = ()


class Membership:
    """Keeps this host in the cluster, and its ring like everybody else's within one heartbeat.

    When the store can't be reached, the last ring stays: nobody else learns anything new either. A host that could not
    renew its own heartbeat for so long that it counts as dead knows that itself (`is_alive`), and owns nothing.
    """

    def __init__(self, store: TaskStore, host: str, *, clock: Clock, times: MembershipTimes | None = None) -> None:
        self._store = store
        self._host = host
        self._clock = clock
        self._times = times or MembershipTimes()
        self._ring = HashRing([])
        self._latest_change = RingChange()
        # Until when those in the ring have said that they are alive.
        self._expires_s: dict[str, float] = {}
        self._alive_until_s = float("-inf")
        self._is_out_since_s: float | None = None
        self._listeners: list[RingListener] = []
        self._beating: asyncio.Task[None] | None = None

    @property
    def host(self) -> str:
        """The name under which the others know this host."""
        return self._host

    @property
    def ring(self) -> HashRing:
        """The hosts that are alive, as far as this one knows."""
        return self._ring

    @property
    def latest_change(self) -> RingChange:
        """What made the ring of the one before."""
        return self._latest_change

    @property
    def is_alive(self) -> bool:
        """Whether the others still count on this host."""
        return self._clock() < self._alive_until_s

    def on_change(self, listener: RingListener) -> None:
        """Call `listener` with each new ring, and with the present one now if there is one."""
        self._listeners.append(listener)
        if self._ring.hosts:
            listener(self._ring)

    async def join(self) -> None:
        """Enter the cluster and stay in it; when this returns, the host is in its own ring."""
        await self._beat()
        self._beating = asyncio.create_task(self._beat_forever())

    async def leave(self) -> None:
        """Leave the cluster at once, so that others take over while this host can still answer."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        self._alive_until_s = float("-inf")
        # Where the store can't be reached the heartbeat runs out by itself.
        with suppress(StoreUnavailable, OutcomeUnknown):
            await self._store.leave(self._host)
        self._use([Member(host, expires_s) for host, expires_s in self._expires_s.items() if host != self._host])

    async def beat(self) -> None:
        """Say that this host is alive, and learn who else is; what can't be done now is done next time."""
        try:
            await self._beat()
        except (StoreUnavailable, OutcomeUnknown) as failure:
            self._note_silence(failure)

    async def look(self) -> None:
        """Learn who is alive, and say nothing: so that one who has left may look, and stays away."""
        with suppress(StoreUnavailable):
            await self._look()

    async def _beat(self) -> None:
        now_s = self._clock()
        until_s = now_s + self._times.alive_s
        await self._store.heartbeat(Member(self._host, until_s))
        self._alive_until_s = until_s
        self._note_heard(now_s)
        await self._look()

    async def _look(self) -> None:
        self._use(await self._store.members(now_s=self._clock()))

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._times.heartbeat_s)
            try:
                await self.beat()
            except Exception as failure:  # noqa: BLE001 - a host that no longer beats is lost, whatever the reason was
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
        self._ring = HashRing(hosts)
        for listener in self._listeners:
            listener(self._ring)

    def _note_silence(self, failure: Exception) -> None:
        """Say once in an outage that this host counts as dead."""
        # One that has left, or never was there, is silent because it should be.
        if self._is_out_since_s is not None or self.is_alive or self._alive_until_s == float("-inf"):
            return
        self._is_out_since_s = self._alive_until_s - self._times.alive_s
        fields = {"host": self._host, "since": moment(self._is_out_since_s), "error": str(failure)}
        if len(self._ring.hosts) > 1:
            _log.warning("the store can't be reached: this host owns nothing until it can", **fields)
        else:
            # Nobody else is known who could have taken over.
            _log.warning("the store can't be reached: this host could not renew its heartbeat", **fields)

    def _note_heard(self, now_s: float) -> None:
        if self._is_out_since_s is not None:
            out_s = round(now_s - self._is_out_since_s, 3)
            _log.info("the store can be reached again: this host is back", host=self._host, out_s=out_s)
            self._is_out_since_s = None
