"""Counts what Temporal Cloud bills of a run, as far as its events show it: a lower bound.

A rule for each kind of action; docs/pipeline.md explains them. Queries, heartbeats, rejected updates, failed starts and
exports are in no history.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

DAY_S = 86_400
# Search attribute of runs that a schedule started, and the actions of the schedule for each.
SCHEDULED_BY = "TemporalScheduledById"
SCHEDULE_ACTIONS = 2
# Search attribute and markers of versions, which are free.
CHANGE_VERSION = "TemporalChangeVersion"
VERSION_MARKERS = frozenset({"Version", "core_patch"})

_STARTED = int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED)
_ACTIVITY_STARTED = int(EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED)
_MARKER = int(EventType.EVENT_TYPE_MARKER_RECORDED)
_SIGNALED = int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
_TASK_FAILED = int(EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
_UPSERT = int(EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES)
# Events that are one action each.
_ONE = {
    int(EventType.EVENT_TYPE_TIMER_STARTED): "timer",
    int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED): "update",
    int(EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED): "child_workflow",
    int(EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED): "options_update",
    int(EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED): "nexus_operation",
    int(EventType.EVENT_TYPE_NEXUS_OPERATION_CANCELED): "nexus_operation",
}


class ActionRow(NamedTuple):
    """Actions of one kind on one day, in days since the epoch."""

    day: int
    kind: str
    actions: int


def count_actions(run_id: str, events: Sequence[HistoryEvent]) -> list[ActionRow]:
    """Return the actions of a run by day and kind; events that a reset copied belong to the run before."""
    counts: Counter[tuple[int, str]] = Counter()
    marked: set[int] = set()
    own = events[_begin(run_id, events) :]
    for event in own:
        for kind, actions in _actions_of(event, run_id, marked):
            counts[event.event_time.seconds // DAY_S, kind] += actions
    return [ActionRow(day, kind, actions) for (day, kind), actions in sorted(counts.items())]


def _begin(run_id: str, events: Sequence[HistoryEvent]) -> int:
    """The position of the event with which a reset created the run; 0 for other runs."""
    return next(
        (
            place
            for place, event in enumerate(events)
            if event.event_type == _TASK_FAILED and event.workflow_task_failed_event_attributes.new_run_id == run_id
        ),
        0,
    )


def _actions_of(event: HistoryEvent, run_id: str, marked: set[int]) -> list[tuple[str, int]]:
    if (name := _ONE.get(event.event_type)) is not None:
        return [(name, 1)]
    rule = _RULES.get(event.event_type)
    return [] if rule is None else rule(event, run_id, marked)


def _start(event: HistoryEvent, _run_id: str, _marked: set[int]) -> list[tuple[str, int]]:
    fields = event.workflow_execution_started_event_attributes.search_attributes.indexed_fields
    return [("workflow_start", 1), *([("schedule", SCHEDULE_ACTIONS)] if SCHEDULED_BY in fields else [])]


def _reset(event: HistoryEvent, run_id: str, _marked: set[int]) -> list[tuple[str, int]]:
    is_reset = event.workflow_task_failed_event_attributes.new_run_id == run_id
    return [("workflow_reset", 1)] if is_reset else []


def _activity(event: HistoryEvent, _run_id: str, _marked: set[int]) -> list[tuple[str, int]]:
    """Each attempt is an action; the event has the number of the last attempt."""
    return [("activity", event.activity_task_started_event_attributes.attempt or 1)]


def _signal(event: HistoryEvent, _run_id: str, _marked: set[int]) -> list[tuple[str, int]]:
    """A signal right after the start came with it: both are one action."""
    return [("signal", 1)] if event.event_id != 2 else []


def _upsert(event: HistoryEvent, _run_id: str, _marked: set[int]) -> list[tuple[str, int]]:
    names = set(event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields)
    return [("search_attributes", 1)] if names - {CHANGE_VERSION} else []


def _marker(event: HistoryEvent, _run_id: str, marked: set[int]) -> list[tuple[str, int]]:
    """All markers of a workflow task are one action."""
    said = event.marker_recorded_event_attributes
    task = said.workflow_task_completed_event_id
    if said.marker_name in VERSION_MARKERS or task in marked:
        return []
    marked.add(task)
    return [("marker", 1)]


_RULES: dict[int, Callable[[HistoryEvent, str, set[int]], list[tuple[str, int]]]] = {
    _STARTED: _start,
    _TASK_FAILED: _reset,
    _ACTIVITY_STARTED: _activity,
    _SIGNALED: _signal,
    _UPSERT: _upsert,
    _MARKER: _marker,
}
