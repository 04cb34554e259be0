"""Writes to the store, fenced by the range id of a shard."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fairlead.aio.cancellation import Uncancellable
from fairlead.core.errors import FairleadError
from fairlead.history.shard.ownership import Ownership
from fairlead.storage.commit import Commit
from fairlead.storage.history import HistoryStore, LeaseLost, OutcomeUnknown, RunKey

_BeginCommit = Callable[[int, int, Commit], "asyncio.Future[Any]"]


class StoreWrites:
    """Sends the writes of one shard to the store, and keeps track of the writes in flight.

    Cancelling a caller does not interrupt its write, because the outcome would be unknown. Each method returns whether
    the caller was cancelled during the write; if so, the caller must raise `CancelledError`.
    """

    def __init__(self, ownership: Ownership, store: HistoryStore) -> None:
        self._ownership = ownership
        self._store = store
        # Some stores can begin a commit without a coroutine, which saves an asyncio task for each commit.
        self._begin: _BeginCommit | None = getattr(store, "begin_commit", None)
        self._in_flight: set[asyncio.Future[Any]] = set()

    async def commit(self, commit: Commit) -> bool:
        """Write a commit, all or nothing."""
        shard_id, range_id = self._ownership.shard_id, self._ownership.range_id
        if self._begin is None:
            return await self._write(asyncio.ensure_future(self._store.commit(shard_id, range_id, commit)))
        return await self._write(self._begin(shard_id, range_id, commit))

    async def delete_run(self, key: RunKey, *, branches: Sequence[tuple[str, str]]) -> bool:
        """Delete a run with these branches, each a tree id and a branch id."""
        deleting = self._store.delete_run(self._ownership.shard_id, self._ownership.range_id, key, branches=branches)
        return await self._write(asyncio.ensure_future(deleting))

    async def until_written(self) -> None:
        """Wait until the writes that are now in flight have ended."""
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    async def drain(self) -> None:
        """Wait until no write is in flight."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    async def _write(self, writing: "asyncio.Future[Any]") -> bool:
        self._in_flight.add(writing)
        was_cancelled = False
        try:
            while True:
                try:
                    await (writing if isinstance(writing, Uncancellable) else asyncio.shield(writing))
                except asyncio.CancelledError:
                    if writing.cancelled():
                        raise
                    was_cancelled = True
                    continue
                return was_cancelled
        except FairleadError as failure:
            if isinstance(failure, LeaseLost | OutcomeUnknown):
                self._ownership.lose()
            if was_cancelled:
                # Raise the cancellation, not the failure: `Shard.close` waits for the cancelled caller to end.
                raise asyncio.CancelledError from failure
            if isinstance(failure, LeaseLost):
                raise self._ownership.taken() from failure
            raise
        finally:
            self._in_flight.discard(writing)
