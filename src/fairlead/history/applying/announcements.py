"""What a shard does when a namespace comes to live in one more cluster: it tells that one of all runs that it has.

An announcement is a row of the shard's stream, for that cluster alone: it has the line of one branch, and no events.
The cluster finds that it does not have them, and gets them as it gets all that is missing. One that has them already
finds that, too.

Every cluster of the namespace tells of all that it has, whether the namespace is active there or not, so nothing is
lost by a failover in between: a run may be in a passive cluster alone, which was active a moment ago; and the active
one may be the only one that can still tell of what another has written.

Nothing is missed in between, either: what is written from the moment on when this host knows of the cluster is
streamed to it, what was on its way to the store is waited for, and all else is there to be swept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from fairlead.history.applying.branches import branches_of
from fairlead.history.applying.sweeps import Sweeps
from fairlead.history.state import UnreadableState, decode
from fairlead.history.stream_rows import StreamRow, announcement_row
from fairlead.storage.history_contract import ListedRun, RunKey
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.history.namespaces import Namespace
    from fairlead.history.shard import Shard

# So often it is looked whether a cluster that is to acknowledge announcements is still to be told.
LOOK_S = 1.0

_log = get_log("history.announcements")


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """How far a cluster was told: of all runs up to this one, or of all."""

    workflow_id: str = ""
    run_id: str = ""
    is_done: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Mark).decode


class Announcements(Sweeps):
    """Tells clusters of the runs of one shard; the key of a sweep is its namespace and the cluster that it is for.

    A cluster is told of one namespace at a time, and of the next runs when it has those before: so what is old neither
    holds up what is new, nor piles up here where the cluster is away.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, "announced")
        # By namespace and cluster.
        self._marks: dict[str, dict[str, Mark]] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def is_told(self, namespace: Namespace, cluster: str) -> bool:
        """Whether a cluster has all that there was before it was one of the namespace's."""
        return _key(namespace.id, cluster) not in self._due(namespace)

    def _remember(self, key: str, payload: bytes) -> None:
        namespace_id, _, cluster = key.partition("/")
        self._marks.setdefault(namespace_id, {})[cluster] = _decode(payload)

    def _knows_less(self, key: str, namespace: Namespace) -> bool:
        return key.partition("/")[2] not in namespace.clusters

    def _due(self, namespace: Namespace) -> Iterable[str]:
        """Those who are to be told of it, and those who are not any more: should they come back, it begins anew."""
        wanted = self._shard.stream.readers_of(namespace)
        marks = self._marks.get(namespace.id, {})
        done = {cluster for cluster, mark in marks.items() if mark.is_done}
        return {_key(namespace.id, cluster) for cluster in (wanted - done) | (marks.keys() - wanted)}

    async def _sweep(self, key: str, namespace: Namespace) -> None:
        cluster = key.partition("/")[2]
        if self._is_wanted(namespace.id, cluster):
            async with self._turns.setdefault(cluster, asyncio.Lock()):
                await self._tell(key, namespace, cluster)
        else:
            await self._forget(key)
            self._marks[namespace.id].pop(cluster, None)

    async def _tell(self, key: str, namespace: Namespace, cluster: str) -> None:
        await self._shard.until_written()
        mark = self._marks.get(namespace.id, {}).get(cluster)
        after = Mark() if mark is None else mark
        is_followed = mark is None or await self._until_heard(namespace.id, cluster)
        count = 0
        async for runs in self._pages(RunKey(namespace.id, after.workflow_id, after.run_id)):
            if not is_followed:
                return
            await self._announce(namespace, runs, cluster)
            await self._note(key, _encode(Mark(runs[-1].workflow_id, runs[-1].run_id)))
            count += len(runs)
            is_followed = await self._until_heard(namespace.id, cluster)
        if is_followed:
            await self._note(key, _encode(Mark(is_done=True)))
            if count:
                _log.info(
                    "cluster has the runs that were there before it",
                    shard=self._shard.shard_id,
                    namespace=namespace.name,
                    cluster=cluster,
                    runs=count,
                )

    async def _announce(self, namespace: Namespace, runs: Sequence[ListedRun], cluster: str) -> None:
        """Write the rows, in one commit."""
        shard = self._shard
        rows: list[StreamRow] = []
        for run in runs:
            rows += await self._rows_of(RunKey(*run[:3]), cluster)
        if not rows:
            return
        await shard.ensure_ids(len(rows))
        written = shard.written(namespace)
        # What they say is read when they are sent.
        written.streamed += [(row, b"") for row in rows]
        await shard.store(written)

    async def _rows_of(self, key: RunKey, cluster: str) -> list[StreamRow]:
        """A row for each branch; none if the run is gone. Not from the memory of the shard: most runs are not there."""
        services = self._shard.services
        stored = await services.store.read_run(self._shard.shard_id, *key)
        if stored is None:
            return []
        try:
            state = decode(stored.state)
        except UnreadableState as wrong:
            _log.error("run can't be announced", run_id=key.run_id, cluster=cluster, error=str(wrong))
            return []
        if state.versions is None:
            return []
        now_ns = services.clock_ns()
        return [
            announcement_row(key, state, branch.branch_id, branch.history, to=cluster, now_ns=now_ns)
            for branch in branches_of(state)
        ]

    async def _until_heard(self, namespace_id: str, cluster: str) -> bool:
        """Wait until a cluster has all that was said; False if it is not to be told any more."""
        stream = self._shard.stream
        last_id = stream.last_id
        while self._is_wanted(namespace_id, cluster):
            if stream.acknowledged(cluster) >= last_id:
                return True
            await stream.until_acknowledged(wait_s=LOOK_S)
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
