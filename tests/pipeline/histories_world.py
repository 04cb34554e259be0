"""Histories for tests, recorded or random, and the journal records that belong to them."""

import base64
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st
from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.history.shard.outline import outline_event
from fairlead.pipeline.statuses import CLOSED_BY
from tests.pipeline.journals import START_US

Record = dict[str, Any]
# `draw` of a composite strategy, or of the data of a test.
Draw = Callable[["st.SearchStrategy[Any]"], Any]


class Writer:
    """Writes events in order, each some time after the previous one."""

    def __init__(self, events: Iterable[HistoryEvent] = (), *, version: int = 0) -> None:
        self.events = [HistoryEvent.FromString(event.SerializeToString()) for event in events]
        self.version = version
        self._now_us = START_US + 1_000_000 * len(self.events)

    def add(self, kind: str, *, wait_us: int = 1000, **attributes: Any) -> HistoryEvent:
        """Append an event of a type such as TIMER_STARTED with these attributes."""
        self._now_us += wait_us
        event = HistoryEvent(
            event_id=len(self.events) + 1,
            event_type=EventType.Value(f"EVENT_TYPE_{kind}"),
            version=self.version,
            task_id=1000 + len(self.events),
        )
        event.event_time.FromMicroseconds(self._now_us)
        said = getattr(event, f"{kind.lower()}_event_attributes")
        said.SetInParent()
        for path, value in attributes.items():
            *parents, last = path.split("__")
            place = said
            for parent in parents:
                place = getattr(place, parent)
            if isinstance(value, Failure):
                getattr(place, last).CopyFrom(value)
            else:
                setattr(place, last, value)
        self.events.append(event)
        return event

    def begin(self, workflow_id: str, run_id: str) -> None:
        self.add(
            "WORKFLOW_EXECUTION_STARTED",
            workflow_id=workflow_id,
            workflow_type__name="order",
            task_queue__name="orders",
            original_execution_run_id=run_id,
            first_execution_run_id=run_id,
            attempt=1,
        )


def _application(kind: str) -> Failure:
    failure = Failure(message=f"it said {kind} " + "no" * 300)
    failure.application_failure_info.type = kind
    return failure


def _timeout(kind: int) -> Failure:
    failure = Failure(message="late")
    failure.timeout_failure_info.timeout_type = TimeoutType.ValueType(kind)
    return failure


def _of_activity(cause: Failure) -> Failure:
    failure = Failure(message="activity error", cause=cause)
    failure.activity_failure_info.activity_id = "1"
    return failure


FAILURES = st.one_of(
    st.builds(_application, st.sampled_from(["", "Declined", "Refused"])),
    st.builds(_timeout, st.sampled_from([1, 2, 3, 4])),
    st.builds(lambda kind: _of_activity(_application(kind)), st.sampled_from(["Declined", ""])),
)


@st.composite
def histories(draw: st.DrawFn, *, workflow_id: str = "order-1", run_id: str = "run-1") -> list[HistoryEvent]:
    """Random histories of a run, including some that no workflow would write."""
    writer = Writer()
    writer.begin(workflow_id, run_id)
    go_on(draw, writer)
    return writer.events


def go_on(draw: Draw, writer: Writer) -> None:
    """Append events to an open run, and sometimes its close event."""
    waits = st.integers(0, 5_000_000)
    for step in draw(st.lists(st.sampled_from(["task", "activity", "signal", "timer"]), max_size=8)):
        if step == "task":
            _task(draw, writer, waits)
        elif step == "activity":
            _activity(draw, writer, waits)
        elif step == "signal":
            writer.add("WORKFLOW_EXECUTION_SIGNALED", wait_us=draw(waits), signal_name="pay")
        else:
            writer.add("TIMER_STARTED", wait_us=draw(waits), timer_id="1")
    end = draw(st.sampled_from(["", "COMPLETED", "FAILED", "TIMED_OUT", "CANCELED", "TERMINATED", "CONTINUED_AS_NEW"]))
    more: dict[str, Any] = {}
    if end == "FAILED":
        more = {"failure": draw(FAILURES)}
    elif end == "TERMINATED":
        more = {"reason": draw(st.sampled_from(["", "enough"]))}
    elif end == "CONTINUED_AS_NEW":
        more = {"new_execution_run_id": "run-next"}
    if end:
        writer.add(f"WORKFLOW_EXECUTION_{end}", wait_us=draw(waits), **more)


def _task(draw: Draw, writer: Writer, waits: "st.SearchStrategy[int]") -> None:
    scheduled = writer.add("WORKFLOW_TASK_SCHEDULED", wait_us=draw(waits)).event_id
    if draw(st.booleans()):
        writer.add("WORKFLOW_TASK_STARTED", wait_us=draw(waits), scheduled_event_id=scheduled)
        end = draw(st.sampled_from(["COMPLETED", "FAILED", "TIMED_OUT"]))
        writer.add(f"WORKFLOW_TASK_{end}", wait_us=draw(waits), scheduled_event_id=scheduled)


def _activity(draw: Draw, writer: Writer, waits: "st.SearchStrategy[int]") -> None:
    scheduled = writer.add(
        "ACTIVITY_TASK_SCHEDULED",
        wait_us=draw(waits),
        activity_id="1",
        activity_type__name=draw(st.sampled_from(["charge", "ship"])),
        task_queue__name=draw(st.sampled_from(["orders", "cards"])),
    ).event_id
    if draw(st.booleans()):
        attempt = draw(st.integers(1, 3))
        last = {"last_failure": draw(FAILURES)} if attempt > 1 else {}
        writer.add("ACTIVITY_TASK_STARTED", wait_us=draw(waits), scheduled_event_id=scheduled, attempt=attempt, **last)
    end = draw(st.sampled_from(["", "COMPLETED", "FAILED", "TIMED_OUT", "CANCELED"]))
    failure = {"FAILED": FAILURES, "TIMED_OUT": st.builds(_timeout, st.sampled_from([1, 2, 3, 4]))}.get(end)
    more = {} if failure is None else {"failure": draw(failure)}
    if end:
        writer.add(f"ACTIVITY_TASK_{end}", wait_us=draw(waits), scheduled_event_id=scheduled, **more)


def open_part(events: Sequence[HistoryEvent]) -> int:
    """Number of events before the close event: a branch can only start there or earlier."""
    return len(events) - (events[-1].event_type in CLOSED_BY and len(events) > 1)


def reset_of(events: Sequence[HistoryEvent], *, base_run_id: str, run_id: str) -> Writer:
    """A run that a reset made from another run's first events; its own begin with the failed workflow task."""
    writer = Writer(events)
    writer.add(
        "WORKFLOW_TASK_FAILED",
        cause=WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
        base_run_id=base_run_id,
        new_run_id=run_id,
    )
    return writer


def records_of(
    events: Sequence[HistoryEvent],
    *,
    run_id: str = "run-1",
    workflow_id: str = "order-1",
    tree_id: str | None = None,
    branch_id: str = "branch-1",
    cuts: Iterable[int] = (),
    from_event_id: int = 1,
    has_payloads: bool = True,
    is_outlined: bool = False,
) -> list[Record]:
    """The records of a journal, cut into batches after these event ids and where the version changes."""
    ends = {*cuts, len(events)} | {
        event.event_id for event, after in pairwise(events) if event.version != after.version
    }
    records = []
    first = from_event_id
    for last in sorted(end for end in ends if from_event_id <= end <= len(events)):
        part = events[first - 1 : last]
        versions = {event.version: event.event_id for event in events[:last]}
        written = History(events=part)
        if is_outlined:
            for event in written.events:
                outline_event(event)
        payload = base64.b64encode(written.SerializeToString()).decode()
        records.append(
            {
                "time_us": part[-1].event_time.ToMicroseconds(),
                "namespace_id": "shop",
                "workflow_id": workflow_id,
                "run_id": run_id,
                "tree_id": tree_id or run_id,
                "branch_id": branch_id,
                "first_event_id": first,
                "last_event_id": last,
                "version": part[-1].version,
                "items": [{"event_id": event_id, "version": version} for version, event_id in versions.items()],
                "task_id": 10_000 + last,
                "status": 1,
            }
            | ({"outline" if is_outlined else "payload": payload} if has_payloads else {})
        )
        first = last + 1
    return records
