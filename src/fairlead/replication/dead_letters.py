"""Dead letters: tasks of other clusters that could not be applied, kept until an operator merges or purges them."""

from collections.abc import AsyncIterator

import msgspec

from fairlead.history.messages.stream import ReplicationTask
from fairlead.storage.history import HistoryStore
from fairlead.storage.history_conflicts import MetadataConflict

PREFIX = "replication/dlq/"
PAGE_MAX = 500
ERROR_CHARACTERS_MAX = 2_000


class DeadLetter(msgspec.Struct, array_like=True, frozen=True):
    """A task without its events, which are fetched from the source again. New fields go at the end, with a default."""

    source: str
    shard_id: int
    task_id: int
    namespace_id: str
    workflow_id: str
    run_id: str
    first_event_id: int
    last_event_id: int
    items: tuple[tuple[int, int], ...]
    error: str
    attempts: int
    dead_ns: int

    @property
    def key(self) -> str:
        """The metadata key: sorts by source, shard and task."""
        return f"{prefix_of(self.source, self.shard_id)}{self.task_id:020d}"

    @property
    def is_readable(self) -> bool:
        """Whether the stored record could be decoded; if not, only its key is known."""
        return bool(self.run_id)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DeadLetter).decode


def prefix_of(source: str = "", shard_id: int | None = None) -> str:
    """Prefix of the keys of all dead letters, of those from one source, or of those from one shard of a source."""
    if not source:
        return PREFIX
    return f"{PREFIX}{source}/" if shard_id is None else f"{PREFIX}{source}/{shard_id:06d}/"


def dead_letter_of(
    task: ReplicationTask, *, source: str, shard_id: int, error: str, attempts: int, dead_ns: int
) -> DeadLetter:
    """The dead letter for a task."""
    return DeadLetter(
        source,
        shard_id,
        task.task_id,
        task.namespace_id,
        task.workflow_id,
        task.run_id,
        task.first_event_id,
        task.last_event_id,
        task.items,
        error[:ERROR_CHARACTERS_MAX],
        attempts,
        dead_ns,
    )


class DeadLetters:
    """The dead letters of a cluster, in its store."""

    def __init__(self, store: HistoryStore) -> None:
        self._store = store

    async def put(self, dead_letter: DeadLetter) -> bool:
        """Store a dead letter, replacing one of the same task; returns whether it is new."""
        payload = _encode(dead_letter)
        version = 0
        while True:
            try:
                await self._store.write_metadata(dead_letter.key, payload, expected_version=version)
            except MetadataConflict as conflict:
                version = 0 if conflict.present is None else conflict.present.version
            else:
                return version == 0

    async def page(
        self, *, source: str = "", shard_id: int | None = None, after: str | None = None, limit: int = PAGE_MAX
    ) -> list[DeadLetter]:
        """A page of dead letters after a key; unreadable ones have only the fields of their keys."""
        stored = await self._store.list_metadata(
            prefix=prefix_of(source, shard_id), after=after, limit=min(limit, PAGE_MAX)
        )
        return [_decoded(one.key, one.payload) for one in stored]

    async def all(self, *, source: str = "", shard_id: int | None = None) -> AsyncIterator[DeadLetter]:
        """All dead letters, in the order of their keys."""
        after: str | None = None
        while page := await self.page(source=source, shard_id=shard_id, after=after):
            for dead_letter in page:
                yield dead_letter
            after = page[-1].key

    async def count(self, *, source: str, shard_id: int) -> int:
        """Number of dead letters of one stream."""
        prefix, after, count = prefix_of(source, shard_id), None, 0
        while page := await self._store.list_metadata(prefix=prefix, after=after, limit=PAGE_MAX):
            count += len(page)
            after = page[-1].key
        return count

    async def count_of(self, *, source: str, namespace_id: str) -> int:
        """Number of dead letters from a source cluster in a namespace; unreadable ones count, because they may belong
        to it.
        """
        count = 0
        async for dead_letter in self.all(source=source):
            count += dead_letter.namespace_id == namespace_id or not dead_letter.is_readable
        return count

    async def remove(self, dead_letter: DeadLetter) -> bool:
        """Delete a dead letter; returns whether it was there."""
        stored = await self._store.read_metadata(dead_letter.key)
        while stored is not None:
            try:
                await self._store.delete_metadata(dead_letter.key, expected_version=stored.version)
            except MetadataConflict as conflict:
                stored = conflict.present
            else:
                return True
        return False


def _decoded(key: str, payload: bytes) -> DeadLetter:
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        source, shard_id, task_id = key.removeprefix(PREFIX).rsplit("/", 2)
        error = f"{key} can't be decoded ({wrong}): a newer release may have written it"
        return DeadLetter(source, int(shard_id), int(task_id), "", "", "", 0, 0, (), error, attempts=0, dead_ns=0)
