"""A second implementation of the facts about a run: it searches the JSON form of the events for each fact."""

import re
from collections import Counter
from datetime import UTC, date, datetime
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
        "build_id": next((each["build_id"] for each in reversed(workflow_tasks(events)) if each["build_id"]), None),
    }


def of_task(event: Event) -> str:
    """The id of the event that scheduled the task of this event."""
    return str(said_in(event)["scheduledEventId"])


def workflow_tasks(events: list[Event]) -> list[dict[str, Any]]:
    """The workflow tasks of a run."""
    tasks = []
    for scheduled in of_type(events, "WORKFLOW_TASK_SCHEDULED"):
        queue = said_in(scheduled).get("taskQueue", {})
        name = queue.get("name") if queue.get("kind") != "TASK_QUEUE_KIND_STICKY" else None
        of_this = [
            next(
                (one for one in of_type(events, kind) if said_in(one)["scheduledEventId"] == scheduled["eventId"]), None
            )
            for kind in ("WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_COMPLETED")
        ]
        said = said_in(of_this[1]) if of_this[1] else {}
        builds = [said.get(key, {}).get("buildId") for key in ("deploymentVersion", "workerVersion")]
        tasks.append(
            {
                "task_list": queue.get("normalName") or name or said_in(events[0])["taskQueue"]["name"],
                "build_id": builds[0] or builds[1] or None,
                "scheduled_us": time_us(scheduled),
                "started_us": None if of_this[0] is None else time_us(of_this[0]),
            }
        )
    return tasks


def actions(events: list[Event], run_id: str) -> Counter[tuple[date, str]]:
    """The billable actions of a run by day and kind."""
    resets = [place for place, event in enumerate(events) if said_in(event).get("newRunId") == run_id]
    own = events[resets[0] :] if resets else events
    found: Counter[tuple[date, str]] = Counter()

    def add(event: Event, kind: str, actions: int = 1) -> None:
        found[datetime.fromtimestamp(time_us(event) / 1e6, UTC).date(), kind] += actions

    single = {
        "TIMER_STARTED": "timer",
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED": "update",
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED": "child_workflow",
        "WORKFLOW_EXECUTION_OPTIONS_UPDATED": "options_update",
        "NEXUS_OPERATION_SCHEDULED": "nexus_operation",
        "NEXUS_OPERATION_CANCELED": "nexus_operation",
        "WORKFLOW_EXECUTION_STARTED": "workflow_start",
    }
    for name, kind in single.items():
        for event in of_type(own, name):
            add(event, kind)
    for event in of_type(own, "WORKFLOW_EXECUTION_STARTED"):
        if "TemporalScheduledById" in said_in(event).get("searchAttributes", {}).get("indexedFields", {}):
            add(event, "schedule", 2)
    for event in of_type(own, "ACTIVITY_TASK_STARTED"):
        add(event, "activity", said_in(event).get("attempt", 1))
    for event in of_type(own, "WORKFLOW_EXECUTION_SIGNALED"):
        if event["eventId"] != "2":
            add(event, "signal")
    for event in upserts(own):
        add(event, "search_attributes")
    for event in marked(own):
        add(event, "marker")
    if resets:
        add(own[0], "workflow_reset")
    return found


def upserts(own: list[Event]) -> list[Event]:
    """The changes of search attributes, without those of versions."""
    found = of_type(own, "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES")
    return [
        one for one in found if said_in(one)["searchAttributes"]["indexedFields"].keys() != {"TemporalChangeVersion"}
    ]


def marked(own: list[Event]) -> list[Event]:
    """The first marker of each workflow task, without markers of versions."""
    first = {
        said_in(event).get("workflowTaskCompletedEventId"): event
        for event in reversed(of_type(own, "MARKER_RECORDED"))
        if said_in(event).get("markerName") not in ("Version", "core_patch")
    }
    return list(first.values())


def message_class(message: str) -> str:
    """The message without what differs from case to case."""
    message = re.sub("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "<id>", message)
    message = re.sub("0x[0-9a-fA-F]+|[0-9a-fA-F]{16,}", "<id>", message)
    return re.sub("[0-9]+", "<n>", re.sub('"[^"]*"', "<text>", message))[:200]


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
        "retried_failure_message": failure_of(last_failure)[1] if last_failure else None,
        "build_id": (said_in(started).get("workerVersion", {}).get("buildId") or None) if started else None,
    }
