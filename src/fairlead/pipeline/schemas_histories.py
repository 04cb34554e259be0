"""The tables of the `histories` job. Times are µs since the epoch, in UTC; durations are seconds."""

from pyspark.sql.types import ArrayType, BinaryType, DateType, StructType

from fairlead.pipeline.schemas import DOUBLE, INT, LONG, STRING, struct

_RUN = struct(cluster=STRING, namespace_id=STRING, workflow_id=STRING, run_id=STRING)

# Input of the kernel: the batches, sorted by tree and run.
TREE_KEY = ("cluster", "namespace_id", "workflow_id", "tree_id")
RECORDS = struct(
    **dict.fromkeys(TREE_KEY, STRING),
    run_id=STRING,
    first_event_id=LONG,
    last_event_id=LONG,
    version=LONG,
    item_ids=ArrayType(LONG),
    item_versions=ArrayType(LONG),
    task_id=LONG,
    status=INT,
    time_us=LONG,
    payload=BinaryType(),
)

_WORKFLOW = struct(
    workflow_type=STRING,
    task_list=STRING,
    status=STRING,  # running, paused, completed, failed, canceled, terminated, continued_as_new or timed_out
    attempt=INT,
    started_us=LONG,
    closed_us=LONG,
    duration_s=DOUBLE,
    first_task_wait_s=DOUBLE,  # from the first workflow task's scheduling to the first workflow task start
    events=LONG,
    signals=LONG,
    updates=LONG,
    timers=LONG,
    children=LONG,
    activities=LONG,
    workflow_tasks=LONG,
    workflow_tasks_failed=LONG,  # without the failure that a reset writes
    workflow_tasks_timed_out=LONG,
    first_run_id=STRING,
    continued_from_run_id=STRING,
    continued_as_run_id=STRING,
    reset_from_run_id=STRING,
    parent_workflow_id=STRING,
    parent_run_id=STRING,
    cron_schedule=STRING,
    failure_type=STRING,
    failure_message=STRING,
    build_id=STRING,  # of the worker that completed the last workflow task
)
_ACTIVITY = struct(
    activity_id=STRING,
    scheduled_event_id=LONG,
    activity_type=STRING,
    task_list=STRING,
    outcome=STRING,  # completed, failed, timed_out, canceled, open, or abandoned if the run closed first
    attempt=INT,
    retries=INT,
    scheduled_us=LONG,
    started_us=LONG,  # of the last attempt
    closed_us=LONG,
    queue_wait_s=DOUBLE,  # null after retries: no event has the time at which the last attempt was queued
    run_s=DOUBLE,  # of the last attempt
    total_s=DOUBLE,  # including all retries
    timeout_type=STRING,
    failure_type=STRING,
    failure_message=STRING,
    retried_failure_type=STRING,  # failure of the attempt before the last one
    retried_failure_message=STRING,
    build_id=STRING,  # of the worker of the last attempt
)
_WORKFLOW_TASK = struct(task_list=STRING, build_id=STRING, scheduled_us=LONG, started_us=LONG)
_ACTIONS = struct(day=INT, kind=STRING, actions=LONG)  # days since the epoch

WORKFLOWS = StructType([*_RUN.fields, *_WORKFLOW.fields])
ACTIVITIES = StructType([*_RUN.fields, *struct(workflow_type=STRING).fields, *_ACTIVITY.fields])
# Output of the kernel. If `problem` is set, the run could not be read, and its other columns are null.
FLATTENED = StructType(
    [
        *WORKFLOWS.fields,
        *struct(problem=STRING, last_us=LONG, activity_rows=ArrayType(_ACTIVITY)).fields,
        *struct(workflow_task_rows=ArrayType(_WORKFLOW_TASK), action_rows=ArrayType(_ACTIONS)).fields,
    ]
)

_FAILURE_TYPES = struct(failure_types=ArrayType(struct(failure_type=STRING, count=LONG)))


def _percentiles(*names: str) -> StructType:
    return struct(**{f"{name}_p{share}": DOUBLE for name in names for share in (50, 95, 99)})


WORKFLOW_TYPES = StructType(
    [
        *struct(cluster=STRING, namespace_id=STRING, workflow_type=STRING, task_list=STRING).fields,
        *struct(
            runs=LONG,
            open=LONG,
            completed=LONG,
            failed=LONG,
            timed_out=LONG,
            canceled=LONG,
            terminated=LONG,
            continued_as_new=LONG,
            activities=LONG,
            signals=LONG,
            workflow_tasks_failed=LONG,
            events_max=LONG,
        ).fields,
        *_percentiles("duration_s", "first_task_wait_s").fields,
        *_FAILURE_TYPES.fields,
    ]
)
ACTIVITY_TYPES = StructType(
    [
        *struct(cluster=STRING, namespace_id=STRING, activity_type=STRING, task_list=STRING).fields,
        *struct(
            scheduled=LONG,
            open=LONG,
            completed=LONG,
            failed=LONG,
            timed_out=LONG,
            canceled=LONG,
            abandoned=LONG,
            retried=LONG,  # activities that were retried
            retries=LONG,  # attempts after the first
        ).fields,
        *_percentiles("queue_wait_s", "run_s", "total_s").fields,
        *_FAILURE_TYPES.fields,
    ]
)

_TASK_KEY = struct(cluster=STRING, namespace_id=STRING, task_list=STRING, task_type=INT)
# Workflow tasks and activities of all runs, one row each; `tries` is the number of attempts that are known.
HISTORY_TASKS = StructType(
    [*_TASK_KEY.fields, *struct(type=STRING, build_id=STRING, scheduled_us=LONG, started_us=LONG, tries=LONG).fields]
)
WAITS = StructType(
    [
        *_TASK_KEY.fields,
        *struct(type=STRING, build_id=STRING, window_us=LONG, tasks=LONG).fields,
        *_percentiles("wait_s").fields,
    ]
)
HISTORY_TRAFFIC = StructType(
    [*_TASK_KEY.fields, *struct(window_us=LONG, added=LONG, started=LONG, retries=LONG).fields]
)
FAILURES = StructType(
    [
        *struct(cluster=STRING, namespace_id=STRING, source=STRING, type=STRING, failure_type=STRING).fields,
        *struct(message_class=STRING, count=LONG, first_us=LONG, last_us=LONG, workflow_ids=ArrayType(STRING)).fields,
    ]
)
ACTIONS = struct(cluster=STRING, namespace_id=STRING, day=DateType(), kind=STRING, actions=LONG)
