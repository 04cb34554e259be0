"""The workflow id or the namespace to erase, and the texts that name it."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fairlead.core.errors import FixRequest
from fairlead.core.namespaces import VERSION_MARK, split_version

# Columns and fields with the events of a batch, as base64.
EVENTS = ("payload", "outline")


class NothingToErase(FixRequest):
    """Neither a workflow id nor a namespace was given."""


@dataclass(frozen=True)
class Target:
    """A workflow id, in one namespace or in all, or a whole namespace.

    `namespaces` has the namespace's name and its ids; None stands for all namespaces.
    """

    workflow_id: str | None = None
    namespaces: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Raise an error for an empty target, which would be everything."""
        if not self.workflow_id and not self.namespaces:
            raise NothingToErase("give --workflow-id, --namespace, or both")

    @cached_property
    def texts(self) -> frozenset[str]:
        """The texts that must be gone: the workflow id, or the name and the ids of the namespace."""
        return frozenset([self.workflow_id]) if self.workflow_id else self.namespaces or frozenset()

    def is_in(self, namespace_id: str | None, name: str | None = None) -> bool:
        """Whether a namespace, by id or by name, is in the target."""
        if self.namespaces is None:
            return True
        base = None if namespace_id is None else split_version(namespace_id)[0]
        return base in self.namespaces or name in self.namespaces

    def is_record(self, record: Mapping[str, Any]) -> bool:
        """Whether a record of the journal is to be erased."""
        if self.workflow_id is not None and record.get("workflow_id") != self.workflow_id:
            return False
        return self.is_in(record.get("namespace_id"), record.get("namespace"))

    def rows(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Return which rows are to be erased; None if the columns can't name the target."""
        names = batch.schema.names
        if self.workflow_id is not None and "workflow_id" not in names:
            return None
        if self.namespaces is not None and "namespace_id" not in names:
            return None
        found = pa.array([True] * batch.num_rows, pa.bool_())
        if self.workflow_id is not None:
            found = pc.equal(batch.column("workflow_id"), self.workflow_id)
        if self.namespaces is not None:
            found = pc.and_kleene(found, self.rows_in(batch))
        return pc.fill_null(found, False)  # noqa: FBT003 - the function has no name for it

    def rows_in(self, batch: pa.RecordBatch) -> pa.Array:
        """Return which rows are in the target's namespaces."""
        if self.namespaces is None or "namespace_id" not in batch.schema.names:
            return pa.array([self.namespaces is None] * batch.num_rows, pa.bool_())
        ids = batch.column("namespace_id").cast(pa.string())
        found = pc.is_in(ids, value_set=pa.array(sorted(self.namespaces)))
        for one in sorted(self.namespaces):
            found = pc.or_(found, pc.fill_null(pc.starts_with(ids, f"{one}{VERSION_MARK}"), False))  # noqa: FBT003
        if "namespace" in batch.schema.names:
            named = pc.is_in(batch.column("namespace").cast(pa.string()), value_set=pa.array(sorted(self.namespaces)))
            found = pc.or_(found, named)
        return found

    @cached_property
    def _needle(self) -> bytes:
        """The workflow id as a field of a message: its length, then its bytes."""
        plain = (self.workflow_id or "").encode()
        length, size = b"", len(plain)
        while size >= 0x80:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        return length + bytes([size]) + plain

    @cached_property
    def _fragments(self) -> tuple[str, ...]:
        """The base64 of the needle at each of the three positions of its first byte, without the unsure ends."""
        found = []
        for offset in range(3):
            text = base64.b64encode(b"\0" * offset + self._needle).decode().rstrip("=")
            begin = -(-offset * 8 // 6)
            end = (offset + len(self._needle)) * 8 // 6
            found.append(text[begin:end])
        return tuple(found)

    def mentions(self, events: pa.Array) -> pa.Array:
        """Return which base64 texts of events have the workflow id as the value of a field."""
        found = pa.array([False] * len(events), pa.bool_())
        if self.workflow_id is not None:
            for fragment in self._fragments:
                found = pc.or_(found, pc.fill_null(pc.match_substring(events, fragment), False))  # noqa: FBT003
        # A short id may match by chance: look at the bytes.
        return pa.array(
            [
                bool(maybe) and self.is_mentioned(text)
                for maybe, text in zip(found.to_pylist(), events.to_pylist(), strict=True)
            ],
            pa.bool_(),
        )

    def is_mentioned(self, events: str | None) -> bool:
        """Whether the base64 text of events has the workflow id as the value of a field."""
        if self.workflow_id is None or not events:
            return False
        try:
            return self._needle in base64.b64decode(events)
        except ValueError:
            return self.workflow_id in events
