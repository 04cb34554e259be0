"""How the backlogs of a host grow and shrink, for the journal: a look at every loaded partition, again and again."""

import asyncio

from fairlead.core.partitions import Partition
from fairlead.matching.backlog import Clock
from fairlead.matching.engine import Engine
from fairlead.settings import DynamicSettings, journal

# Others have their turn after so many.
PARTITIONS_AT_ONCE = 100


class BacklogSnapshots:
    """Tells the journal of each loaded partition how much waits there; of an idle one that it is, once."""

    def __init__(self, engine: Engine, *, settings: DynamicSettings, clock: Clock) -> None:
        self._engine = engine
        self._settings = settings
        self._clock = clock
        self._busy: set[Partition] = set()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._looking = asyncio.create_task(self._look_forever())

    async def close(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def look(self) -> None:
        """Tell of all partitions, as they are now."""
        before, self._busy = self._busy, set()
        # A copy: partitions come and go meanwhile.
        for place, node in enumerate(list(self._engine.nodes()), start=1):
            report, pollers = node.report(), node.partition.polls_waiting
            is_busy = bool(report.tasks or pollers)
            if is_busy:
                self._busy.add(node.partition_id)
            if node.journal is not None and (is_busy or node.partition_id in before):
                node.journal.backlog(self._clock(), tasks=report.tasks, age_s=report.age_s, pollers=pollers)
            if place % PARTITIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.get(journal.BACKLOG_INTERVAL))
            await self.look()
