"""Nexus endpoints: the names by which workflows call the workers of a task queue, in any namespace.

Each is a value of the whole cluster, kept under its name, so that no name is given twice. Nothing is remembered: who
asks reads what the store has.
"""

from collections.abc import Iterable

from temporalio.api.nexus.v1 import Endpoint

from fairlead.core.errors import RetryLater
from fairlead.history.refusals import Refused, already_exists, failed_precondition, not_found, refused
from fairlead.rpc import Code
from fairlead.storage.history_contract import HistoryStore, MetadataConflict, StoredMetadata

ENDPOINTS_MAX = 1_000
NAME_BYTES_MAX = 200
_PREFIX = "nexus-endpoint/"
_PAGE_MAX = 100


class EndpointBusy(RetryLater):
    """Somebody else changed the endpoint at the same moment."""


class Endpoints:
    """The endpoints of the cluster."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    async def named(self, name: str) -> Endpoint | None:
        """The endpoint of a name."""
        if not name or len(name) > NAME_BYTES_MAX or "\0" in name:
            return None
        stored = await self._store.read_metadata(_PREFIX + name)
        return None if stored is None else Endpoint.FromString(stored.payload)

    async def ids(self, names: Iterable[str]) -> dict[str, str]:
        """The ids of those of these names that are there."""
        found = {}
        for name in set(names):
            endpoint = await self.named(name)
            if endpoint is not None:
                found[name] = endpoint.id
        return found

    async def find(self, endpoint_id: str, *, name: str = "") -> Endpoint | None:
        """An endpoint by its id; `name` is the one it had, under which it is found at once if it still has it."""
        if name:
            endpoint = await self.named(name)
            if endpoint is not None and endpoint.id == endpoint_id:
                return endpoint
        return _newest(await self._rows(endpoint_id))

    async def all(self) -> list[Endpoint]:
        """All of them, by id."""
        found: dict[str, list[StoredMetadata]] = {}
        for stored in await self._rows():
            found.setdefault(Endpoint.FromString(stored.payload).id, []).append(stored)
        return [endpoint for _, rows in sorted(found.items()) if (endpoint := _newest(rows)) is not None]

    async def create(self, endpoint: Endpoint) -> None:
        """Add an endpoint; its name must be new."""
        count = len(await self._rows())
        if count >= ENDPOINTS_MAX:
            raise refused(Code.RESOURCE_EXHAUSTED, f"There are {count} Nexus endpoints, the most are {ENDPOINTS_MAX}.")
        await self._claim(endpoint, "creating")

    async def update(self, endpoint: Endpoint) -> Endpoint:
        """Replace an endpoint's specification; `version` is the one that is to be replaced."""
        rows = await self._rows(endpoint.id)
        present = _newest(rows)
        if present is None:
            raise not_found(f"error updating Nexus endpoint. endpoint ID {endpoint.id} not found")
        _check_version(present, endpoint.version)
        changed = Endpoint()
        changed.CopyFrom(present)
        changed.spec.CopyFrom(endpoint.spec)
        changed.version += 1
        changed.last_modified_time.CopyFrom(endpoint.last_modified_time)
        kept = next((row for row in rows if row.key == _PREFIX + changed.spec.name), None)
        if kept is None:
            # The new name first: a host that stops in between leaves the old one as another name of the endpoint.
            await self._claim(changed, "updating")
        else:
            await self._write(changed, kept.version)
        await self._delete(row for row in rows if row is not kept)
        return changed

    async def delete(self, endpoint_id: str, version: int) -> None:
        """Remove an endpoint. What is scheduled for it fails."""
        rows = await self._rows(endpoint_id)
        present = _newest(rows)
        if present is None:
            raise not_found(f"error deleting nexus endpoint with ID: {endpoint_id}")
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
        """What is stored, of one endpoint if an id is given: mostly one row."""
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
        raise failed_precondition(f"nexus endpoint version mismatch. received: {version} expected {present.version}")


def _taken(name: str, doing: str) -> Refused:
    return already_exists(f"error {doing} Nexus endpoint. Endpoint with name {name} already registered")


def _busy(name: str) -> EndpointBusy:
    return EndpointBusy(f"Nexus endpoint {name} was changed at the same moment: look at it and try again")
