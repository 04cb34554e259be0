"""Writes in namespaces that live in several clusters: whether this one may make them, and when they have to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from fairlead.core.errors import RetryElsewhere
from fairlead.history.state import RunClosed
from fairlead.history.state.times import SECOND_NS

if TYPE_CHECKING:
    from fairlead.history.namespaces import Namespace
    from fairlead.history.scope import Services
    from fairlead.history.state import RunState

T = TypeVar("T")

# A host hears of a change of a namespace at once, or looks again after so long.
LOOK_AGAIN_S = 0.1


class BeingHandedOver(RetryElsewhere):
    """The namespace is being handed over to another cluster: nothing was done, and it is done when that is over."""


class SharedWrites:
    """The writes of one shard in namespaces of several clusters."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._under_way: dict[str, int] = {}
        # By namespace: what is being applied of other clusters' histories.
        self._applying: dict[str, set[object]] = {}
        # By namespace: until when its writes wait, because it is handed over to another cluster.
        self._until_ns: dict[str, int] = {}
        # Set, and replaced by another, when a write has ended or a namespace has changed.
        self._news = asyncio.Event()

    async def check(self, namespace: Namespace, *states: RunState, last_version: int = 0) -> Namespace:
        """The namespace as it is known now, if this cluster may write to these runs of it.

        A zombie is refused as a closed run is. `last_version` is that of the run which a new one follows. Nobody waits
        here, with the lock of a workflow id, for the end of a hand-over, which needs that lock.
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
        """Refuse while it is handed over: what is written then would not reach the other cluster in time."""
        if self._left_s(namespace) > 0:
            raise BeingHandedOver(
                f"namespace {namespace.name!r} is being handed over to another cluster: try again when that is over"
            )

    async def do(self, namespace: Namespace, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that may write; what comes upon a hand-over waits for its end, and is then done from the start.

        To be called without a lock.
        """
        while True:
            try:
                return await work()
            except BeingHandedOver:
                while (left_s := self._left_s(namespace)) > 0:
                    await self._hear(min(left_s, LOOK_AGAIN_S))

    def _left_s(self, namespace: Namespace) -> float:
        """How long the namespace may still be handed over; 0 if it is not."""
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
        """A write is under way; to be called right after `check`."""
        self._under_way[namespace_id] = self._under_way.get(namespace_id, 0) + 1

    def end(self, namespace_id: str) -> None:
        """It is durable, or never will be."""
        left = self._under_way[namespace_id] - 1
        if left:
            self._under_way[namespace_id] = left
        else:
            del self._under_way[namespace_id]
            self.tell()

    @contextmanager
    def applying(self, namespace_id: str) -> Iterator[None]:
        """Within this, something of another cluster's is written as the namespace is known at the beginning."""
        mark = object()
        marks = self._applying.setdefault(namespace_id, set())
        marks.add(mark)
        try:
            yield
        finally:
            marks.discard(mark)
            self.tell()

    async def until_applied(self, namespace_id: str) -> None:
        """Until all has ended that is being applied now."""
        begun = set(self._applying.get(namespace_id, ()))
        while begun & self._applying.get(namespace_id, set()):
            await self._hear(LOOK_AGAIN_S)

    def tell(self) -> None:
        """Let those look again who wait."""
        self._news.set()
        self._news = asyncio.Event()

    async def hand_over(self, namespace_id: str, until_ns: int) -> None:
        """From now on writes of the namespace wait, until then at most; ends when none is under way.

        Neither is anything being applied: what comes from third clusters may leave events of this cluster's own.
        """
        self._until_ns[namespace_id] = until_ns
        while namespace_id in self._under_way:
            await self._hear(LOOK_AGAIN_S)
        await self.until_applied(namespace_id)

    def end_hand_over(self, namespace_id: str, until_ns: int) -> None:
        """Writes go on, unless they wait for another hand-over than the one that was to last until then."""
        if self._until_ns.get(namespace_id) == until_ns:
            del self._until_ns[namespace_id]
        self.tell()
