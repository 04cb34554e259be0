"""The interface of a shard to its replication work, which `ndc` implements."""

from typing import Protocol

from fairlead.api.namespaces import Namespace


class ReplicationWork(Protocol):
    """Failovers, backfills and handovers of the namespaces in one shard."""

    def take_over(self) -> None:
        """Begin after this host has acquired the shard."""
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
        """Start the work that a change of a namespace requires."""
        ...

    async def write_buffered_events(self, namespace: Namespace) -> None:
        """Write the buffered events of all runs of a namespace, so that a handover includes them."""
        ...

    def is_backfilled(self, namespace: Namespace, cluster: str) -> bool:
        """Whether a cluster has received all runs that existed before it was added to the namespace."""
        ...
