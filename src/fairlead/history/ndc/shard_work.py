"""All replication work of one shard: failovers, backfills, and buffered events before a handover."""

from fairlead.api.namespaces import Namespace
from fairlead.history.ndc.backfill import BackfillSweeps
from fairlead.history.ndc.failover import FailoverSweeps
from fairlead.history.ndc.handover import Buffers
from fairlead.history.shard.shard import Shard


class ShardReplicationWork:
    """Implements `ReplicationWork` for a shard."""

    def __init__(self, shard: Shard) -> None:
        self._failovers = FailoverSweeps(shard)
        self._backfills = BackfillSweeps(shard)
        self._buffered_events = Buffers(shard, shard.queues.timer)

    def take_over(self) -> None:
        """Begin after this host has acquired the shard."""
        self._buffered_events.open()

    async def read(self) -> None:
        """Read the unfinished work from the store, before the shard runs any task or writes anything."""
        # Read before any task runs: tasks of a namespace that has become active here again must not be dropped.
        await self._failovers.read()
        # Read before any write: clusters that have the existing runs must also get the new events.
        await self._backfills.read()

    def open(self) -> None:
        """Continue the unfinished work."""
        self._failovers.open()
        self._backfills.open()

    async def close(self) -> None:
        """Stop all work; the next owner continues it."""
        await self._failovers.close()
        await self._backfills.close()

    def namespace_changed(self, namespace: Namespace) -> None:
        """Start the work that a change of a namespace requires."""
        self._failovers.start_due(namespace)
        self._backfills.start_due(namespace)

    async def write_buffered_events(self, namespace: Namespace) -> None:
        """Write the buffered events of all runs of a namespace, so that a handover includes them."""
        await self._buffered_events.write(namespace)

    def is_backfilled(self, namespace: Namespace, cluster: str) -> bool:
        """Whether a cluster has received all runs that existed before it was added to the namespace."""
        return self._backfills.is_backfilled(namespace, cluster)
