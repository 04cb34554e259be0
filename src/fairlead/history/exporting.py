"""The histories of a store as records of the journal, each batch of events once however often the store is exported.

What was exported is remembered beside the journal: of every run how often it had been written, and how far its
branches went. The store lists its runs in an order that never changes, and so does that memory: the two are read side
by side, page by page. A run that was not written since is not read, of another only what is new. So a second export of
an unchanged store writes no segment at all, and one of a store that went on writes what came since.

No shard is taken: a server may be at work meanwhile. Each run is exported as it was at the moment of its reading.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.errors import FixRequest
from fairlead.core.versions import NoCommonAncestor, VersionHistory, lowest_common_ancestor
from fairlead.history.journaling import to_record
from fairlead.history.state import RunIdentity, RunState, decode
from fairlead.history.state.run import RUNNING
from fairlead.history.state.times import from_timestamp
from fairlead.history.stream_rows import Streamed, StreamRow
from fairlead.journal.exports import Export, broken_export, open_export
from fairlead.storage.history_contract import (
    ListedRun,
    RunKey,
    StoredBatch,
    StoredNamespace,
    StoredRun,
)

RUNS_A_PAGE = 500
PAGE_BYTES = 4 << 20
# What a record has beside its payload.
RECORD_BYTES = 1000
MICROSECOND_NS = 1000
# In the namespace ids of schedules and the like: see `fairlead.history.entities`.
ENTITY_MARK = "#"


class NothingToExport(FixRequest):
    """There is no run in the store, or none that was asked for."""


class ExportedStore(Protocol):
    """What is asked of a store, as `HistoryStore` has it: nothing that needs a lease."""

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        """A namespace by its id or by its name."""
        ...

    async def list_runs(self, shard_id: int, *, after: RunKey | None, limit: int) -> list[ListedRun]:
        """The first `limit` runs of a shard after `after`, by code points."""
        ...

    async def read_run(self, shard_id: int, namespace_id: str, workflow_id: str, run_id: str) -> StoredRun | None:
        """A run with its state."""
        ...

    async def read_branch(
        self, tree_id: str, branch_id: str, from_event_id: int, to_event_id: int, *, limit_bytes: int
    ) -> list[StoredBatch]:
        """The batches that hold events of the range, in order."""
        ...


class KnownRun(msgspec.Struct, array_like=True, frozen=True):
    """What was exported of a run: `lines` are the version histories of its branches, up to the last event of each."""

    shard_id: int
    namespace_id: str
    workflow_id: str
    run_id: str
    db_version: int
    lines: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def place(self) -> tuple[int, str, str, str]:
        """Where it stands in the order of all runs."""
        return (self.shard_id, self.namespace_id, self.workflow_id, self.run_id)


_decode_known = msgspec.json.Decoder(KnownRun).decode


@dataclass(slots=True)
class Exported:
    """What came of an export: runs that are there, those of them with something new, and what was written."""

    shards: int = 0
    shards_done: int = 0
    runs: int = 0
    runs_changed: int = 0
    batches: int = 0
    events: int = 0
    segments: int = 0


async def export_histories(
    store: ExportedStore, folder: Path, *, shards: int | None, namespace: str | None, tell: Callable[[Exported], None]
) -> Exported:
    """Write what is new in the store to the journal of one cluster, all of it or nothing.

    `shards` is None in a store that was never used.
    """
    if shards is None:
        raise NothingToExport("the store is empty: no server has been started with it")
    done = Exported(shards=shards)
    namespace_id = await _namespace_id(store, namespace)
    with open_export(folder) as export:
        known = _Known(export, folder, namespace_id=namespace_id)
        for shard_id in range(done.shards):
            async for listed in _runs(store, shard_id, namespace_id=namespace_id):
                done.runs += 1
                before = known.find((shard_id, *listed[:3]))
                now = await _export_run(store, export, shard_id, listed, before=before, done=done)
                if now is not None:
                    export.remember(now)
                tell(done)
            done.shards_done += 1
        known.keep_rest()
        if not done.runs:
            raise NothingToExport(
                "the store has no workflows: nothing to export"
                if namespace is None
                else f"namespace {namespace!r} has no workflows: nothing to export"
            )
        export.commit()
        done.segments = export.segments
    return done


class _Known:
    """What earlier exports remembered, asked for run by run in the order of the store."""

    def __init__(self, export: Export, folder: Path, *, namespace_id: str | None) -> None:
        self._export = export
        self._namespace_id = namespace_id
        self._runs = self._read(folder)
        self._next = next(self._runs, None)

    def find(self, place: tuple[int, str, str, str]) -> KnownRun | None:
        """What was remembered of a run; of those before it that are not there any more, nothing is kept."""
        while self._next is not None and self._next.place < place:
            self._skip(self._next)
        if self._next is None or self._next.place != place:
            return None
        found, self._next = self._next, next(self._runs, None)
        return found

    def keep_rest(self) -> None:
        """Go on to the end."""
        while self._next is not None:
            self._skip(self._next)

    def _skip(self, run: KnownRun) -> None:
        # Of other namespaces than the one that was asked for nothing was read.
        if self._namespace_id not in (None, run.namespace_id):
            self._export.remember(run)
        self._next = next(self._runs, None)

    def _read(self, folder: Path) -> Iterator[KnownRun]:
        for line in self._export.known():
            try:
                yield _decode_known(line)
            except msgspec.DecodeError as broken:
                raise broken_export(folder / ".export" / "known.jsonl.zst", broken) from broken


async def _namespace_id(store: ExportedStore, name: str | None) -> str | None:
    if name is None:
        return None
    namespace = await store.read_namespace(name=name)
    if namespace is None:
        raise NothingToExport(f"there is no namespace {name!r} in the store")
    return namespace.namespace_id


async def _runs(store: ExportedStore, shard_id: int, *, namespace_id: str | None) -> AsyncIterator[ListedRun]:
    after = None if namespace_id is None else RunKey(namespace_id, "", "")
    while True:
        page = await store.list_runs(shard_id, after=after, limit=RUNS_A_PAGE)
        for run in page:
            if namespace_id not in (None, run.namespace_id):
                return
            # What is no workflow has no events.
            if ENTITY_MARK not in run.namespace_id:
                yield run
        if len(page) < RUNS_A_PAGE:
            return
        after = RunKey(*page[-1][:3])


class _Branch(NamedTuple):
    """A branch of a run, as it was when the run was read; `status` and `new_run_id` are those after its last event."""

    identity: RunIdentity
    line: VersionHistory
    status: int
    new_run_id: str


async def _export_run(
    store: ExportedStore,
    export: Export,
    shard_id: int,
    listed: ListedRun,
    *,
    before: KnownRun | None,
    done: Exported,
) -> KnownRun | None:
    """Write what is new of a run; what is to be remembered of it, None if it is gone."""
    if before is not None and before.db_version == listed.db_version:
        return before
    stored = await store.read_run(shard_id, *listed[:3])
    if stored is None:
        return None
    known = [] if before is None else [VersionHistory.from_pairs(line) for line in before.lines]
    lines: list[VersionHistory] = []
    batches = done.batches
    for branch in _branches(decode(stored.state)):
        last_event_id = await _export_branch(store, export, branch, known=[*known, *lines], done=done)
        if last_event_id:
            lines.append(branch.line.truncate(last_event_id))
    done.runs_changed += done.batches > batches
    return KnownRun(shard_id, *listed[:3], stored.db_version, tuple(line.to_pairs() for line in lines))


def _branches(state: RunState) -> Iterator[_Branch]:
    """All branches of a run: the current one, and those that have lost to it."""
    identity = state.identity
    if state.versions is not None:
        yield _Branch(identity, state.versions, state.status, state.new_run_id)
    for side in state.live.branches:
        place = msgspec.structs.replace(identity, branch_id=side.branch_id)
        yield _Branch(place, VersionHistory.from_pairs(side.items), RUNNING, "")


async def _export_branch(
    store: ExportedStore, export: Export, branch: _Branch, *, known: Sequence[VersionHistory], done: Exported
) -> int:
    """Write the batches that no line has which is known; the last event of the branch that was written by now."""
    last_event_id = max((_shared_to(line, branch.line) for line in known), default=0)
    own_since = 0
    if not last_event_id and branch.identity.tree_id != branch.identity.run_id:
        own_since = await _own_since(store, branch)
    async for batch in _batches(store, branch, last_event_id + 1):
        last_event_id = batch.last_event_id
        # Of a reset run, the journal has only its own events, as it is its base that wrote the others.
        if batch.transaction_id >= own_since:
            streamed = Streamed(batch.transaction_id, _row_of(branch, batch), batch.payload)
            export.add(to_record(streamed, with_payload=True), len(batch.payload) + RECORD_BYTES)
            done.batches += 1
            done.events += batch.last_event_id - batch.first_event_id + 1
    return last_event_id


def _shared_to(known: VersionHistory, line: VersionHistory) -> int:
    """The last event that two lines share, 0 if they share none: an event of an id and a version is one event."""
    try:
        return lowest_common_ancestor(known, line).event_id
    except NoCommonAncestor:
        return 0


async def _batches(store: ExportedStore, branch: _Branch, from_event_id: int) -> AsyncIterator[StoredBatch]:
    """Page by page; fewer if the run is deleted meanwhile."""
    end_event_id = branch.line.last.event_id + 1
    while from_event_id < end_event_id:
        page = await store.read_branch(
            branch.identity.tree_id,
            branch.identity.branch_id,
            from_event_id,
            end_event_id,
            limit_bytes=PAGE_BYTES,
        )
        if not page:
            return
        for batch in page:
            yield batch
        from_event_id = page[-1].last_event_id + 1


async def _own_since(store: ExportedStore, branch: _Branch) -> int:
    """The transaction with which a reset made the run: what its branch has from before is its base's.

    The transactions of a shard are numbered in their order, and all runs of a tree are in one shard.
    """
    run_id = branch.identity.run_id
    async for batch in _batches(store, branch, 1):
        for event in _events(batch.payload):
            is_failure = event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
            if is_failure and event.workflow_task_failed_event_attributes.new_run_id == run_id:
                return batch.transaction_id
    return 0


def _row_of(branch: _Branch, batch: StoredBatch) -> StreamRow:
    """What the server's journal says of the batch. Before the last one, the run was running.

    The time is that of the last event: when it was committed, the store does not say.
    """
    identity, line = branch.identity, branch.line
    is_last = batch.last_event_id == line.last.event_id
    events = _events(batch.payload)
    return StreamRow(
        *(identity.namespace_id, identity.workflow_id, identity.run_id, identity.tree_id, identity.branch_id),
        *(batch.first_event_id, batch.last_event_id, batch.version),
        items=line.truncate(batch.last_event_id).to_pairs(),
        status=branch.status if is_last else RUNNING,
        new_run_id=branch.new_run_id if is_last else "",
        time_us=from_timestamp(events[-1].event_time) // MICROSECOND_NS if events else 0,
    )


def _events(payload: bytes) -> list[HistoryEvent]:
    try:
        return list(History.FromString(payload).events)
    except DecodeError:
        # Its record says so, by what it lacks.
        return []
