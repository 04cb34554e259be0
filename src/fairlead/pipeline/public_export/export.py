"""Exports a namespace run by run, each event once, even if the export is killed and started again.

A list of what was exported is beside the journal. A closed run that has not changed is skipped. The history of an
unchanged or a grown run is read from its end, up to the last exported event. Every `RUNS_A_COMMIT` runs, the new
segments and the list are committed together, so that a killed export loses only the runs since.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo

from fairlead.core.errors import FixRequest
from fairlead.journal import HistoryRecord
from fairlead.journal.exports import Ledger, broken_export, open_ledger
from fairlead.pipeline.public_export.source import SourceServer
from fairlead.pipeline.sources.faults import Faulty
from fairlead.pipeline.sources.run_records import ReadRun, records_of
from fairlead.pipeline.statuses import PAUSED, RUNNING

# Number of changed runs, and bytes of their records, after which an export commits.
RUNS_A_COMMIT = 500
BYTES_A_COMMIT = 64 << 20
# Number of runs whose histories are read at the same time.
READS_AT_ONCE = 8
# Number of runs that one export remembers: about 500 bytes of memory each.
RUNS_MAX = 5_000_000
# Bytes of a record without its payload, about.
RECORD_BYTES = 1_000
_OPEN = (RUNNING, PAUSED)
_PENDING = (EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)


class NothingToExport(FixRequest):
    """The namespace has no run."""


class TooManyRuns(FixRequest):
    """The namespace has more runs than one export can remember."""


class KnownRun(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An exported run: as the server listed it, and its version history up to the last exported event."""

    run_id: str
    status: int
    history_length: int
    closed_us: int
    items: tuple[tuple[int, int], ...]

    @property
    def listed(self) -> tuple[int, int, int]:
        """The listed facts that change when the run does."""
        return (self.status, self.history_length, self.closed_us)

    def has(self, event: HistoryEvent) -> bool:
        """Whether the event was exported: the same id and version mean the same event."""
        version = next((version for event_id, version in self.items if event.event_id <= event_id), None)
        return version == event.version


_decode_known = msgspec.json.Decoder(KnownRun).decode


@dataclass(slots=True)
class ExportedRuns:
    """Counts of an export; `runs_left_out` counts runs that no journal may have, such as those with times to come."""

    runs: int = 0
    runs_changed: int = 0
    runs_left_out: int = 0
    batches: int = 0
    events: int = 0
    segments: int = 0
    calls: int = 0
    # Why the first run was left out.
    fault: str = ""


async def export_namespace(
    source: SourceServer, folder: Path, *, notify: Callable[[ExportedRuns], None]
) -> ExportedRuns:
    """Write the new events of a namespace to the journal of one cluster."""
    done = ExportedRuns()
    namespace_id = await source.namespace_id()
    with open_ledger(folder, namespace_id) as ledger:
        known = _read_known(ledger)
        reader = _Reader(source, namespace_id, known)
        seen: set[str] = set()
        async for listed in _in_groups(source):
            fresh = [run for run in listed if run.execution.run_id not in seen]
            seen.update(run.execution.run_id for run in fresh)
            if len(seen) > RUNS_MAX:
                raise TooManyRuns(f"namespace {source.namespace!r} has more than {RUNS_MAX:,} runs: export is refused")
            done.runs += len(fresh)
            for read in await asyncio.gather(*map(reader.read, fresh)):
                _write(ledger, read, known, done)
            done.calls, done.segments = source.calls, ledger.segments
            if ledger.lines >= RUNS_A_COMMIT or ledger.size_bytes >= BYTES_A_COMMIT:
                ledger.commit()
            notify(done)
        if not seen:
            raise NothingToExport(f"{source.address}: namespace {source.namespace!r} has no workflows to export")
        ledger.commit()
        # Forget the runs that the server has deleted.
        if ledger.parts > 1 or known.keys() - seen:
            ledger.replace(known[run_id] for run_id in known if run_id in seen)
        done.calls, done.segments = source.calls, ledger.segments
    return done


@dataclass(frozen=True, slots=True)
class _Read:
    """The new events of a changed run, as records."""

    known: KnownRun
    records: Sequence[HistoryRecord] = ()
    events: int = 0
    fault: str = ""


class _Reader:
    """Reads what is new of listed runs."""

    def __init__(self, source: SourceServer, namespace_id: str, known: dict[str, KnownRun]) -> None:
        self._source = source
        self._namespace_id = namespace_id
        self._known = known

    async def read(self, run: WorkflowExecutionInfo) -> _Read | None:
        """Read the new events of a run; None if there is nothing new, or if the run was deleted meanwhile."""
        workflow_id, run_id = run.execution.workflow_id, run.execution.run_id
        before = self._known.get(run_id)
        now = KnownRun(run_id, run.status, run.history_length, run.close_time.ToMicroseconds(), ())
        if before is not None and before.listed == now.listed and run.status not in _OPEN:
            return None
        events = await self._new_events(workflow_id, run_id, before)
        if events is None:
            return None
        items = before.items if before is not None and events and events[0].event_id > 1 else ()
        if not events:
            if before is None or before.listed == now.listed:
                return None
            return _Read(msgspec.structs.replace(now, items=before.items))
        status = PAUSED if run.status == PAUSED else RUNNING
        read = ReadRun(self._namespace_id, workflow_id, run_id, events, items, self._source.namespace, status)
        try:
            records = list(records_of(read))
        except Faulty as faulty:
            return _Read(now, fault=f"run {run_id} of {workflow_id}: {faulty}")
        last = tuple((item.event_id, item.version) for item in records[-1].items)
        return _Read(msgspec.structs.replace(now, items=last), records, len(events))

    async def _new_events(self, workflow_id: str, run_id: str, before: KnownRun | None) -> list[HistoryEvent] | None:
        """The events after the exported ones; all events if the current branch has forked from those."""
        if before is not None and before.items:
            events = await self._source.read_newer(workflow_id, run_id, before.has)
            if not events or events[0].event_id > before.items[-1][0]:
                return events and _settled(events)
            # A record must not have events of two branches.
        events = await self._source.read_events(workflow_id, run_id)
        return events and _settled(events)


def _settled(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """Leave out the pending workflow task at the end of an open run.

    Servers show events of workflow tasks that they write only if the task succeeds: other events may get their ids.
    """
    end = len(events)
    while end and events[end - 1].event_type in _PENDING:
        end -= 1
    return events[:end]


def _write(ledger: Ledger, read: _Read | None, known: dict[str, KnownRun], done: ExportedRuns) -> None:
    if read is None:
        return
    if read.fault:
        done.runs_left_out += 1
        done.fault = done.fault or read.fault
        return
    for record in read.records:
        ledger.add(record, len(record.payload or "") + RECORD_BYTES)
    ledger.remember(read.known)
    known[read.known.run_id] = read.known
    done.runs_changed += bool(read.records)
    done.batches += len(read.records)
    done.events += read.events


def _read_known(ledger: Ledger) -> dict[str, KnownRun]:
    known: dict[str, KnownRun] = {}
    for line in ledger.known():
        try:
            run = _decode_known(line)
        except msgspec.DecodeError as broken:
            raise broken_export(ledger.place / "known", broken) from broken
        known[run.run_id] = run
    return known


async def _in_groups(source: SourceServer) -> AsyncIterator[Sequence[WorkflowExecutionInfo]]:
    async for page in source.list_runs():
        for begin in range(0, len(page), READS_AT_ONCE):
            yield page[begin : begin + READS_AT_ONCE]
