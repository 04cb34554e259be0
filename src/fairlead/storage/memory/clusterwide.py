# ruff: noqa: D102 - the contract documents each method
"""The rows of the history contract that belong to no shard, in memory: namespaces and metadata."""

from fairlead.core.errors import FixRequest
from fairlead.storage.history import (
    StoredMetadata,
    StoredNamespace,
)
from fairlead.storage.history_conflicts import (
    metadata_conflict,
    namespace_conflict,
    namespace_taken,
)
from fairlead.storage.memory.faults import FaultsAt, FaultyStore


class MemoryClusterwide(FaultyStore[int | None]):
    """Namespaces and metadata of a `HistoryStore`, without disk, clock or threads."""

    def __init__(self, faults: FaultsAt[int | None] | None = None) -> None:
        super().__init__(faults)
        self._namespaces: dict[str, StoredNamespace] = {}
        self._metadata: dict[str, StoredMetadata] = {}

    async def create_namespace(self, namespace_id: str, name: str, payload: bytes, version: int = 1) -> None:
        def create() -> None:
            present = self._namespaces.get(namespace_id) or self._namespace_named(name)
            if present is not None:
                raise namespace_taken(present)
            self._namespaces[namespace_id] = StoredNamespace(namespace_id, name, payload, version)

        await self._change("create_namespace", None, create)

    async def update_namespace(self, namespace_id: str, payload: bytes, *, expected_version: int) -> int:
        def update() -> int:
            present = self._expected_namespace(namespace_id, expected_version)
            self._namespaces[namespace_id] = present._replace(payload=payload, version=present.version + 1)
            return present.version + 1

        return await self._change("update_namespace", None, update)

    async def rename_namespace(self, namespace_id: str, name: str, *, expected_version: int) -> int:
        def rename() -> int:
            present = self._expected_namespace(namespace_id, expected_version)
            other = self._namespace_named(name)
            if other is not None and other.namespace_id != namespace_id:
                raise namespace_taken(other)
            self._namespaces[namespace_id] = present._replace(name=name, version=present.version + 1)
            return present.version + 1

        return await self._change("rename_namespace", None, rename)

    async def delete_namespace(self, namespace_id: str, *, expected_version: int) -> None:
        def delete() -> None:
            self._expected_namespace(namespace_id, expected_version)
            del self._namespaces[namespace_id]

        await self._change("delete_namespace", None, delete)

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        def find() -> StoredNamespace | None:
            if namespace_id is not None:
                return self._namespaces.get(namespace_id)
            if name is None:
                raise FixRequest("read_namespace needs namespace_id or name")
            return self._namespace_named(name)

        return await self._read("read_namespace", None, find)

    async def list_namespaces(self, *, after: str | None, limit: int) -> list[StoredNamespace]:
        def find() -> list[StoredNamespace]:
            return sorted(found for found in self._namespaces.values() if found.namespace_id > (after or ""))[:limit]

        return await self._read("list_namespaces", None, find)

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        return await self._read("read_metadata", None, lambda: self._metadata.get(key))

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        def write() -> int:
            self._expect_metadata(key, expected_version)
            self._metadata[key] = StoredMetadata(key, payload, expected_version + 1)
            return expected_version + 1

        return await self._change("write_metadata", None, write)

    async def delete_metadata(self, key: str, *, expected_version: int) -> None:
        def delete() -> None:
            self._expect_metadata(key, expected_version)
            self._metadata.pop(key, None)

        await self._change("delete_metadata", None, delete)

    async def list_metadata(self, *, prefix: str, after: str | None, limit: int) -> list[StoredMetadata]:
        def find() -> list[StoredMetadata]:
            keys = sorted(key for key in self._metadata if key.startswith(prefix) and key > (after or ""))
            return [self._metadata[key] for key in keys[:limit]]

        return await self._read("list_metadata", None, find)

    def _namespace_named(self, name: str) -> StoredNamespace | None:
        return next((found for found in self._namespaces.values() if found.name == name), None)

    def _expected_namespace(self, namespace_id: str, expected_version: int) -> StoredNamespace:
        present = self._namespaces.get(namespace_id)
        if present is None or present.version != expected_version:
            raise namespace_conflict(namespace_id, present, expected_version=expected_version)
        return present

    def _expect_metadata(self, key: str, expected_version: int) -> None:
        present = self._metadata.get(key)
        if expected_version != (0 if present is None else present.version):
            raise metadata_conflict(key, present, expected_version=expected_version)
