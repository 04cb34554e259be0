"""Tables of the job `histories`."""

from fairlead.pipeline.dictionary.entry import Column, Table
from fairlead.pipeline.schemas_histories import (
    ACTIONS,
    ACTIVITIES,
    ACTIVITY_TYPES,
    FAILURES,
    HISTORY_TRAFFIC,
    WAITS,
    WORKFLOW_TYPES,
    WORKFLOWS,
)

_TIME = "µs since the epoch"
_TYPE = {
    "workflow_type": Column("type of the workflow", '"Order"'),
    "activity_type": Column("type of the activity", '"charge_card"'),
}
_FAILURE = {
    "failure_type": Column(
        "type of the failure that the application gave, or a name like `TimeoutFailure`", '"Declined"'
    ),
    "failure_message": Column("message of the failure, at most 500 characters", '"card 17 was declined"'),
}
_RUN = {
    **_TYPE,
    **_FAILURE,
    "status": Column(
        "`running`, `paused`, `completed`, `failed`, `canceled`, `terminated`, `continued_as_new` or `timed_out`",
        '"completed"',
    ),
    "attempt": Column("attempt of the run, 1 is the first", "1"),
    "started_us": Column("start of the run", "1769860812345678", _TIME),
    "closed_us": Column("end of the run; null if it is open", "1769860912345678", _TIME),
    "duration_s": Column("time from start to end", "100.0", "s"),
    "first_task_wait_s": Column("wait of the first workflow task for a worker", "0.02", "s"),
    "events": Column("events of the current branch", "23", "events"),
    "signals": Column("received signals", "2", "signals"),
    "updates": Column("accepted updates", "0", "updates"),
    "timers": Column("started timers", "1", "timers"),
    "children": Column("started child workflows", "0", "workflows"),
    "activities": Column("scheduled activities", "3", "activities"),
    "workflow_tasks": Column("scheduled workflow tasks", "5", "tasks"),
    "workflow_tasks_failed": Column("failed workflow tasks, without the failure that a reset writes", "0", "tasks"),
    "workflow_tasks_timed_out": Column("workflow tasks that timed out", "0", "tasks"),
    "first_run_id": Column("id of the first run of the chain", '"019a4b6e-7c1d-7e52-a1b2-0a1b2c3d4e5f"'),
    "continued_from_run_id": Column("run before this one", '"019a4b6e-7c1d-7e52-a1b2-0a1b2c3d4e5f"'),
    "continued_as_run_id": Column("run after this one", '"019a4b70-11aa-7c11-8d2e-1f2e3d4c5b6a"'),
    "reset_from_run_id": Column("run that a reset copied", '"019a4b6e-7c1d-7e52-a1b2-0a1b2c3d4e5f"'),
    "parent_workflow_id": Column("id of the parent workflow", '"batch-7"'),
    "parent_run_id": Column("run of the parent workflow", '"019a4b6d-0001-7aaa-8bbb-1f2e3d4c5b6a"'),
    "cron_schedule": Column("cron expression of the workflow", '"0 * * * *"'),
    "build_id": Column("build id of the worker that completed the last workflow task", '"1.4.2"'),
}
_ACTIVITY = {
    **_TYPE,
    **_FAILURE,
    "activity_id": Column("id of the activity in its run", '"1"'),
    "scheduled_event_id": Column("id of the event that scheduled it", "5"),
    "outcome": Column(
        "`completed`, `failed`, `timed_out`, `canceled`, `open`, or `abandoned` if the run closed first", '"completed"'
    ),
    "attempt": Column("last attempt", "2"),
    "retries": Column("attempts after the first", "1", "attempts"),
    "scheduled_us": Column("time at which it was scheduled", "1769860812345678", _TIME),
    "started_us": Column("start of the last attempt", "1769860813345678", _TIME),
    "closed_us": Column("end of the last attempt", "1769860814345678", _TIME),
    "queue_wait_s": Column("wait for a worker; null after retries, because no event has that time", "0.03", "s"),
    "run_s": Column("time from start to end of the last attempt", "1.0", "s"),
    "total_s": Column("time from scheduling to the end, with all retries", "2.0", "s"),
    "timeout_type": Column("type of the timeout that ended it", '"START_TO_CLOSE"'),
    "retried_failure_type": Column("type of the failure of the attempt before the last", '"ConnectionError"'),
    "retried_failure_message": Column("message of that failure, at most 500 characters", '"connection refused"'),
    "build_id": Column("build id of the worker of the last attempt", '"1.4.2"'),
}


def _percentiles(name: str, meaning: str) -> dict[str, Column]:
    return {f"{name}_p{share}": Column(f"percentile {share} of {meaning}", "1.5", "s") for share in (50, 95, 99)}


_COUNTS = {
    **_TYPE,
    "runs": Column("runs of this type in this task queue", "1200", "runs"),
    "scheduled": Column("activities of this type in this task queue", "3600", "activities"),
    **{
        status: Column(f"runs or activities that are {text}", "12")
        for status, text in {
            "open": "open",
            "completed": "completed",
            "failed": "failed",
            "timed_out": "timed out",
            "canceled": "canceled",
            "terminated": "terminated",
            "continued_as_new": "continued as new",
            "abandoned": "abandoned, because their run closed first",
        }.items()
    },
    "activities": Column("activities that the runs scheduled", "3600", "activities"),
    "signals": Column("signals that the runs received", "40", "signals"),
    "workflow_tasks_failed": Column("failed workflow tasks of the runs", "2", "tasks"),
    "events_max": Column("events of the longest history", "410", "events"),
    "retried": Column("activities that were retried", "31", "activities"),
    "retries": Column("attempts after the first, summed over all activities", "44", "attempts"),
    "failure_types": Column("the most frequent failure types", '[{"failure_type": "Declined", "count": 9}]'),
    **_percentiles("duration_s", "the runs' durations"),
    **_percentiles("first_task_wait_s", "the waits of first workflow tasks"),
    **_percentiles("queue_wait_s", "the waits for a worker"),
    **_percentiles("run_s", "the last attempts' times"),
    **_percentiles("total_s", "the times with all retries"),
}

_TASKS = {
    "task_list": Column("name of the task queue; for tasks on a sticky queue, the worker's normal one", '"packing"'),
    "task_type": Column("1 for workflow tasks, 2 for activities", "2"),
    "type": Column("type of the workflow or of the activity", '"charge_card"'),
    "build_id": Column("build id of the worker that got the tasks", '"1.4.2"'),
    "tasks": Column("tasks that were scheduled in the window and started, without retried activities", "120", "tasks"),
    "added": Column("workflow tasks and activities that were scheduled in the window", "120", "tasks"),
    "started": Column("workflow tasks and activities whose last attempt started in the window", "118", "tasks"),
    "retries": Column("attempts of these before the last", "4", "attempts"),
    **{
        f"wait_s_p{share}": Column(f"percentile {share} of the waits from scheduling to start", "1.5", "s")
        for share in (50, 95, 99)
    },
}
_FAILURES = {
    "source": Column(
        "`workflow`, `activity`, or `activity_retry` for the failure of the attempt before an activity's last",
        '"activity"',
    ),
    "type": Column("type of the workflow or of the activity", '"charge_card"'),
    "failure_type": _FAILURE["failure_type"],
    "message_class": Column(
        "message with `<id>`, `<text>` and `<n>` for ids, quoted texts and numbers", '"card <n> was declined"'
    ),
    "count": Column("number of failures", "9"),
    "first_us": Column("time of the first failure", "1769860812345678", _TIME),
    "last_us": Column("time of the last failure", "1769860912345678", _TIME),
    "workflow_ids": Column("up to five ids of workflows that failed so, the first in order", '["order-1042"]'),
}
_ACTIONS = {
    "day": Column("day of the events", '"2026-01-31"'),
    "kind": Column(
        "`workflow_start`, `workflow_reset`, `schedule`, `child_workflow`, `activity`, `marker`, `timer`, `signal`, "
        "`update`, `search_attributes`, `options_update` or `nexus_operation`",
        '"activity"',
    ),
    "actions": Column("actions that Temporal Cloud would bill at least", "3600", "actions"),
}

TABLES = (
    Table("workflows", "histories", "a run of a workflow", WORKFLOWS, _RUN),
    Table("activities", "histories", "a scheduled activity", ACTIVITIES, _ACTIVITY),
    Table("workflow_types", "histories", "a workflow type in a task queue", WORKFLOW_TYPES, _COUNTS),
    Table("activity_types", "histories", "an activity type in a task queue", ACTIVITY_TYPES, _COUNTS),
    Table("waits", "histories", "a window of a type and build id in a task queue", WAITS, _TASKS),
    Table("history_traffic", "histories", "a window of a task queue, by the events", HISTORY_TRAFFIC, _TASKS),
    Table("failures", "histories", "a failure type and a class of messages", FAILURES, _FAILURES),
    Table("actions", "histories", "a kind of billable action on a day", ACTIONS, _ACTIONS),
)
