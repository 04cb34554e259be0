"""Nexus endpoints: names with which workflows call handlers on a task queue of any namespace.

Each endpoint is stored as cluster metadata under its name, so that names are unique. Each call reads the store; there
is no cache.
"""

from collections.abc import Iterable

from temporalio.api.nexus.v1 import Endpoint

from fairlead.api.errors import AlreadyExists, ApiError, Exhausted, FailedPrecondition, NotFound
from fairlead.core.errors import RetryLater
from fairlead.storage.history import HistoryStore, StoredMetadata
from fairlead.storage.history_conflicts import MetadataConflict

ENDPOINTS_MAX = 1_000
NAME_BYTES_MAX = 200
_PREFIX = "nexus-endpoint/"
_PAGE_MAX = 100


class EndpointBusy(RetryLater):
    """Another caller changed the endpoint concurrently."""


class Endpoints:
    """The endpoints of the cluster."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    async def named(self, name: str) -> Endpoint | None:
        """The endpoint with this name."""
        if not name or len(name) > NAME_BYTES_MAX or "\0" in name:
            return None
        stored = await self._store.read_metadata(_PREFIX + name)
        return None if stored is None else Endpoint.FromString(stored.payload)

    async def ids(self, names: Iterable[str]) -> dict[str, str]:
        """The ids of the existing endpoints with these names."""
        found = {}
        for name in set(names):
            endpoint = await self.named(name)
            if endpoint is not None:
                found[name] = endpoint.id
        return found

    async def find(self, endpoint_id: str, *, name: str = "") -> Endpoint | None:
        """An endpoint by id; `name` is its last known name, which is looked up first."""
        if name:
            endpoint = await self.named(name)
            if endpoint is not None and endpoint.id == endpoint_id:
                return endpoint
        return _newest(await self._rows(endpoint_id))

    async def all(self) -> list[Endpoint]:
        """All endpoints, ordered by id."""
        found: dict[str, list[StoredMetadata]] = {}
        for stored in await self._rows():
            found.setdefault(Endpoint.FromString(stored.payload).id, []).append(stored)
        return [endpoint for _, rows in sorted(found.items()) if (endpoint := _newest(rows)) is not None]

    async def create(self, endpoint: Endpoint) -> None:
        """Create an endpoint; its name must be new."""
        count = len(await self._rows())
        if count >= ENDPOINTS_MAX:
            raise Exhausted(f"The cluster has {count} Nexus endpoints, the limit is {ENDPOINTS_MAX}.")
        await self._claim(endpoint, "creating")

    async def update(self, endpoint: Endpoint) -> Endpoint:
        """Replace an endpoint's spec; `version` must be the present version."""
        rows = await self._rows(endpoint.id)
        present = _newest(rows)
        if present is None:
            raise NotFound(f"error updating Nexus endpoint. endpoint ID {endpoint.id} not found")
        _check_version(present, endpoint.version)
        changed = Endpoint()
        changed.CopyFrom(present)
        changed.spec.CopyFrom(endpoint.spec)
        changed.version += 1
        changed.last_modified_time.CopyFrom(endpoint.last_modified_time)
        kept = next((row for row in rows if row.key == _PREFIX + changed.spec.name), None)
        if kept is None:
            # Write the new name first: if a host stops in between, the endpoint is found by both names.
            await self._claim(changed, "updating")
        else:
            await self._write(changed, kept.version)
        await self._delete(row for row in rows if row is not kept)
        return changed

    async def delete(self, endpoint_id: str, version: int) -> None:
        """Delete an endpoint. Operations that are scheduled for it fail."""
        rows = await self._rows(endpoint_id)
        present = _newest(rows)
        if present is None:
            raise NotFound(f"error deleting nexus endpoint with ID: {endpoint_id}")
        _check_version(present, version)
        await self._delete(rows)

    async def _claim(self, endpoint: Endpoint, doing: str) -> None:
        try:
            await self._store.write_metadata(
                _PREFIX + endpoint.spec.name, endpoint.SerializeToString(), expected_version=0
            )
        except MetadataConflict:
            raise _taken(endpoint.spec.name, doing) from None

    async def _write(self, endpoint: Endpoint, row_version: int) -> None:
        try:
            await self._store.write_metadata(
                _PREFIX + endpoint.spec.name, endpoint.SerializeToString(), expected_version=row_version
            )
        except MetadataConflict:
            raise _busy(endpoint.spec.name) from None

    async def _delete(self, rows: Iterable[StoredMetadata]) -> None:
        for row in rows:
            try:
                await self._store.delete_metadata(row.key, expected_version=row.version)
            except MetadataConflict:
                raise _busy(row.key.removeprefix(_PREFIX)) from None

    async def _rows(self, endpoint_id: str | None = None) -> list[StoredMetadata]:
        """The stored rows of all endpoints, or of one. An endpoint has one row, or two during a change of its name."""
        found: list[StoredMetadata] = []
        after: str | None = None
        while True:
            page = await self._store.list_metadata(prefix=_PREFIX, after=after, limit=_PAGE_MAX)
            found += [row for row in page if endpoint_id in (None, Endpoint.FromString(row.payload).id)]
            if len(page) < _PAGE_MAX:
                return found
            after = page[-1].key


def _newest(rows: Iterable[StoredMetadata]) -> Endpoint | None:
    endpoints = [Endpoint.FromString(row.payload) for row in rows]
    return max(endpoints, key=lambda endpoint: endpoint.version, default=None)


def _check_version(present: Endpoint, version: int) -> None:
    if present.version != version:
        raise FailedPrecondition(f"nexus endpoint version mismatch. received: {version} expected {present.version}")


def _taken(name: str, doing: str) -> ApiError:
    return AlreadyExists(f"error {doing} Nexus endpoint. Endpoint with name {name} already registered")


def _busy(name: str) -> EndpointBusy:
    return EndpointBusy(f"Nexus endpoint {name} was changed concurrently: read it again and retry")
