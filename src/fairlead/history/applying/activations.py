"""What a shard does when a namespace becomes active in this cluster, or is not active here any more.

In the first case all runs of the namespace get their tasks, of which there were none here; in the second the events
that wait for workflow tasks are written, so that they reach the others. Which version that was done for is durable, for
each shard and namespace: what was interrupted is done again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.core.errors import FairleadError
from fairlead.history.applying.flushing import flush
from fairlead.history.applying.refreshing import refresh
from fairlead.history.refusals import Refused
from fairlead.history.state import RunClosed, decode, encode
from fairlead.history.writing import Step
from fairlead.rpc import Code
from fairlead.storage.history_contract import OPEN_STATUSES, ListedRun, MetadataConflict, RunKey
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.history.namespaces import Namespace
    from fairlead.history.shard import Shard
    from fairlead.history.state import RunState

PAGE_MAX = 200
# Runs that are worked on at a time, by one shard.
CONCURRENT_MAX = 10
RETRY_S = 1.0
MARKS_A_PAGE_MAX = 500

_log = get_log("history.activations")


def mark_prefix(shard_id: int) -> str:
    """Where it is noted for which versions a shard has done what is to be done."""
    return f"replication/activated/{shard_id}/"


def _is_to_be_taken_up(state: RunState) -> bool:
    """Of closed runs, only those whose end somebody may not have heard of: their retention was seen to before."""
    has_family = state.started.parent is not None or state.closed_children or state.started.completion_callbacks
    return state.is_open or state.owes or bool(has_family)


class Activations:
    """Follows the changes of namespaces, in one shard."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        # By namespace: the version for which all is done.
        self._done: dict[str, int] = {}
        self._working: dict[str, asyncio.Task[None]] = {}
        self._is_open = False

    async def read(self) -> None:
        """Find out what is done. A namespace of which this host knows less than its shard does is read again."""
        services = self._shard.services
        prefix = mark_prefix(self._shard.shard_id)
        after: str | None = None
        while True:
            page = await services.store.list_metadata(prefix=prefix, after=after, limit=MARKS_A_PAGE_MAX)
            for mark in page:
                self._done[mark.key.removeprefix(prefix)] = int(mark.payload)
            if len(page) < MARKS_A_PAGE_MAX:
                break
            after = page[-1].key
        for namespace_id, version in self._done.items():
            known = services.namespaces.cached_id(namespace_id)
            if known is not None and known.failover_version < version:
                await services.namespaces.read_id(namespace_id)

    def open(self) -> None:
        """Do what is left to be done, and from now on what becomes so."""
        self._is_open = True
        for namespace in self._shard.services.namespaces.all():
            self.look_at(namespace)

    async def close(self) -> None:
        """Leave the rest to the next owner."""
        self._is_open = False
        working = list(self._working.values())
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being done."""
        return not self._working

    def look_at(self, namespace: Namespace) -> None:
        """Begin what follows from the version of a namespace, unless that is done or being done."""
        if (
            self._is_open
            and self._done.get(namespace.id, 0) < namespace.failover_version
            and namespace.id not in self._working
        ):
            task = asyncio.get_running_loop().create_task(self._work(namespace.id))
            self._working[namespace.id] = task
            task.add_done_callback(lambda _done: self._working.pop(namespace.id, None))

    async def _work(self, namespace_id: str) -> None:
        while True:
            namespace = self._shard.services.namespaces.cached_id(namespace_id)
            if namespace is None or self._done.get(namespace_id, 0) >= namespace.failover_version:
                return
            try:
                await self._sweep(namespace)
                await self._note(namespace)
            except FairleadError as failure:
                if self._shard.is_lost:
                    return
                _log.warning(
                    "runs of a namespace not taken up",
                    shard=self._shard.shard_id,
                    namespace=namespace.name,
                    version=namespace.failover_version,
                    error=str(failure),
                )
                await asyncio.sleep(RETRY_S)

    async def _note(self, namespace: Namespace) -> None:
        key, version = mark_prefix(self._shard.shard_id) + namespace.id, namespace.failover_version
        store = self._shard.services.store
        present = await store.read_metadata(key)
        try:
            await store.write_metadata(
                key, str(version).encode(), expected_version=0 if present is None else present.version
            )
        except MetadataConflict:
            # Another owner has noted it: this one is none any more.
            return
        self._done[namespace.id] = version

    async def _sweep(self, namespace: Namespace) -> None:
        is_active = self._shard.services.clusters.is_active(namespace)
        # What is still being applied as the namespace was before leaves no tasks, and may not be among the runs yet.
        await self._shard.shared.until_applied(namespace.id)
        after = RunKey(namespace.id, "", "")
        while True:
            page = await self._shard.services.store.list_runs(self._shard.shard_id, after=after, limit=PAGE_MAX)
            runs = [run for run in page if run.namespace_id == namespace.id]
            for start in range(0, len(runs), CONCURRENT_MAX):
                part = runs[start : start + CONCURRENT_MAX]
                await asyncio.gather(*(self._take_up(namespace, run, is_active=is_active) for run in part))
            if len(runs) < PAGE_MAX:
                return
            after = RunKey(*runs[-1][:3])

    async def _take_up(self, namespace: Namespace, listed: ListedRun, *, is_active: bool) -> None:
        shard = self._shard
        if not is_active and listed.status not in OPEN_STATUSES:
            return
        async with shard.lock(namespace.id, listed.workflow_id):
            try:
                run = await shard.load(*listed[:3])
            except Refused as refused:
                if refused.code != Code.NOT_FOUND:
                    raise
                return
            if not is_active:
                if run.state.live.buffered:
                    await flush(shard, namespace, run)
                return
            if not _is_to_be_taken_up(run.state):
                return
            transaction = shard.transaction(namespace, decode(encode(run.state)))
            refresh(transaction)
            if not transaction.tasks:
                return
            try:
                # Under the rule for all writes: a namespace that has moved on meanwhile is another sweep's.
                await shard.write(namespace, [Step(run, transaction)])
            except RunClosed:
                return
