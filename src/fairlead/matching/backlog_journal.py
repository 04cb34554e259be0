"""Periodic snapshots of the backlogs of all loaded partitions, for the journal."""

import asyncio

from fairlead.core.partitions import Partition
from fairlead.matching.clock import Clock
from fairlead.matching.engine import Engine
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic import journal

# Number of partitions recorded before other asyncio tasks may run.
PARTITIONS_AT_ONCE = 100


class BacklogSnapshots:
    """Records the backlog of each loaded partition in its journal. An idle partition is recorded once."""

    def __init__(self, engine: Engine, *, settings: DynamicSettings, clock: Clock) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._busy: set[Partition] = set()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take snapshots."""
        self._looking = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        """Stop taking snapshots."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def refresh(self) -> None:
        """Take one snapshot of all loaded partitions."""
        before, self._busy = self._busy, set()
        # A copy: partitions are loaded and unloaded during the awaits.
        for position, manager in enumerate(list(self._engine.managers()), start=1):
            report, pollers = manager.reports.current(), manager.queue.polls_waiting
            is_busy = bool(report.tasks or pollers)
            if is_busy:
                self._busy.add(manager.partition_id)
            if manager.journal is not None and (is_busy or manager.partition_id in before):
                manager.journal.backlog(self._clock(), tasks=report.tasks, age_s=report.age_s, pollers=pollers)
            if position % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.get(journal.BACKLOG_INTERVAL))
            await self.refresh()
