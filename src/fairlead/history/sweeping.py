"""What follows from the deletion of a namespace: its runs and entities are deleted, and then the namespace itself.

Each host sweeps the shards that it owns, page by page. There is no place to remember: what is deleted is not found
again. The first shard's owner lets the namespace go when nothing of it is left in any shard.
"""

import asyncio
from collections.abc import Callable, Mapping

from fairlead.core.errors import FairleadError
from fairlead.history.namespaces import DELETED, Namespace, Namespaces
from fairlead.history.refusals import Refused
from fairlead.history.runs import LoadedRun
from fairlead.history.shard import SECOND_NS, Shard
from fairlead.rpc import Code
from fairlead.storage.history_contract import HistoryStore, ListedRun, RunKey
from fairlead.telemetry import get_log

# How often deleted namespaces are looked for, and how long a sweep rests between two pages.
LOOK_S = 5.0
# For so long hosts may not have heard of a deletion, and may still begin runs.
UNHEARD_S = 15.0
REST_S = 0.01
PAGE_MAX = 200
CONCURRENT_MAX = 10

_log = get_log("history.sweeping")


class Sweeper:
    """Deletes what deleted namespaces have left in the shards of a host."""

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
        """Look from now on."""
        self._loop = asyncio.get_running_loop().create_task(self._look_forever())

    async def close(self) -> None:
        """Look no more. What is left is found by the next sweep."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def sweep(self) -> None:
        """Delete, in all shards that this host has, what is of deleted namespaces, and those that have nothing left."""
        for namespace in self._namespaces.all():
            if namespace.state != DELETED or not namespace.purge_after_ns:
                continue
            for shard in list(self._shards().values()):
                await self._sweep_shard(shard, namespace.id)
            if namespace.purge_after_ns + int(UNHEARD_S * SECOND_NS) <= self._clock_ns():
                await self._purge(namespace)

    async def _sweep_shard(self, shard: Shard, namespace_id: str) -> None:
        while not shard.is_lost:
            left = await self._left(shard.shard_id, namespace_id, PAGE_MAX)
            for start in range(0, len(left), CONCURRENT_MAX):
                await asyncio.gather(*(self._delete(shard, run) for run in left[start : start + CONCURRENT_MAX]))
            if len(left) < PAGE_MAX:
                return
            await asyncio.sleep(REST_S)

    async def _delete(self, shard: Shard, run: ListedRun) -> None:
        key = RunKey(*run[:3])
        async with shard.lock(key.namespace_id, key.workflow_id):
            if "#" in key.namespace_id:
                await shard.delete_entity(key)
                return
            try:
                loaded: LoadedRun = await shard.load(*key)
            except Refused as refused:
                if refused.code != Code.NOT_FOUND:
                    raise
                return
            await shard.delete(loaded)

    async def _purge(self, namespace: Namespace) -> None:
        """Let it go, if this host has the first shard and no shard has anything of it any more."""
        first = self._shards().get(0)
        if first is None or first.is_lost:
            return
        for shard_id in range(self._shards_count):
            if await self._left(shard_id, namespace.id, 1):
                return
        await self._namespaces.purge(namespace.id)
        _log.info("namespace is gone", namespace=namespace.name, namespace_id=namespace.id)

    async def _left(self, shard_id: int, namespace_id: str, limit: int) -> list[ListedRun]:
        """Some of what a shard has of a namespace: by the order of their keys runs come first, and then entities."""
        page = await self._store.list_runs(shard_id, after=RunKey(namespace_id, "", ""), limit=limit)
        return [run for run in page if run.namespace_id.partition("#")[0] == namespace_id]

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.sweep()
            except FairleadError as failure:
                _log.warning("sweep of deleted namespaces failed", error=str(failure))
