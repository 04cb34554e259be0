"""Dead letters: what another cluster sent and could not be taken in, kept until somebody has it tried again."""

from collections.abc import AsyncIterator

import msgspec

from fairlead.history.stream_messages import ReplicationTask
from fairlead.storage.history_contract import HistoryStore, MetadataConflict

PREFIX = "replication/dlq/"
PAGE_MAX = 500
ERROR_CHARACTERS_MAX = 2_000


class DeadLetter(msgspec.Struct, array_like=True, frozen=True):
    """A task without its events: these are got from the source again. Fields are added at the end, with a default."""

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
        """Where it is kept: in the order of source, shard and task."""
        return f"{prefix_of(self.source, self.shard_id)}{self.task_id:020d}"

    @property
    def is_readable(self) -> bool:
        """Whether more is known than its key, and that it is there."""
        return bool(self.run_id)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DeadLetter).decode


def prefix_of(source: str = "", shard_id: int | None = None) -> str:
    """How the keys of all dead letters begin, or of a source's, or of one of its shards'."""
    if not source:
        return PREFIX
    return f"{PREFIX}{source}/" if shard_id is None else f"{PREFIX}{source}/{shard_id:06d}/"


def letter_of(
    task: ReplicationTask, *, source: str, shard_id: int, error: str, attempts: int, dead_ns: int
) -> DeadLetter:
    """What is kept of a task."""
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

    async def put(self, letter: DeadLetter) -> bool:
        """Keep one, in place of what is there of the same task; whether it is a new one."""
        payload = _encode(letter)
        version = 0
        while True:
            try:
                await self._store.write_metadata(letter.key, payload, expected_version=version)
            except MetadataConflict as conflict:
                version = 0 if conflict.present is None else conflict.present.version
            else:
                return version == 0

    async def page(
        self, *, source: str = "", shard_id: int | None = None, after: str | None = None, limit: int = PAGE_MAX
    ) -> list[DeadLetter]:
        """The first of them after a key; of those that can't be read what their keys say."""
        stored = await self._store.list_metadata(
            prefix=prefix_of(source, shard_id), after=after, limit=min(limit, PAGE_MAX)
        )
        return [_decoded(one.key, one.payload) for one in stored]

    async def all(self, *, source: str = "", shard_id: int | None = None) -> AsyncIterator[DeadLetter]:
        """All of them, in their order."""
        after: str | None = None
        while page := await self.page(source=source, shard_id=shard_id, after=after):
            for letter in page:
                yield letter
            after = page[-1].key

    async def count(self, *, source: str, shard_id: int) -> int:
        """How many there are of one stream."""
        prefix, after, count = prefix_of(source, shard_id), None, 0
        while page := await self._store.list_metadata(prefix=prefix, after=after, limit=PAGE_MAX):
            count += len(page)
            after = page[-1].key
        return count

    async def count_of(self, *, source: str, namespace_id: str) -> int:
        """How many there are, or may be, of what a cluster wrote in a namespace."""
        count = 0
        async for letter in self.all(source=source):
            count += letter.namespace_id == namespace_id or not letter.is_readable
        return count

    async def remove(self, letter: DeadLetter) -> bool:
        """Let one go; whether it was there."""
        stored = await self._store.read_metadata(letter.key)
        while stored is not None:
            try:
                await self._store.delete_metadata(letter.key, expected_version=stored.version)
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
        error = f"{key} can't be read ({wrong}): is it of a newer release?"
        return DeadLetter(source, int(shard_id), int(task_id), "", "", "", 0, 0, (), error, attempts=0, dead_ns=0)
