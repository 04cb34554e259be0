"""The effect of each event on a run (`apply`), and the steps of a run that write events (`write_...`)."""

from fairlead.history.events.activity_attempts import end_activity_backoff
from fairlead.history.events.apply import EFFECTS, apply, rebuild
from fairlead.history.events.transaction import Batch, Transaction, needs_start_event
from fairlead.history.events.write_activities import (
    Heartbeat,
    cancel_activity,
    complete_activity,
    fail_activity,
    find_activity,
    heartbeat_activity,
    pause_first_attempt,
    start_activity,
    time_out_activity,
)
from fairlead.history.events.write_activity_controls import (
    change_activity_options,
    pause_activity,
    reset_activity,
    unpause_activity,
)
from fairlead.history.events.write_children import child_closed, child_start_failed, child_started
from fairlead.history.events.write_close import terminate, time_out_run
from fairlead.history.events.write_externals import external_cancel_requested, external_signaled
from fairlead.history.events.write_options import Options, pause_run, unpause_run, update_options
from fairlead.history.events.write_signals import request_cancel, signal
from fairlead.history.events.write_start import (
    Continuation,
    StartRun,
    end_backoff,
    schedule_first_workflow_task,
    start_workflow,
)
from fairlead.history.events.write_timers import fire_timer
from fairlead.history.events.write_updates import admit_update
from fairlead.history.events.write_workflow_tasks import (
    fail_workflow_task,
    schedule_workflow_task,
    start_workflow_task,
    time_out_workflow_task,
    wake,
)

__all__ = [
    "EFFECTS",
    "Batch",
    "Continuation",
    "Heartbeat",
    "Options",
    "StartRun",
    "Transaction",
    "admit_update",
    "apply",
    "cancel_activity",
    "change_activity_options",
    "child_closed",
    "child_start_failed",
    "child_started",
    "complete_activity",
    "end_activity_backoff",
    "end_backoff",
    "external_cancel_requested",
    "external_signaled",
    "fail_activity",
    "fail_workflow_task",
    "find_activity",
    "fire_timer",
    "heartbeat_activity",
    "needs_start_event",
    "pause_activity",
    "pause_first_attempt",
    "pause_run",
    "rebuild",
    "request_cancel",
    "reset_activity",
    "schedule_first_workflow_task",
    "schedule_workflow_task",
    "signal",
    "start_activity",
    "start_workflow",
    "start_workflow_task",
    "terminate",
    "time_out_activity",
    "time_out_run",
    "time_out_workflow_task",
    "unpause_activity",
    "unpause_run",
    "update_options",
    "wake",
]
