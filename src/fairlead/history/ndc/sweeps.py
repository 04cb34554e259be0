"""Sweeps over all runs of a namespace in one shard, which changes of the namespace require.

The progress of each sweep is stored, so that an interrupted sweep is continued or repeated.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from fairlead.aio.backoff import Backoff
from fairlead.core.errors import reported
from fairlead.storage.history import ListedRun, RunKey
from fairlead.storage.history_conflicts import MetadataConflict
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.history.shard.shard import Shard

PAGE_MAX = 200
# Seconds before the first retry of a failed sweep (doubled for each further retry), and the maximum.
RETRY_FIRST_S, RETRY_S_MAX = 1.0, 60.0
MARKS_A_PAGE_MAX = 500

_log = get_log("history.sweeps")


class Sweeps(ABC):
    """The sweeps of one kind in one shard. The key of a sweep begins with its namespace id."""

    def __init__(self, shard: Shard, kind: str) -> None:
        self._shard = shard
        self._kind = kind
        # Prefix of the metadata keys that store the progress of sweeps.
        self._prefix = f"replication/{kind}/{shard.shard_id}/"
        self._working: dict[str, asyncio.Task[None]] = {}
        self._is_open = False

    @abstractmethod
    def _remember(self, key: str, payload: bytes) -> None:
        """Remember the stored progress of a sweep."""

    @abstractmethod
    def _knows_less(self, key: str, namespace: Namespace) -> bool:
        """Whether the namespace cached here is older than the one that the previous owner of the shard had."""

    @abstractmethod
    def _due(self, namespace: Namespace) -> Iterable[str]:
        """The keys of the sweeps that the namespace needs now."""

    @abstractmethod
    async def _sweep(self, key: str, namespace: Namespace) -> None:
        """Run one sweep, and store its progress."""

    async def read(self) -> None:
        """Read the stored progress. If it shows that a cached namespace is outdated, read the namespace again."""
        services = self._shard.services
        after: str | None = None
        while True:
            page = await services.store.list_metadata(prefix=self._prefix, after=after, limit=MARKS_A_PAGE_MAX)
            for mark in page:
                key = mark.key.removeprefix(self._prefix)
                self._remember(key, mark.payload)
                known = services.namespaces.cached_id(_namespace_of(key))
                if known is not None and self._knows_less(key, known):
                    await services.namespaces.read_id(known.id)
            if len(page) < MARKS_A_PAGE_MAX:
                return
            after = page[-1].key

    def open(self) -> None:
        """Start the sweeps that are due; from now on, `start_due` starts others."""
        self._is_open = True
        for namespace in self._shard.services.namespaces.all():
            self.start_due(namespace)

    async def close(self) -> None:
        """Stop all sweeps; the next owner of the shard continues them."""
        self._is_open = False
        working = list(self._working.values())
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)

    @property
    def is_idle(self) -> bool:
        """Whether no sweep is running."""
        return not self._working

    def start_due(self, namespace: Namespace) -> None:
        """Start the sweeps that a namespace needs, unless they are running."""
        if not self._is_open:
            return
        for key in self._due(namespace):
            if key not in self._working:
                self._working[key] = asyncio.get_running_loop().create_task(self._work_on(key))

    async def _work_on(self, key: str) -> None:
        try:
            await self._work(key)
        finally:
            del self._working[key]

    async def _work(self, key: str) -> None:
        backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, random=self._shard.services.uniform)
        while True:
            namespace = self._shard.services.namespaces.cached_id(_namespace_of(key))
            if namespace is None or key not in self._due(namespace):
                return
            try:
                await self._sweep(key, namespace)
            except Exception as failure:  # noqa: BLE001 - the sweep is retried after any error
                if self._shard.ownership.is_lost:
                    return
                self._warn("sweep of a namespace failed, retrying", namespace, failure)
                await asyncio.sleep(backoff.next_s())

    def _warn(self, what: str, namespace: Namespace, failure: Exception, **more: object) -> None:
        _log.warning(
            what,
            shard=self._shard.shard_id,
            sweep=self._kind,
            namespace=namespace.name,
            **reported(failure),
            **more,
        )

    async def _note(self, key: str, payload: bytes) -> None:
        """Store the progress of a sweep."""
        store = self._shard.services.store
        present = await store.read_metadata(self._prefix + key)
        try:
            await store.write_metadata(
                self._prefix + key, payload, expected_version=0 if present is None else present.version
            )
        except MetadataConflict:
            # Another host has stored newer progress: this host has lost the shard.
            return
        self._remember(key, payload)

    async def _pages(self, after: RunKey) -> AsyncIterator[list[ListedRun]]:
        """The runs of a namespace after `after`, page by page."""
        while True:
            page = await self._shard.services.store.list_runs(self._shard.shard_id, after=after, limit=PAGE_MAX)
            runs = [run for run in page if run.namespace_id == after.namespace_id]
            if runs:
                yield runs
            if len(runs) < PAGE_MAX:
                return
            after = RunKey(*runs[-1][:3])


def _namespace_of(key: str) -> str:
    return key.partition("/")[0]
