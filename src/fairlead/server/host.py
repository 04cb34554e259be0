"""Parts that every host of a cluster has: its membership in the ring, and the matching service."""

import asyncio
import time
from collections.abc import Callable

from fairlead.core.namespaces import NamespaceNames
from fairlead.core.routing import HashRing
from fairlead.journal import TaskJournal
from fairlead.matching.inspection import Inspection
from fairlead.matching.service import MatchingService
from fairlead.matching.task_starter import Starter, start_plainly
from fairlead.membership.members import Membership, MembershipTimes
from fairlead.membership.notifications import Nudges, nudge_all
from fairlead.membership.ring import MemberRing
from fairlead.rpc.hosts.caller import Caller
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic import membership
from fairlead.storage.tasks import TaskStore
from fairlead.telemetry import MEMBERSHIP_CHANGED, Metrics, get_log

# Seconds to notify other hosts of a join or leave; hosts not reached in time learn it from their next heartbeat.
NUDGE_S_MAX = 1.0

_log = get_log("server")


class HostRing:
    """The ring as one host sees it, and the host's membership in it."""

    def __init__(
        self,
        name: str,
        *,
        store: TaskStore,
        caller: Caller,
        settings: DynamicSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._caller = caller
        times = MembershipTimes(
            heartbeat_s=settings.get(membership.HEARTBEAT_INTERVAL), alive_s=settings.get(membership.MEMBER_EXPIRY)
        )
        self.membership = Membership(store, name, clock=clock, times=times)
        self.view = MemberRing(self.membership, settings, clock=clock)
        self.nudges = Nudges(self.membership)
        self._heartbeat_s = times.heartbeat_s
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the view's timer: gradual changes of placement depend on time."""
        self.view.start()

    async def join(self) -> None:
        """Enter the ring and notify the other hosts."""
        await self.membership.join()
        await self._nudge()

    async def follow(self) -> None:
        """Follow the ring without joining: a host that owns nothing only has to find the owners."""
        await self.membership.refresh()
        self._following = asyncio.create_task(self._refresh_forever())

    async def leave(self) -> bool:
        """Leave the ring, so that other hosts take over; False if this host was alone."""
        await self.membership.leave()
        await self._nudge()
        return bool(self.membership.ring.hosts)

    async def close(self) -> None:
        """Stop following the ring."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self.nudges.close()
        await self.view.close()

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            await self.membership.refresh()

    async def _nudge(self) -> None:
        await nudge_all(self._caller, self.membership.ring.hosts, sender=self.name, timeout_s=NUDGE_S_MAX)


def is_of_history(payload: bytes) -> bool:
    """Whether a task's payload is one that only the history service adds."""
    # Imported late: Temporal's messages load slowly, and a host with only the matching role doesn't need them.
    from fairlead.history.messages.matching_tasks import decode_matched  # noqa: PLC0415

    return decode_matched(payload, "", b"") is not None


def _is_of_nobody(_payload: bytes) -> bool:
    return False


class Host:
    """The ring and the matching service of one host, without a transport."""

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
        names: NamespaceNames | None = None,
    ) -> None:
        """`ring` is given if other services of the host use it too."""
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
            names=names,
        )
        self.handlers = self.matching.handlers()
        is_owned = _is_of_nobody if start is start_plainly else is_of_history
        Inspection(self.matching.engine, is_owned=is_owned).add_to(self.handlers)
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
        """Start background tasks; the host can answer calls from now on."""
        self._ring.start()
        self.matching.start()

    async def join(self) -> None:
        """Enter the ring and notify the other hosts."""
        await self._ring.join()

    async def leave(self) -> bool:
        """Leave the ring, so that other hosts take over; False if this host was alone."""
        return await self._ring.leave()

    async def close(self) -> None:
        """Unload all partitions; waiting polls get an empty response."""
        await self.matching.close()
        await self._ring.close()
