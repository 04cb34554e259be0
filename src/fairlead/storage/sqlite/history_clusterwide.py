# ruff: noqa: D102 - the contract documents each change
import sqlite3

from fairlead.storage.history import StoredMetadata, StoredNamespace
from fairlead.storage.history_conflicts import metadata_conflict, namespace_conflict, namespace_taken
from fairlead.storage.sqlite import history_statements as statements


class ClusterwideTables:
    """Changes of namespaces and metadata, which belong to no shard. They are rare, and written one by one."""

    def __init__(self, writer: sqlite3.Connection) -> None:
        self._writer = writer

    def create_namespace(self, new: StoredNamespace) -> None:
        present = self._namespace(new.namespace_id) or self._namespace_named(new.name)
        if present is not None:
            raise namespace_taken(present)
        self._writer.execute(statements.INSERT_NAMESPACE, new)

    def change_namespace(
        self, namespace_id: str, *, name: str | None = None, payload: bytes | None = None, expected_version: int
    ) -> int:
        present = self._expected_namespace(namespace_id, expected_version)
        if name is not None and name != present.name:
            other = self._namespace_named(name)
            if other is not None:
                raise namespace_taken(other)
        version = present.version + 1
        new_name = present.name if name is None else name
        new_payload = present.payload if payload is None else payload
        self._writer.execute(statements.UPDATE_NAMESPACE, (new_name, new_payload, version, namespace_id))
        return version

    def delete_namespace(self, namespace_id: str, *, expected_version: int) -> None:
        self._expected_namespace(namespace_id, expected_version)
        self._writer.execute(statements.DELETE_NAMESPACE, (namespace_id,))

    def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        self._expect_metadata(key, expected_version)
        self._writer.execute(statements.SAVE_METADATA, (key, payload, expected_version + 1))
        return expected_version + 1

    def delete_metadata(self, key: str, *, expected_version: int) -> None:
        self._expect_metadata(key, expected_version)
        self._writer.execute(statements.DELETE_METADATA, (key,))

    def _namespace(self, namespace_id: str) -> StoredNamespace | None:
        row = self._writer.execute(statements.READ_NAMESPACE, (namespace_id,)).fetchone()
        return None if row is None else StoredNamespace(*row)

    def _namespace_named(self, name: str) -> StoredNamespace | None:
        row = self._writer.execute(statements.READ_NAMESPACE_BY_NAME, (name,)).fetchone()
        return None if row is None else StoredNamespace(*row)

    def _expected_namespace(self, namespace_id: str, expected_version: int) -> StoredNamespace:
        present = self._namespace(namespace_id)
        if present is None or present.version != expected_version:
            raise namespace_conflict(namespace_id, present, expected_version=expected_version)
        return present

    def _expect_metadata(self, key: str, expected_version: int) -> None:
        row = self._writer.execute(statements.READ_METADATA, (key,)).fetchone()
        present = None if row is None else StoredMetadata(*row)
        if expected_version != (0 if present is None else present.version):
            raise metadata_conflict(key, present, expected_version=expected_version)
