"""The timeline of a workflow: when each activity, timer, child, update and Nexus operation waited and ran."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from fairlead.api.times import in_seconds
from fairlead.console import text
from fairlead.console.events import attributes, type_name
from fairlead.console.pending import ShownActivity

# Rows of one timeline.
SPANS_MAX: Final = 200


class Span(Struct, frozen=True, kw_only=True):
    """A row: from `began_s` it waited until `ran_s`, and then ran until `ended_s`; None if that has not happened.

    If an activity is pending after a failed attempt, `failed_s` is the end of that attempt.
    """

    kind: str
    label: str
    event_id: int
    began_s: float
    ran_s: float | None = None
    ended_s: float | None = None
    outcome: str = "open"
    attempt: int = 0
    activity_id: str = ""
    failed_s: float | None = None


class _Builder:
    """Follows the events in their order. Open rows are found by the event id that began them."""

    def __init__(self) -> None:
        self.spans: dict[int, Span] = {}

    def begin(self, event: HistoryEvent, kind: str, label: str, *, runs: bool = False, activity_id: str = "") -> None:
        at_s = text.seconds_of(event.event_time) or 0.0
        self.spans[event.event_id] = Span(
            kind=kind,
            label=label,
            event_id=event.event_id,
            began_s=at_s,
            ran_s=at_s if runs else None,
            activity_id=activity_id,
        )

    def start(self, began_id: int, event: HistoryEvent, attempt: int = 0) -> None:
        self._change(began_id, ran_s=text.seconds_of(event.event_time), attempt=attempt)

    def end(self, began_id: int, event: HistoryEvent, outcome: str) -> None:
        self._change(began_id, ended_s=text.seconds_of(event.event_time), outcome=outcome)

    def point(self, event: HistoryEvent, kind: str, label: str) -> None:
        at_s = text.seconds_of(event.event_time) or 0.0
        self.spans[event.event_id] = Span(
            kind=kind, label=label, event_id=event.event_id, began_s=at_s, ran_s=at_s, ended_s=at_s, outcome="done"
        )

    def retry(self, activity: ShownActivity) -> None:
        """Show the attempts of a pending activity, which have no events."""
        for span in self.spans.values():
            if span.activity_id == activity.id and span.kind == "activity" and span.ended_s is None:
                is_running = activity.started_s is not None and activity.next_s is None
                self._change(
                    span.event_id,
                    ran_s=activity.started_s,
                    attempt=activity.attempt,
                    failed_s=None if is_running else activity.failed_s,
                    outcome="open" if activity.attempt <= 1 else "running again" if is_running else "retries",
                )

    def _change(self, began_id: int, **changes: Any) -> None:
        span = self.spans.get(began_id)
        if span is not None:
            values = {name: getattr(span, name) for name in span.__struct_fields__}
            self.spans[began_id] = Span(**{**values, **changes})


_Step = Callable[[_Builder, HistoryEvent, Any], None]


def _begins(kind: str, label: Callable[[Any], str], *, runs: bool = False) -> _Step:
    return lambda builder, event, found: builder.begin(event, kind, label(found), runs=runs)


def _starts(field: str) -> _Step:
    return lambda builder, event, found: builder.start(getattr(found, field), event, getattr(found, "attempt", 0))


def _ends(field: str) -> _Step:
    def step(builder: _Builder, event: HistoryEvent, found: Any) -> None:
        builder.end(getattr(found, field), event, _outcome(event.event_type))

    return step


def _marks(kind: str, label: Callable[[Any], str]) -> _Step:
    return lambda builder, event, found: builder.point(event, kind, label(found))


def _outcome(event_type: int) -> str:
    name = type_name(event_type)
    for ending, outcome in (("Completed", "completed"), ("Failed", "failed"), ("TimedOut", "timed out")):
        if name.endswith(ending):
            return outcome
    return "canceled" if name.endswith("Canceled") else "terminated" if name.endswith("Terminated") else "completed"


_ACTIVITY: Final = "scheduled_event_id"
_TIMER: Final = "started_event_id"
_CHILD: Final = "initiated_event_id"
_STEPS: Final[dict[int, _Step]] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: lambda builder, event, found: builder.begin(
        event, "activity", found.activity_type.name, activity_id=found.activity_id
    ),
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: _starts(_ACTIVITY),
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_TIMER_STARTED: _begins("timer", lambda found: f"timer {found.timer_id}", runs=True),
    EventType.EVENT_TYPE_TIMER_FIRED: _ends(_TIMER),
    EventType.EVENT_TYPE_TIMER_CANCELED: _ends(_TIMER),
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: _begins(
        "child", lambda found: found.workflow_type.name
    ),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED: _starts(_CHILD),
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: _ends(_CHILD),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: _ends(_CHILD),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: _ends(_CHILD),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: _ends(_CHILD),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: _ends(_CHILD),
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: _ends(_CHILD),
    EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED: _begins("nexus", lambda found: found.operation),
    EventType.EVENT_TYPE_NEXUS_OPERATION_STARTED: _starts(_ACTIVITY),
    EventType.EVENT_TYPE_NEXUS_OPERATION_COMPLETED: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_NEXUS_OPERATION_FAILED: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_NEXUS_OPERATION_TIMED_OUT: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_NEXUS_OPERATION_CANCELED: _ends(_ACTIVITY),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: _begins(
        "update", lambda found: found.accepted_request.input.name or "update", runs=True
    ),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: _ends("accepted_event_id"),
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: _marks("signal", lambda found: found.signal_name),
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED: _marks("failure", lambda _: "workflow task failed"),
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT: _marks("failure", lambda _: "workflow task timed out"),
}


def timeline(events: Iterable[HistoryEvent], activities: Iterable[ShownActivity] = ()) -> list[Span]:
    """The rows in the order in which they began; pending activities have the times of their last attempt."""
    builder = _Builder()
    for event in events:
        step = _STEPS.get(event.event_type)
        if step is not None:
            step(builder, event, attributes(event))
    for activity in activities:
        builder.retry(activity)
    return [*builder.spans.values()]


def shown_spans(spans: list[Span]) -> list[Span]:
    """At most `SPANS_MAX` rows: the oldest and the newest half."""
    half = SPANS_MAX // 2
    return spans if len(spans) <= SPANS_MAX else spans[:half] + spans[-half:]


def pending_timers(events: Iterable[HistoryEvent]) -> dict[str, float]:
    """Timers that have neither fired nor been canceled, with the time at which they fire."""
    found: dict[int, tuple[str, float]] = {}
    for event in events:
        of = attributes(event)
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
            waits = of.start_to_fire_timeout
            at_s = (text.seconds_of(event.event_time) or 0.0) + in_seconds(waits)
            found[event.event_id] = (of.timer_id, at_s)
        elif event.event_type in {EventType.EVENT_TYPE_TIMER_FIRED, EventType.EVENT_TYPE_TIMER_CANCELED}:
            found.pop(of.started_event_id, None)
    return dict(found.values())
