"""A second implementation of the facts about a run: it searches the JSON form of the events for each fact."""

from datetime import datetime
from typing import Any

from google.protobuf.json_format import MessageToDict
from temporalio.api.history.v1 import History, HistoryEvent

Event = dict[str, Any]

CLOSINGS = ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELED", "TERMINATED", "CONTINUED_AS_NEW")
NAMES = {
    "applicationFailureInfo": "ApplicationFailure",
    "timeoutFailureInfo": "TimeoutFailure",
    "canceledFailureInfo": "CanceledFailure",
    "terminatedFailureInfo": "TerminatedFailure",
    "serverFailureInfo": "ServerFailure",
    "activityFailureInfo": "ActivityFailure",
    "childWorkflowExecutionFailureInfo": "ChildWorkflowFailure",
}


def as_json(events: list[HistoryEvent]) -> list[Event]:
    return list(MessageToDict(History(events=events)).get("events", []))


def said_in(event: Event) -> dict[str, Any]:
    """The attributes of an event, of any type."""
    return next((value for key, value in event.items() if key.endswith("EventAttributes")), {})


def time_us(event: Event) -> int:
    whole, _, rest = event["eventTime"].removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 1_000_000 + int(rest.ljust(9, "0")[:6] or 0)


def of_type(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["eventType"] == f"EVENT_TYPE_{name}"]


def between(first: Event | None, second: Event | None) -> float | None:
    return None if first is None or second is None else (time_us(second) - time_us(first)) / 1e6


def failure_of(failure: dict[str, Any]) -> tuple[str, str]:
    wrapper = failure.keys() & {"activityFailureInfo", "childWorkflowExecutionFailureInfo"}
    if wrapper and "cause" in failure:
        return failure_of(failure["cause"])
    info = next((name for name in failure if name.endswith("FailureInfo")), "")
    name = NAMES.get(info, "Failure")
    return failure.get(info, {}).get("type") or name, failure.get("message", "")[:500]


def workflow_row(events: list[Event], run_id: str) -> dict[str, Any]:
    started = said_in(events[0])
    closing = next(
        (each for name in CLOSINGS for each in of_type(events, f"WORKFLOW_EXECUTION_{name}")),
        None,
    )
    failed = of_type(events, "WORKFLOW_TASK_FAILED")
    resets = [event for event in failed if said_in(event).get("cause") == "WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW"]
    failure_type = failure_message = None
    status = "running"
    if closing is not None:
        status = closing["eventType"].removeprefix("EVENT_TYPE_WORKFLOW_EXECUTION_").lower()
        if status == "failed":
            failure_type, failure_message = failure_of(said_in(closing)["failure"])
        if status == "terminated":
            failure_message = said_in(closing).get("reason") or None
    parent = started.get("parentWorkflowExecution", {})
    first = [next(iter(of_type(events, f"WORKFLOW_TASK_{name}")), None) for name in ("SCHEDULED", "STARTED")]
    made = [said_in(event)["baseRunId"] for event in resets if said_in(event).get("newRunId") == run_id]
    return {
        "workflow_type": started["workflowType"]["name"],
        "task_list": started["taskQueue"]["name"],
        "status": status,
        "attempt": started.get("attempt", 1),
        "started_us": time_us(events[0]),
        "closed_us": None if closing is None else time_us(closing),
        "duration_s": between(events[0], closing),
        "first_task_wait_s": between(*first),
        "events": len(events),
        "signals": len(of_type(events, "WORKFLOW_EXECUTION_SIGNALED")),
        "updates": len(of_type(events, "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")),
        "timers": len(of_type(events, "TIMER_STARTED")),
        "children": len(of_type(events, "START_CHILD_WORKFLOW_EXECUTION_INITIATED")),
        "activities": len(of_type(events, "ACTIVITY_TASK_SCHEDULED")),
        "workflow_tasks": len(of_type(events, "WORKFLOW_TASK_SCHEDULED")),
        "workflow_tasks_failed": len(failed) - len(resets),
        "workflow_tasks_timed_out": len(of_type(events, "WORKFLOW_TASK_TIMED_OUT")),
        "first_run_id": started.get("firstExecutionRunId"),
        "continued_from_run_id": started.get("continuedExecutionRunId"),
        "continued_as_run_id": None if closing is None else said_in(closing).get("newExecutionRunId"),
        "reset_from_run_id": made[0] if made else None,
        "parent_workflow_id": parent.get("workflowId"),
        "parent_run_id": parent.get("runId"),
        "cron_schedule": started.get("cronSchedule") or None,
        "failure_type": failure_type,
        "failure_message": failure_message,
    }


def activity_rows(events: list[Event]) -> list[dict[str, Any]]:
    is_closed = workflow_row(events, "")["closed_us"] is not None
    return [_activity_row(events, event, is_closed=is_closed) for event in of_type(events, "ACTIVITY_TASK_SCHEDULED")]


def _activity_row(events: list[Event], scheduled: Event, *, is_closed: bool) -> dict[str, Any]:
    def of_this(name: str) -> Event | None:
        found = of_type(events, f"ACTIVITY_TASK_{name}")
        return next((each for each in found if said_in(each)["scheduledEventId"] == scheduled["eventId"]), None)

    said = said_in(scheduled)
    started = of_this("STARTED")
    ends = {name: of_this(name.upper()) for name in ("completed", "failed", "timed_out", "canceled")}
    outcome, closing = next(((name, end) for name, end in ends.items() if end), ("", None))
    failure = said_in(closing).get("failure", {}) if closing and outcome in {"failed", "timed_out"} else None
    attempt = None if started is None else said_in(started).get("attempt", 1)
    timeout = (failure or {}).get("timeoutFailureInfo", {}).get("timeoutType", "TIMEOUT_TYPE_UNSPECIFIED")
    last_failure = None if started is None else said_in(started).get("lastFailure")
    return {
        "activity_id": said["activityId"],
        "scheduled_event_id": int(scheduled["eventId"]),
        "activity_type": said["activityType"]["name"],
        "task_list": said["taskQueue"]["name"],
        "outcome": outcome or ("abandoned" if is_closed else "open"),
        "attempt": attempt,
        "retries": None if attempt is None else attempt - 1,
        "scheduled_us": time_us(scheduled),
        "started_us": None if started is None else time_us(started),
        "closed_us": None if closing is None else time_us(closing),
        "queue_wait_s": between(scheduled, started) if attempt == 1 else None,
        "run_s": between(started, closing),
        "total_s": between(scheduled, closing),
        "timeout_type": timeout.removeprefix("TIMEOUT_TYPE_").lower() if outcome == "timed_out" else None,
        "failure_type": failure_of(failure)[0] if failure is not None else None,
        "failure_message": failure_of(failure)[1] if failure is not None else None,
        "retried_failure_type": failure_of(last_failure)[0] if last_failure else None,
    }
