"""Exports a store's histories to a journal. Repeated exports write each batch of events only once.

A file beside the journal records, for each exported run, its version in the store and the version histories of its
branches. The store and that file list runs in the same order, so the export reads both in parallel, page by page. It
skips unchanged runs, and reads only the new batches of changed runs. So exporting an unchanged store again writes no
segment.

The export takes no shard, so a server may run at the same time. Each run is exported in the state that it has when it
is read.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.api.entity_namespaces import is_entity
from fairlead.api.times import MICROSECOND_NS, from_timestamp
from fairlead.core.errors import FixRequest
from fairlead.core.versions import NoCommonAncestor, VersionHistory, lowest_common_ancestor
from fairlead.history.shard.journal import to_record
from fairlead.history.shard.stream_rows import Streamed, StreamRow
from fairlead.history.state import RunIdentity, RunState, decode
from fairlead.history.state.run import RUNNING
from fairlead.journal.exports import Export, broken_export, open_export
from fairlead.settings.static.journal import JournalPayloads
from fairlead.storage.history import (
    ListedRun,
    RunKey,
    StoredBatch,
    StoredNamespace,
    StoredRun,
)

RUNS_A_PAGE = 500
PAGE_BYTES = 4 << 20
# Approximate bytes of a record without its payload.
RECORD_BYTES = 1000


class NothingToExport(FixRequest):
    """The store has no run, or no run in the requested namespace."""


class ExportedStore(Protocol):
    """The methods of `HistoryStore` that an export uses; none of them needs a lease."""

    async def read_namespace(
        self, *, namespace_id: str | None = None, name: str | None = None
    ) -> StoredNamespace | None:
        """A namespace by its id or by its name."""
        ...

    async def list_runs(self, shard_id: int, *, after: RunKey | None, limit: int) -> list[ListedRun]:
        """The first `limit` runs of a shard after `after`, ordered by code points."""
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
    """An exported run. `exported` holds the version histories of its branches up to their last exported events."""

    shard_id: int
    namespace_id: str
    workflow_id: str
    run_id: str
    db_version: int
    exported: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def run_key(self) -> tuple[int, str, str, str]:
        """The sort key of the run among all runs."""
        return (self.shard_id, self.namespace_id, self.workflow_id, self.run_id)


_decode_known = msgspec.json.Decoder(KnownRun).decode


@dataclass(slots=True)
class Exported:
    """Counts of an export: shards, runs, runs with new batches, and written batches, events and segments."""

    shards: int = 0
    shards_done: int = 0
    runs: int = 0
    runs_changed: int = 0
    batches: int = 0
    events: int = 0
    segments: int = 0


async def export_histories(
    store: ExportedStore, folder: Path, *, shards: int | None, namespace: str | None, notify: Callable[[Exported], None]
) -> Exported:
    """Write the new batches of the store to the journal of one cluster; either all or none of them.

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
                before = known.find((shard_id, *RunKey.of(listed)))
                now = await _export_run(store, export, shard_id, listed, before=before, done=done)
                if now is not None:
                    export.remember(now)
                notify(done)
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
    """The runs of earlier exports, looked up in the order of the store."""

    def __init__(self, export: Export, folder: Path, *, namespace_id: str | None) -> None:
        self._export = export
        self._namespace_id = namespace_id
        self._runs = self._read(folder)
        self._next = next(self._runs, None)

    def find(self, run_key: tuple[int, str, str, str]) -> KnownRun | None:
        """The earlier export of a run. Also forgets the runs before it, which the store no longer has."""
        while self._next is not None and self._next.run_key < run_key:
            self._skip(self._next)
        if self._next is None or self._next.run_key != run_key:
            return None
        found, self._next = self._next, next(self._runs, None)
        return found

    def keep_rest(self) -> None:
        """Keep the remaining runs of namespaces that are not exported this time."""
        while self._next is not None:
            self._skip(self._next)

    def _skip(self, run: KnownRun) -> None:
        # Runs of namespaces that are not exported were not read: keep them.
        if self._namespace_id not in (None, run.namespace_id):
            self._export.remember(run)
        self._next = next(self._runs, None)

    def _read(self, folder: Path) -> Iterator[KnownRun]:
        for versions in self._export.known():
            try:
                yield _decode_known(versions)
            except msgspec.DecodeError as broken:
                raise broken_export(folder / ".export" / "known.jsonl.zst", broken) from broken


async def _namespace_id(store: ExportedStore, name: str | None) -> str | None:
    if name is None:
        return None
    namespace = await store.read_namespace(name=name) or await store.read_namespace(namespace_id=name)
    if namespace is None:
        raise NothingToExport(f"the store has no namespace with the name or id {name!r}")
    return namespace.namespace_id


async def _runs(store: ExportedStore, shard_id: int, *, namespace_id: str | None) -> AsyncIterator[ListedRun]:
    after = None if namespace_id is None else RunKey(namespace_id, "", "")
    while True:
        page = await store.list_runs(shard_id, after=after, limit=RUNS_A_PAGE)
        for run in page:
            if namespace_id not in (None, run.namespace_id):
                return
            # Entities have no events.
            if not is_entity(run.namespace_id):
                yield run
        if len(page) < RUNS_A_PAGE:
            return
        after = RunKey(*page[-1][:3])


class _Branch(NamedTuple):
    """A branch of a run when the run was read; `status` and `new_run_id` apply after its last event."""

    identity: RunIdentity
    versions: VersionHistory
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
    """Write the new batches of a run and return what is exported now; None if the run was deleted in the meantime."""
    if before is not None and before.db_version == listed.db_version:
        return before
    stored = await store.read_run(shard_id, *RunKey.of(listed))
    if stored is None:
        return None
    known = [] if before is None else [VersionHistory.from_pairs(versions) for versions in before.exported]
    exported: list[VersionHistory] = []
    batches = done.batches
    for branch in _branches(decode(stored.state)):
        last_event_id = await _export_branch(store, export, branch, known=[*known, *exported], done=done)
        if last_event_id:
            exported.append(branch.versions.truncate(last_event_id))
    done.runs_changed += done.batches > batches
    return KnownRun(
        shard_id, *RunKey.of(listed), stored.db_version, tuple(versions.to_pairs() for versions in exported)
    )


def _branches(state: RunState) -> Iterator[_Branch]:
    """All branches of a run, the current branch first."""
    identity = state.identity
    if state.versions is not None:
        yield _Branch(identity, state.versions, state.status, state.new_run_id)
    for side in state.live.branches:
        run_key = msgspec.structs.replace(identity, branch_id=side.branch_id)
        yield _Branch(run_key, VersionHistory.from_pairs(side.items), RUNNING, "")


async def _export_branch(
    store: ExportedStore, export: Export, branch: _Branch, *, known: Sequence[VersionHistory], done: Exported
) -> int:
    """Write the batches of a branch that no exported branch has; return its last exported event id."""
    last_event_id = max((_shared_to(versions, branch.versions) for versions in known), default=0)
    own_since = 0
    if not last_event_id and branch.identity.tree_id != branch.identity.run_id:
        own_since = await _own_since(store, branch)
    namespace: StoredNamespace | None = None
    async for batch in _batches(store, branch, last_event_id + 1):
        last_event_id = batch.last_event_id
        if namespace is None:
            namespace = await store.read_namespace(namespace_id=branch.identity.namespace_id)
        # A reset run exports only its own events: the events before the reset belong to its base run.
        if batch.transaction_id >= own_since:
            streamed = Streamed(batch.transaction_id, _row_of(branch, batch), batch.payload)
            record = to_record(
                streamed, payloads=JournalPayloads.WHOLE, namespace=None if namespace is None else namespace.name
            )
            export.add(record, len(batch.payload) + RECORD_BYTES)
            done.batches += 1
            done.events += batch.last_event_id - batch.first_event_id + 1
    return last_event_id


def _shared_to(known: VersionHistory, versions: VersionHistory) -> int:
    """The last event id that two branches share, or 0: events with the same id and version are the same event."""
    try:
        return lowest_common_ancestor(known, versions).event_id
    except NoCommonAncestor:
        return 0


async def _batches(store: ExportedStore, branch: _Branch, from_event_id: int) -> AsyncIterator[StoredBatch]:
    """The batches of a branch, read page by page; fewer if the run is deleted in the meantime."""
    end_event_id = branch.versions.last.event_id + 1
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
    """The id of the transaction in which a reset created the run. Earlier batches belong to its base run.

    Transaction ids of a shard increase, and all runs of a tree are in one shard.
    """
    run_id = branch.identity.run_id
    async for batch in _batches(store, branch, 1):
        for event in _events(batch.payload):
            is_failure = event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
            if is_failure and event.workflow_task_failed_event_attributes.new_run_id == run_id:
                return batch.transaction_id
    return 0


def _row_of(branch: _Branch, batch: StoredBatch) -> StreamRow:
    """The stream row of the batch, as the server would journal it. Before the last batch, the run was running.

    Its time is the time of the last event, because the store does not record the time of the commit.
    """
    identity, versions = branch.identity, branch.versions
    is_last = batch.last_event_id == versions.last.event_id
    events = _events(batch.payload)
    return StreamRow(
        *(identity.namespace_id, identity.workflow_id, identity.run_id, identity.tree_id, identity.branch_id),
        *(batch.first_event_id, batch.last_event_id, batch.version),
        items=versions.truncate(batch.last_event_id).to_pairs(),
        status=branch.status if is_last else RUNNING,
        new_run_id=branch.new_run_id if is_last else "",
        time_us=from_timestamp(events[-1].event_time) // MICROSECOND_NS if events else 0,
    )


def _events(payload: bytes) -> list[HistoryEvent]:
    try:
        return list(History.FromString(payload).events)
    except DecodeError:
        # `to_record` logs the error and omits the event fields.
        return []
