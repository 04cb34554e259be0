"""Names of namespaces in one process: from the registry, or from the store in a process without a registry."""

import asyncio
from typing import TYPE_CHECKING

from fairlead.aio.refresh_loop import refresh_forever
from fairlead.api.namespace_lookup import (
    FIND_NAMESPACES,
    GIVEN_MAX,
    FindNamespacesRequest,
    FindNamespacesResponse,
    FoundNamespace,
    TooManyNamespaces,
)
from fairlead.core.errors import FairleadError
from fairlead.core.namespaces import NamespaceNames
from fairlead.storage.history import HistoryStore, StoredNamespace
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace, Namespaces
    from fairlead.rpc.hosts.caller import Handlers

# Seconds after which a process without a registry notices a new, renamed or deleted namespace.
REFRESH_S = 5.0
PAGE_MAX = 500

_log = get_log("server")


class NamespaceDirectory:
    """Keeps `names` up to date, and looks namespaces up in the store for operators."""

    def __init__(self, store: HistoryStore, names: NamespaceNames) -> None:
        self._store = store
        self._names = names
        self._refreshing: asyncio.Task[None] | None = None

    def follow(self, namespaces: "Namespaces") -> None:
        """Keep the names up to date with the registry of this process."""
        namespaces.on_change(self._changed)
        namespaces.on_gone(self._gone)

    async def open(self) -> None:
        """Read all names from the store, now and periodically, in a process without a registry."""
        await self.refresh()
        self._refreshing = asyncio.create_task(
            refresh_forever(self.refresh, interval_s=REFRESH_S, on_failure=self._log_failure)
        )

    async def close(self) -> None:
        """Stop the periodic reads."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    def add_to(self, handlers: "Handlers") -> None:
        """Add the handler for lookups of namespaces."""
        handlers.add(FIND_NAMESPACES, self.find)

    async def find(self, request: FindNamespacesRequest) -> FindNamespacesResponse:
        """Look up in the store which of the given names and ids are registered."""
        if len(request.given) > GIVEN_MAX:
            raise TooManyNamespaces(f"given has {len(request.given)} namespaces: ask for {GIVEN_MAX} at most")
        found: dict[str, FoundNamespace] = {}
        for given in request.given:
            for stored in await self._read(given):
                found[stored.namespace_id] = FoundNamespace(stored.namespace_id, stored.name)
        is_any = bool(found) or bool(await self._store.list_namespaces(after=None, limit=1))
        return FindNamespacesResponse(list(found.values()), is_any)

    async def refresh(self) -> None:
        """Read all names from the store."""
        names: dict[str, str] = {}
        after: str | None = None
        while True:
            page = await self._store.list_namespaces(after=after, limit=PAGE_MAX)
            names.update((stored.namespace_id, stored.name) for stored in page)
            if len(page) < PAGE_MAX:
                break
            after = page[-1].namespace_id
        try:
            self._names.replace(names)
        except ExceptionGroup as failures:
            _note_failures(failures)

    async def _read(self, given: str) -> list[StoredNamespace]:
        if not given or "\0" in given:
            return []
        by_name = await self._store.read_namespace(name=given)
        by_id = await self._store.read_namespace(namespace_id=given)
        return [stored for stored in (by_name, by_id) if stored is not None]

    def _changed(self, namespace: "Namespace") -> None:
        try:
            self._names.put(namespace.id, namespace.name)
        except ExceptionGroup as failures:
            _note_failures(failures)

    def _gone(self, namespace: "Namespace") -> None:
        try:
            self._names.drop(namespace.id)
        except ExceptionGroup as failures:
            _note_failures(failures)

    def _log_failure(self, failure: FairleadError) -> None:
        _log.warning("namespace names not refreshed", reason=str(failure))


def _note_failures(failures: ExceptionGroup) -> None:
    """Log failures of listeners; they must not stop the registry."""
    _log.error("namespace renamed, but some settings listeners failed", exc_info=failures)
