"""Backfill: when a cluster is added to a namespace, each shard replicates its existing runs to it.

A backfill row is a row of the shard's stream for that cluster only. It contains the version history of one branch, and
no events. The cluster fetches the events that it lacks, as for any gap.

Every cluster of the namespace, active or passive, backfills all its runs. So a failover in the meantime loses no run:
some runs may exist only in a passive cluster that was active a moment ago, and others only in the active cluster.

No run is missed. When this host learns of the cluster, it begins to stream new events to it, and waits for the writes
in flight; all other runs are in the store when the sweep begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from fairlead.history.ndc.branches import branches_of
from fairlead.history.ndc.sweeps import Sweeps
from fairlead.history.shard.stream_rows import StreamRow, backfill_row
from fairlead.history.state import UnreadableState, decode
from fairlead.storage.history import ListedRun, RunKey
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.history.shard.shard import Shard

# Seconds between two checks whether a cluster that has not acknowledged the rows still needs the backfill.
POLL_S = 1.0

_log = get_log("history.backfill")


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """Progress of a backfill: the last run that was sent, or that all runs were sent."""

    workflow_id: str = ""
    run_id: str = ""
    is_done: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Mark).decode


class BackfillSweeps(Sweeps):
    """Backfills clusters with the runs of one shard. The key of a sweep is its namespace and target cluster.

    A cluster gets one namespace at a time, and the next page of runs when it has acknowledged the previous page. So old
    runs neither delay new events, nor fill the stream while the cluster is down.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, "announced")
        # Progress by namespace id and cluster.
        self._marks: dict[str, dict[str, Mark]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def is_backfilled(self, namespace: Namespace, cluster: str) -> bool:
        """Whether a cluster has received all runs that existed before it was added to the namespace."""
        return _key(namespace.id, cluster) not in self._due(namespace)

    def _remember(self, key: str, payload: bytes) -> None:
        namespace_id, _, cluster = key.partition("/")
        self._marks.setdefault(namespace_id, {})[cluster] = _decode(payload)

    def _knows_less(self, key: str, namespace: Namespace) -> bool:
        return key.partition("/")[2] not in namespace.clusters

    def _due(self, namespace: Namespace) -> Iterable[str]:
        """The clusters that need a backfill, and clusters that left the namespace, whose progress must be deleted."""
        wanted = self._shard.stream.readers_of(namespace)
        marks = self._marks.get(namespace.id, {})
        done = {cluster for cluster, mark in marks.items() if mark.is_done}
        # Sorted, because the order of a set differs between processes, and a seed must repeat its simulation exactly.
        return [_key(namespace.id, cluster) for cluster in sorted((wanted - done) | (marks.keys() - wanted))]

    async def _sweep(self, key: str, namespace: Namespace) -> None:
        cluster = key.partition("/")[2]
        if self._is_wanted(namespace.id, cluster):
            async with self._turns.setdefault(cluster, asyncio.Lock()):
                await self._backfill(key, namespace, cluster)
        else:
            await self._forget(key)
            self._marks[namespace.id].pop(cluster, None)

    async def _backfill(self, key: str, namespace: Namespace, cluster: str) -> None:
        await self._shard.store_writes.until_written()
        mark = self._marks.get(namespace.id, {}).get(cluster)
        after = Mark() if mark is None else mark
        is_followed = mark is None or await self._until_acknowledged(namespace.id, cluster)
        count = 0
        async for runs in self._pages(RunKey(namespace.id, after.workflow_id, after.run_id)):
            if not is_followed:
                return
            await self._add_rows(namespace, runs, cluster)
            await self._note(key, _encode(Mark(runs[-1].workflow_id, runs[-1].run_id)))
            count += len(runs)
            is_followed = await self._until_acknowledged(namespace.id, cluster)
        if is_followed:
            await self._note(key, _encode(Mark(is_done=True)))
            if count:
                _log.info(
                    "backfill of a cluster completed",
                    shard=self._shard.shard_id,
                    namespace=namespace.name,
                    cluster=cluster,
                    runs=count,
                )

    async def _add_rows(self, namespace: Namespace, runs: Sequence[ListedRun], cluster: str) -> None:
        """Write the backfill rows of some runs, in one commit."""
        shard = self._shard
        rows: list[StreamRow] = []
        for run in runs:
            rows += await self._rows_of(RunKey.of(run), cluster)
        if not rows:
            return
        await shard.ids.ensure(len(rows))
        written = shard.writer.empty(namespace)
        # The payload is read when the row is sent, so it is not part of the row.
        written.streamed += [(row, b"") for row in rows]
        await shard.writer.store(written)

    async def _rows_of(self, key: RunKey, cluster: str) -> list[StreamRow]:
        """A row for each branch; none if the run is deleted.

        Reads the store, because most runs are not in the cache.
        """
        services = self._shard.services
        stored = await services.store.read_run(self._shard.shard_id, *key)
        if stored is None:
            return []
        try:
            state = decode(stored.state)
        except UnreadableState as wrong:
            _log.error("run can't be backfilled", run_id=key.run_id, cluster=cluster, error=str(wrong))
            return []
        if state.versions is None:
            return []
        now_ns = services.clock_ns()
        return [
            backfill_row(key, state, branch.branch_id, branch.history, to=cluster, now_ns=now_ns)
            for branch in branches_of(state)
        ]

    async def _until_acknowledged(self, namespace_id: str, cluster: str) -> bool:
        """Wait until a cluster has acknowledged all rows written so far; return False if it needs no backfill now."""
        stream = self._shard.stream
        last_id = stream.last_id
        while self._is_wanted(namespace_id, cluster):
            if stream.acknowledged(cluster) >= last_id:
                return True
            await stream.until_acknowledged(wait_s=POLL_S)
        return False

    def _is_wanted(self, namespace_id: str, cluster: str) -> bool:
        known = self._shard.services.namespaces.cached_id(namespace_id)
        return known is not None and cluster in self._shard.stream.readers_of(known)

    async def _forget(self, key: str) -> None:
        store = self._shard.services.store
        present = await store.read_metadata(self._prefix + key)
        if present is not None:
            await store.delete_metadata(self._prefix + key, expected_version=present.version)


def _key(namespace_id: str, cluster: str) -> str:
    return f"{namespace_id}/{cluster}"
