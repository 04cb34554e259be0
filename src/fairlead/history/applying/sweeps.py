"""Sweeps of one shard over all its runs of a namespace, which follow from changes of the namespace.

How far each has come is durable: what was interrupted is done again, or goes on.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from fairlead.core.errors import FairleadError
from fairlead.storage.history_contract import ListedRun, MetadataConflict, RunKey
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.history.namespaces import Namespace
    from fairlead.history.shard import Shard

PAGE_MAX = 200
RETRY_S = 1.0
MARKS_A_PAGE_MAX = 500

_log = get_log("history.sweeps")


class Sweeps(ABC):
    """The sweeps of one kind in one shard; each has a key, which begins with the id of its namespace."""

    def __init__(self, shard: Shard, kind: str) -> None:
        self._shard = shard
        self._kind = kind
        # Where it is noted how far each sweep is.
        self._prefix = f"replication/{kind}/{shard.shard_id}/"
        self._working: dict[str, asyncio.Task[None]] = {}
        self._is_open = False

    @abstractmethod
    def _remember(self, key: str, payload: bytes) -> None:
        """So much was noted of a sweep."""

    @abstractmethod
    def _knows_less(self, key: str, namespace: Namespace) -> bool:
        """Whether a namespace as this host knows it is older than the one that the shard's last owner knew."""

    @abstractmethod
    def _due(self, namespace: Namespace) -> Iterable[str]:
        """The keys of the sweeps that are to be done as the namespace is now."""

    @abstractmethod
    async def _sweep(self, key: str, namespace: Namespace) -> None:
        """Do one of them, and note it."""

    async def read(self) -> None:
        """Find out what is done. A namespace of which this host knows less than its shard does is read again."""
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
        """Begin what follows from how a namespace is now, unless that is done or being done."""
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
        while True:
            namespace = self._shard.services.namespaces.cached_id(_namespace_of(key))
            if namespace is None or key not in self._due(namespace):
                return
            try:
                await self._sweep(key, namespace)
            except Exception as failure:  # noqa: BLE001 - whatever it is, it is tried again
                if self._shard.is_lost:
                    return
                self._warn("runs of a namespace not swept", namespace, failure)
                await asyncio.sleep(RETRY_S)

    def _warn(self, what: str, namespace: Namespace, failure: Exception, **more: object) -> None:
        _log.warning(
            what,
            shard=self._shard.shard_id,
            sweep=self._kind,
            namespace=namespace.name,
            error=str(failure),
            exc_info=None if isinstance(failure, FairleadError) else failure,
            **more,
        )

    async def _note(self, key: str, payload: bytes) -> None:
        """Note how far a sweep is."""
        store = self._shard.services.store
        present = await store.read_metadata(self._prefix + key)
        try:
            await store.write_metadata(
                self._prefix + key, payload, expected_version=0 if present is None else present.version
            )
        except MetadataConflict:
            # Another owner has noted something: this one is none any more.
            return
        self._remember(key, payload)

    async def _pages(self, after: RunKey) -> AsyncIterator[list[ListedRun]]:
        """The runs of a namespace after one of them, page by page."""
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
