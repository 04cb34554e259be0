"""Assembles the events of each run of a history tree, in order and without duplicates, from the journaled batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple

from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

Branch = Sequence[tuple[int, int]]

_TASK_FAILED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)


class Problem(StrEnum):
    """Reason why a run has no rows."""

    NO_PAYLOADS = "no_payloads"
    INCOMPLETE = "incomplete"
    UNREADABLE = "unreadable"


class Record(NamedTuple):
    """A journaled batch; `items` is the version history after it; `payload` is null without payloads in the journal."""

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
    def branch(self) -> Branch:
        """The version history after the batch; a single item if the source has no version histories."""
        if not self.item_ids or not self.item_versions:
            return [(self.last, self.version)]
        return list(zip(self.item_ids, self.item_versions, strict=True))


class Assembled(NamedTuple):
    """A run with the events of its current branch, or with the problem that prevented its assembly."""

    run_id: str
    events: list[HistoryEvent]
    problem: Problem | None
    status: int
    last_us: int


class _Gap(Exception):
    """Events are missing."""


def assemble_tree(tree_id: str, records: Iterable[Record]) -> Iterator[Assembled]:
    """Yield each run of a tree. The records of one run must be adjacent, ordered by their first events.

    A run that a reset created begins with events of the run that its tree is named after.
    """
    runs = {run_id: list(own) for run_id, own in groupby(records, key=lambda record: record.run_id)}
    for run_id, own in runs.items():
        last_us = max(record.time_us for record in own)
        branch = current_branch(own)
        here = [record for record in own if _is_on(branch, record)]
        if not here:
            # The version histories contradict the batches: one of them claims a branch that no batch is on.
            yield Assembled(run_id, [], Problem.INCOMPLETE, own[-1].status, last_us)
            continue
        status = max(here, key=lambda record: (record.last, record.task_id)).status
        try:
            events = _events_of(run_id, tree_id, branch, here, runs)
        except _Gap:
            lacks = any(record.payload is None for record in here)
            yield Assembled(run_id, [], Problem.NO_PAYLOADS if lacks else Problem.INCOMPLETE, status, last_us)
        except DecodeError:
            yield Assembled(run_id, [], Problem.UNREADABLE, status, last_us)
        else:
            yield Assembled(run_id, events, None, status, last_us)


def current_branch(records: Sequence[Record]) -> Branch:
    """Return the version history of the current branch (the one with the highest last version), as far as it is known.

    The events of one version form one chain: if two branches end with the same version, the longer one continues the
    other.
    """
    best = max(records, key=lambda record: record.branch[-1][::-1])
    return best.branch


def _is_on(branch: Branch, record: Record) -> bool:
    """Whether the batch is on the branch: the branch has the batch's last event, with the batch's version."""
    for event_id, version in branch:
        if record.last <= event_id:
            return record.version == version
    return False


def _events_of(
    run_id: str, tree_id: str, branch: Branch, own: Sequence[Record], runs: Mapping[str, Sequence[Record]]
) -> list[HistoryEvent]:
    first_own = own[0].first
    events: list[HistoryEvent] = []
    is_reset = run_id != tree_id and first_own > 1
    if is_reset:
        base = [record for record in runs.get(tree_id, ()) if _is_on(branch, record)]
        _append(events, base, end=first_own)
    _append(events, own, end=branch[-1][0] + 1)
    if is_reset and not any(_begins(event, run_id) for event in events):
        # The event that starts the reset run is missing: the run's own first batches are missing, and the base run's
        # events were read in their place.
        raise _Gap
    return events


def _append(events: list[HistoryEvent], records: Sequence[Record], *, end: int) -> None:
    """Add the events before `end` that are not there yet. Batches may repeat or overlap."""
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
    """Whether this is the WorkflowTaskFailed event with which a reset created the run."""
    return event.event_type == _TASK_FAILED and event.workflow_task_failed_event_attributes.new_run_id == run_id
