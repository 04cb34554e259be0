"""Stored cursors: how far this cluster has read another cluster's stream, and the id of that cluster."""

import msgspec

from fairlead.core.errors import GiveUp
from fairlead.storage.history import HistoryStore
from fairlead.storage.history_conflicts import MetadataConflict

BEGINNING = -1


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """The last task of a stream up to which all tasks are safe here, and the id of the cluster that sent the stream.

    A cluster that was set up anew has another id, and reuses the task ids of the old one.
    """

    source_id: str
    task_id: int


class UnreadableCursor(GiveUp):
    """A stored cursor can't be decoded."""


# Old rows hold only a number, without the cluster's id: their streams are read again from the beginning.
_decode = msgspec.msgpack.Decoder(Cursor | int).decode
encode_cursor = msgspec.msgpack.Encoder().encode


class StoredCursor:
    """The stored cursor of one stream. It moves forward, or back to the beginning."""

    def __init__(self, store: HistoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._version = 0
        # Empty until the source cluster's id is known.
        self.source_id = ""
        self.task_id = BEGINNING

    async def read(self) -> None:
        """Read the stored cursor."""
        stored = await self._store.read_metadata(self._key)
        if stored is not None:
            self._version = stored.version
            self.source_id, self.task_id = self._decode_position(stored.payload)

    async def begin_anew(self, source_id: str) -> None:
        """Move to the beginning of the stream of the cluster with this id, even if another host has stored a later
        cursor.
        """
        self.source_id, self.task_id = source_id, BEGINNING
        while not await self._write(BEGINNING):
            pass

    async def save(self, task_id: int) -> None:
        """Move forward."""
        while task_id > self.task_id:
            if await self._write(task_id):
                self.task_id = task_id

    async def _write(self, task_id: int) -> bool:
        payload = encode_cursor(Cursor(self.source_id, task_id))
        try:
            self._version = await self._store.write_metadata(self._key, payload, expected_version=self._version)
        except MetadataConflict as conflict:
            present = conflict.present
            self._version = 0 if present is None else present.version
            if present is not None and task_id != BEGINNING:
                # Another host has pulled the stream: its cursor for the same source is valid, too.
                source_id, reached = self._decode_position(present.payload)
                self.task_id = max(self.task_id, reached if source_id == self.source_id else BEGINNING)
            return False
        return True

    def _decode_position(self, payload: bytes) -> tuple[str, int]:
        try:
            found = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise UnreadableCursor(
                f"the stored cursor {self._key} can't be decoded ({wrong}): a newer release may have written it"
            ) from None
        return ("", BEGINNING) if isinstance(found, int) else (found.source_id, found.task_id)
