"""What every host of a cluster has: its place in the ring, and the matching service."""

import asyncio
import time

from fairlead.cluster.calls import Caller
from fairlead.cluster.membership import Membership, MembershipTimes
from fairlead.cluster.nudge import Nudges, nudge_all
from fairlead.cluster.ring import MemberRing
from fairlead.core.routing import HashRing
from fairlead.journal import TaskJournal
from fairlead.matching.service import MatchingService
from fairlead.matching.starting import Starter, start_plainly
from fairlead.settings import DynamicSettings, membership
from fairlead.storage.contract import TaskStore
from fairlead.telemetry import MEMBERSHIP_CHANGED, Metrics, get_log

# Others hear that a host comes or goes within this time, or find out by their own heartbeats.
NUDGE_S_MAX = 1.0

_log = get_log("server")


class HostRing:
    """The ring as this host sees it, and this host's place in it."""

    def __init__(self, name: str, *, store: TaskStore, caller: Caller, settings: DynamicSettings) -> None:
        self.name = name
        self._caller = caller
        times = MembershipTimes(
            heartbeat_s=settings.get(membership.HEARTBEAT_INTERVAL), alive_s=settings.get(membership.MEMBER_EXPIRY)
        )
        self.membership = Membership(store, name, clock=time.time, times=times)
        self.view = MemberRing(self.membership, settings, clock=time.time)
        self.nudges = Nudges(self.membership)
        self._heartbeat_s = times.heartbeat_s
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow what time alone changes."""
        self.view.start()

    async def join(self) -> None:
        """Enter the ring; the others are told."""
        await self.membership.join()
        await self._nudge()

    async def follow(self) -> None:
        """Know the ring without being in it: a host that owns nothing only has to find those who do."""
        await self.membership.look()
        self._following = asyncio.create_task(self._look_forever())

    async def leave(self) -> bool:
        """Leave the ring, so that others take over; False if there is nobody else."""
        await self.membership.leave()
        await self._nudge()
        return bool(self.membership.ring.hosts)

    async def close(self) -> None:
        """Look no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self.nudges.close()
        await self.view.close()

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self.membership.look()

    async def _nudge(self) -> None:
        await nudge_all(self._caller, self.membership.ring.hosts, sender=self.name, timeout_s=NUDGE_S_MAX)


class Host:
    """The ring and the matching service of one host, however they are reached."""

    def __init__(
        self,
        name: str,
        *,
        store: TaskStore,
        caller: Caller,
        settings: DynamicSettings,
        metrics: Metrics,
        start: Starter = start_plainly,
        ring: HostRing | None = None,
        journal: TaskJournal | None = None,
    ) -> None:
        """`ring` is given where other services of the host use it, too."""
        self.name = name
        self._ring = ring = ring or HostRing(name, store=store, caller=caller, settings=settings)
        self.membership = ring.membership
        self.ring = ring.view
        self.matching = MatchingService(
            name,
            store=store,
            caller=caller,
            ring=ring.view,
            settings=settings,
            clock=time.time,
            start=start,
            metrics=metrics,
            log=get_log("matching"),
            journal=journal,
        )
        self.handlers = self.matching.handlers()
        ring.nudges.add_to(self.handlers)

        def note_change(present: HashRing) -> None:
            metrics.count(MEMBERSHIP_CHANGED)
            _log.info(
                "ring changed",
                host=name,
                hosts=list(present.hosts),
                **{what: list(who) for what, who in self.membership.latest_change._asdict().items() if who},
                partitions_loaded=len(self.matching.engine.loaded),
            )

        self.membership.on_change(note_change)

    def start(self) -> None:
        """Begin what runs by itself; the host can be asked from now on."""
        self._ring.start()
        self.matching.start()

    async def join(self) -> None:
        """Enter the ring; the others are told."""
        await self._ring.join()

    async def leave(self) -> bool:
        """Leave the ring, so that others take over; False if there is nobody else."""
        return await self._ring.leave()

    async def close(self) -> None:
        """Unload everything. Polls that wait are answered empty."""
        await self.matching.close()
        await self._ring.close()
