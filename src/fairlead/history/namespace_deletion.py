"""The sweep after the deletion of a namespace: deletes its runs and entities, then the namespace itself.

Each host sweeps the shards that it owns, page by page. A sweep needs no cursor, because deleted runs are not listed
again. The owner of the first shard removes the namespace when no shard has runs or entities of it.
"""

import asyncio
from collections.abc import Callable, Mapping

from fairlead.api.entity_namespaces import base_namespace_id, is_entity
from fairlead.api.errors import NotFound
from fairlead.api.namespaces import DELETED, Namespace, Namespaces
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import FairleadError
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.shard import Shard
from fairlead.storage.history import HistoryStore, ListedRun, RunKey
from fairlead.telemetry import get_log

# Seconds between two sweeps.
POLL_S = 5.0
# Seconds for which a host may not yet have read a deletion, and may still start runs.
UNHEARD_S = 15.0
# Pause in seconds between two pages.
REST_S = 0.01
PAGE_MAX = 200
CONCURRENT_MAX = 10

_log = get_log("history.namespace_deletion")


class Sweeper:
    """Deletes the runs and entities of deleted namespaces in the shards of a host."""

    def __init__(
        self,
        *,
        store: HistoryStore,
        namespaces: Namespaces,
        shards: Callable[[], Mapping[int, Shard]],
        shards_count: int,
        clock_ns: Callable[[], int],
    ) -> None:
        self._store = store
        self._namespaces = namespaces
        self._shards = shards
        self._shards_count = shards_count
        self._clock_ns = clock_ns
        self._loop: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start the periodic sweep."""
        self._loop = asyncio.get_running_loop().create_task(self._refresh_forever())

    async def close(self) -> None:
        """Stop the periodic sweep; the next sweep finds the rest."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def sweep(self) -> None:
        """Delete the runs of deleted namespaces in all shards of this host, and the namespaces without runs."""
        for namespace in self._namespaces.all():
            if namespace.state != DELETED or not namespace.purge_after_ns:
                continue
            for shard in list(self._shards().values()):
                await self._sweep_shard(shard, namespace.id)
            if namespace.purge_after_ns + int(UNHEARD_S * SECOND_NS) <= self._clock_ns():
                await self._purge(namespace)

    async def _sweep_shard(self, shard: Shard, namespace_id: str) -> None:
        while not shard.ownership.is_lost:
            left = await self._left(shard.shard_id, namespace_id, PAGE_MAX)
            for start in range(0, len(left), CONCURRENT_MAX):
                await asyncio.gather(*(self._delete(shard, run) for run in left[start : start + CONCURRENT_MAX]))
            if len(left) < PAGE_MAX:
                return
            await asyncio.sleep(REST_S)

    async def _delete(self, shard: Shard, run: ListedRun) -> None:
        key = RunKey(run.namespace_id, run.workflow_id, run.run_id)
        async with shard.lock(key.namespace_id, key.workflow_id):
            if is_entity(key.namespace_id):
                await shard.writer.delete_entity(key)
                return
            try:
                loaded: LoadedRun = await shard.load(*key)
            except NotFound:
                return
            await shard.writer.delete(loaded)

    async def _purge(self, namespace: Namespace) -> None:
        """Remove a namespace if this host owns the first shard, and no shard has runs or entities of the namespace."""
        first = self._shards().get(0)
        if first is None or first.ownership.is_lost:
            return
        for shard_id in range(self._shards_count):
            if await self._left(shard_id, namespace.id, 1):
                return
        await self._namespaces.purge(namespace.id)
        _log.info("deleted namespace removed", namespace=namespace.name, namespace_id=namespace.id)

    async def _left(self, shard_id: int, namespace_id: str, limit: int) -> list[ListedRun]:
        """Up to `limit` runs and entities of a namespace in a shard; the runs come first."""
        page = await self._store.list_runs(shard_id, after=RunKey(namespace_id, "", ""), limit=limit)
        return [run for run in page if base_namespace_id(run.namespace_id) == namespace_id]

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.sweep()
            except FairleadError as failure:
                _log.warning("sweep of deleted namespaces failed", error=str(failure))
