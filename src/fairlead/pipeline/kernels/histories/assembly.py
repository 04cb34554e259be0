"""The events of each run of a tree, in order and each once, from whatever batches were journaled."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

Line = Sequence[tuple[int, int]]

_TASK_FAILED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)


class Problem(StrEnum):
    """Why nothing can be said of a run."""

    NO_PAYLOADS = "no_payloads"
    INCOMPLETE = "incomplete"
    UNREADABLE = "unreadable"


class Record(NamedTuple):
    """A journaled batch; `items` is the version history after it, `payload` None where none was journaled."""

    run_id: str
    first: int
    last: int
    version: int
    item_ids: list[int] | None
    item_versions: list[int] | None
    task_id: int
    status: int
    time_us: int
    payload: bytes | None

    @property
    def line(self) -> Line:
        """The version history after the batch; of a source that knows none, that of one version."""
        if not self.item_ids or not self.item_versions:
            return [(self.last, self.version)]
        return list(zip(self.item_ids, self.item_versions, strict=True))


class Assembled(NamedTuple):
    """A run with the events of its current branch, or with the problem that is in the way."""

    run_id: str
    events: list[HistoryEvent]
    problem: Problem | None
    status: int
    last_us: int


class _Gap(Exception):
    """Events are missing."""


def assemble_tree(tree_id: str, records: Iterable[Record]) -> Iterator[Assembled]:
    """Each run of a tree. The records of one run come together, in the order of their first events.

    A run that a reset made begins with events of the run that its tree is named after.
    """
    runs = {run_id: list(own) for run_id, own in groupby(records, key=lambda record: record.run_id)}
    for run_id, own in runs.items():
        last_us = max(record.time_us for record in own)
        line = current_line(own)
        here = [record for record in own if _is_on(line, record)]
        if not here:
            # None of its batches is on the line that one of them tells: what it tells is not so.
            yield Assembled(run_id, [], Problem.INCOMPLETE, own[-1].status, last_us)
            continue
        status = max(here, key=lambda record: (record.last, record.task_id)).status
        try:
            events = _events_of(run_id, tree_id, line, here, runs)
        except _Gap:
            lacks = any(record.payload is None for record in here)
            yield Assembled(run_id, [], Problem.NO_PAYLOADS if lacks else Problem.INCOMPLETE, status, last_us)
        except DecodeError:
            yield Assembled(run_id, [], Problem.UNREADABLE, status, last_us)
        else:
            yield Assembled(run_id, events, None, status, last_us)


def current_line(records: Sequence[Record]) -> Line:
    """The version history of the branch with the highest last version, which is the current one, as far as it goes.

    The events of one version are one chain: of two ends with the same version, the later one goes on from the other.
    """
    best = max(records, key=lambda record: record.line[-1][::-1])
    return best.line


def _is_on(line: Line, record: Record) -> bool:
    """Whether the batch is part of the line: whether that passes through its last event, at its version."""
    for event_id, version in line:
        if record.last <= event_id:
            return record.version == version
    return False


def _events_of(
    run_id: str, tree_id: str, line: Line, own: Sequence[Record], runs: Mapping[str, Sequence[Record]]
) -> list[HistoryEvent]:
    first_own = own[0].first
    events: list[HistoryEvent] = []
    is_reset = run_id != tree_id and first_own > 1
    if is_reset:
        base = [record for record in runs.get(tree_id, ()) if _is_on(line, record)]
        _append(events, base, end=first_own)
    _append(events, own, end=line[-1][0] + 1)
    if is_reset and not any(_begins(event, run_id) for event in events):
        # What its own first batches said is missing, and was taken for what it shares with its base.
        raise _Gap
    return events


def _append(events: list[HistoryEvent], records: Sequence[Record], *, end: int) -> None:
    """Add the events before `end` that are not there yet. Batches may come twice, or in other parts."""
    next_id = len(events) + 1
    for record in records:
        if next_id >= end:
            break
        if record.payload is None or record.last < next_id:
            continue
        if record.first > next_id:
            raise _Gap
        for event in History.FromString(record.payload).events:
            if next_id == event.event_id < end:
                events.append(event)
                next_id += 1
    if next_id < end:
        raise _Gap


def _begins(event: HistoryEvent, run_id: str) -> bool:
    """Whether this is the failure of a workflow task by which a reset made the run."""
    return event.event_type == _TASK_FAILED and event.workflow_task_failed_event_attributes.new_run_id == run_id
