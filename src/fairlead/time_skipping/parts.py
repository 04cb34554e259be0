"""The parts of a time-skipping server: created before its services, then connected to them."""

import time

from fairlead.api.namespaces import Namespaces
from fairlead.history.service import HistoryService
from fairlead.history.shard.shard import Shard
from fairlead.time_skipping.calls import CallWatch
from fairlead.time_skipping.clock import SkippingClock
from fairlead.time_skipping.counter import LockCounter
from fairlead.time_skipping.skipper import Skipper
from fairlead.time_skipping.work import WorkWatch


class TimeSkipping:
    """The clock of a server, and the watches that decide when it may jump. The server must be the whole cluster."""

    def __init__(self, *, is_locked: bool = True) -> None:
        """`is_locked`: the lock counter starts at 1, as the SDKs expect, instead of 0."""
        self.clock = SkippingClock()
        self.calls = CallWatch(time.monotonic)
        self.work = WorkWatch()
        self._counter = LockCounter(1 if is_locked else 0)

    def skipper(self, history: HistoryService, namespaces: Namespaces) -> Skipper:
        """Start skipping time for a history service."""

        def shards() -> list[Shard] | None:
            found = [shard for shard in history.shards.values() if not shard.ownership.is_lost]
            return found if len(found) == history.shards_count else None

        def namespace_name(namespace_id: str) -> str:
            namespace = namespaces.cached_id(namespace_id)
            return "" if namespace is None else namespace.name

        return Skipper(
            self.clock,
            counter=self._counter,
            calls=self.calls,
            work=self.work,
            shards=shards,
            namespace_name=namespace_name,
        )
