"""The work of a shard that follows from replication, as the shard needs it; `ndc` implements it."""

from typing import Protocol

from fairlead.api.namespaces import Namespace


class ReplicationWork(Protocol):
    """Failovers, backfills and handovers of the namespaces in one shard."""

    def take_over(self) -> None:
        """Begin with a shard that this host has just acquired."""
        ...

    async def read(self) -> None:
        """Read the unfinished work from the store, before the shard runs any task or writes anything."""
        ...

    def open(self) -> None:
        """Continue the unfinished work."""
        ...

    async def close(self) -> None:
        """Stop all work; the next owner continues it."""
        ...

    def namespace_changed(self, namespace: Namespace) -> None:
        """Start the work that follows from a changed namespace."""
        ...

    async def write_buffered_events(self, namespace: Namespace) -> None:
        """Write the buffered events of all runs of a namespace, so that a handover includes them."""
        ...

    def is_backfilled(self, namespace: Namespace, cluster: str) -> bool:
        """Whether a cluster has all runs that existed before it was added to the namespace."""
        ...
