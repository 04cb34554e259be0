"""The lease of one host on a shard: acquired, renewed and lost."""

from collections.abc import Callable

from fairlead.core.errors import RetryElsewhere
from fairlead.storage.history import HistoryStore, LeaseLost, ShardLease


class NotOwner(RetryElsewhere):
    """Another host owns the shard, or soon will: nothing was done."""


class Ownership:
    """Whether this host owns a shard, and the range id that fences its writes.

    A lost shard stays lost: to own it again, the host opens it again, as a new object.
    """

    def __init__(self, shard_id: int, *, host: str, store: HistoryStore, on_lost: Callable[[], None]) -> None:
        self.shard_id = shard_id
        self.range_id = 0
        self.is_lost = False
        self._host = host
        self._store = store
        self._on_lost = on_lost

    async def acquire(self) -> ShardLease:
        """Become the owner of the shard. From now on, writes of the previous owner fail."""
        lease = await self._store.take_shard(self.shard_id)
        self.range_id = lease.range_id
        return lease

    async def renew(self) -> None:
        """Get a new range id. Writes in flight with the old range id would fail."""
        try:
            self.range_id = await self._store.renew_shard(self.shard_id, self.range_id)
        except LeaseLost as lost:
            self.lose()
            raise self.taken() from lost

    def lose(self) -> None:
        """Give the shard up: another host owns it, or the outcome of a write is unknown and it must be reopened."""
        if not self.is_lost:
            self.is_lost = True
            self._on_lost()

    def check(self) -> None:
        """Raise `NotOwner` if the shard is lost."""
        if self.is_lost:
            raise NotOwner(f"host {self._host} no longer owns shard {self.shard_id}: call its new owner")

    def taken(self) -> NotOwner:
        """The error for a write that the store rejected because another host has the lease."""
        return NotOwner(f"another host owns shard {self.shard_id} now: call its new owner")
