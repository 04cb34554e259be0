"""How far this cluster is with a stream of another one: kept in the store, with whose stream it is a place in."""

import msgspec

from fairlead.core.errors import GiveUp
from fairlead.storage.history_contract import HistoryStore, MetadataConflict

BEGINNING = -1


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """All up to `task_id` is safe here, of the stream that the cluster with this id has.

    A cluster that was set up anew has another id, and its tasks have the ids of others from before.
    """

    source_id: str
    task_id: int


class UnreadableCursor(GiveUp):
    """What is stored as the place in a stream is none."""


# A number alone does not say whose stream it is of: rows of an older form, which are begun anew.
_decode = msgspec.msgpack.Decoder(Cursor | int).decode
encode_cursor = msgspec.msgpack.Encoder().encode


class StoredCursor:
    """The place in one stream as it is stored. It goes forward, or back to the beginning."""

    def __init__(self, store: HistoryStore, key: str) -> None:
        self._store = store
        self._key = key
        self._version = 0
        # Empty until it is known whose stream it is.
        self.source_id = ""
        self.task_id = BEGINNING

    async def read(self) -> None:
        """Know what is stored."""
        stored = await self._store.read_metadata(self._key)
        if stored is not None:
            self._version = stored.version
            self.source_id, self.task_id = self._place(stored.payload)

    async def begin_anew(self, source_id: str) -> None:
        """Go back to the beginning of the stream that the cluster with this id has, whatever others have stored."""
        self.source_id, self.task_id = source_id, BEGINNING
        while not await self._write(BEGINNING):
            pass

    async def save(self, task_id: int) -> None:
        """Go forward."""
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
                # Another host has pulled it meanwhile, or did before: what it says of this stream is true as well.
                source_id, reached = self._place(present.payload)
                self.task_id = max(self.task_id, reached if source_id == self.source_id else BEGINNING)
            return False
        return True

    def _place(self, payload: bytes) -> tuple[str, int]:
        try:
            found = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise UnreadableCursor(
                f"{self._key} is stored as {payload!r} ({wrong}): is it of a newer release?"
            ) from None
        return ("", BEGINNING) if isinstance(found, int) else (found.source_id, found.task_id)
