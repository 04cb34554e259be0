"""Writes to global namespaces: whether this cluster may write, and when writes wait for a handover."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from fairlead.api.times import SECOND_NS
from fairlead.core.errors import RetryElsewhere, RetryLater
from fairlead.history.state import RunClosed

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.history.shard.context import Services
    from fairlead.history.state import RunState

T = TypeVar("T")

# Seconds after which a waiting write checks the namespace again, in case a notification was missed.
RECHECK_S = 0.1


class BeingHandedOver(RetryElsewhere):
    """The namespace is being handed over to another cluster: nothing was written; try again after the handover."""


class NotHandedOverInTime(RetryLater):
    """Writes in flight in a shard did not end before the time limit of a handover."""


class HandoverWrites:
    """Tracks one shard's writes to global namespaces, so that a handover can wait for them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._under_way: dict[str, int] = {}
        # By namespace: a mark for each operation that is applying events of another cluster.
        self._applying: dict[str, set[object]] = {}
        # By namespace: the time limit of its handover, until which writes wait.
        self._until_ns: dict[str, int] = {}
        # Set, and replaced by a new event, when a write has ended or a namespace has changed.
        self._news = asyncio.Event()

    async def check(self, namespace: Namespace, *states: RunState, last_version: int = 0) -> Namespace:
        """The latest known namespace; raises an API error if this cluster may not write to these runs.

        A zombie counts as closed. `last_version` is the version of the previous run, if a new run is written. During a
        handover this raises an error instead of waiting, because the caller holds the lock of a workflow id, which the
        handover needs.
        """
        for state in states:
            if state.is_zombie:
                raise RunClosed
            last_version = max(last_version, state.last_version)
        namespaces = self._services.namespaces
        self.check_stays(namespace)
        known = namespaces.cached_id(namespace.id) or namespace
        if last_version > known.failover_version:
            known = await namespaces.read_id(namespace.id)
        self._services.clusters.check_writable(known, last_event_version=last_version)
        return known

    def check_stays(self, namespace: Namespace) -> None:
        """Raise an error during a handover: a write would not reach the other cluster in time."""
        if self._left_s(namespace) > 0:
            raise BeingHandedOver(
                f"namespace {namespace.name!r} is being handed over to another cluster: try again after the handover"
            )

    async def do_after_handover(self, namespace: Namespace, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work; if it fails because of a handover (`BeingHandedOver`), repeat it after the handover.

        The caller must hold no lock.
        """
        while True:
            while (left_s := self._left_s(namespace)) > 0:
                await self._hear(min(left_s, RECHECK_S))
            try:
                return await work()
            except BeingHandedOver:
                continue

    def _left_s(self, namespace: Namespace) -> float:
        """Seconds that are left for a handover of the namespace; 0 if there is none."""
        known = self._services.namespaces.cached_id(namespace.id) or namespace
        until_ns = max(self._until_ns.get(namespace.id, 0), known.handover_until_ns)
        if not until_ns or not self._services.clusters.is_active(known):
            return 0.0
        left_s = (until_ns - self._services.clock_ns()) / SECOND_NS
        if left_s <= 0:
            self._until_ns.pop(namespace.id, None)
        return max(left_s, 0.0)

    async def _hear(self, wait_s: float) -> None:
        news = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await news.wait()

    def begin(self, namespace_id: str) -> None:
        """Count a write as in flight. Call this right after `check`, without an await in between."""
        self._under_way[namespace_id] = self._under_way.get(namespace_id, 0) + 1

    def end(self, namespace_id: str) -> None:
        """Count a write as ended: it is durable, or never will be."""
        left = self._under_way[namespace_id] - 1
        if left:
            self._under_way[namespace_id] = left
        else:
            del self._under_way[namespace_id]
            self.notify()

    @contextmanager
    def applying(self, namespace_id: str) -> Iterator[None]:
        """Mark that events of another cluster are being applied, based on the namespace known at the beginning."""
        mark = object()
        marks = self._applying.setdefault(namespace_id, set())
        marks.add(mark)
        try:
            yield
        finally:
            marks.discard(mark)
            self.notify()

    async def until_applied(self, namespace_id: str) -> None:
        """Wait for the end of all operations that are now applying events of other clusters."""
        begun = set(self._applying.get(namespace_id, ()))
        while begun & self._applying.get(namespace_id, set()):
            await self._hear(RECHECK_S)

    def notify(self) -> None:
        """Make waiting callers check again."""
        self._news.set()
        self._news = asyncio.Event()

    async def hand_over(self, namespace_id: str, until_ns: int) -> None:
        """Make writes of the namespace wait, at most until `until_ns`; return when no write is in flight.

        Also waits until the batches that are being applied have ended: applying a third cluster's batch may add events
        of this cluster.
        """
        self._until_ns[namespace_id] = until_ns
        while namespace_id in self._under_way:
            await self._hear(RECHECK_S)
        await self.until_applied(namespace_id)

    def end_hand_over(self, namespace_id: str, until_ns: int) -> None:
        """End the handover that would last until `until_ns`: its writes continue. A newer handover is not affected."""
        if self._until_ns.get(namespace_id) == until_ns:
            del self._until_ns[namespace_id]
        self.notify()
