"""One schedule: when it runs, in words, its next and recent actions, and what it missed."""

from typing import Final

from temporalio.api.enums.v1 import ScheduleOverlapPolicy, WorkflowExecutionStatus
from temporalio.api.schedule.v1 import ScheduleActionResult, ScheduleInfo
from temporalio.api.workflowservice.v1 import DescribeScheduleRequest, DescribeScheduleResponse

from fairlead.console import text as shown
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Cell, Grid, Grids, link, moment, number, text
from fairlead.console.schedule_words import spec_words
from fairlead.console.view import Parameters, View
from fairlead.console.views.schedules import ACTIONS
from fairlead.http import HttpFault
from fairlead.rpc import Code, RpcStatus


class Asked(Parameters, frozen=True, kw_only=True):
    """`id` is the schedule."""

    id: str = ""


async def load(context: Context, asked: Asked) -> Grids:
    """Read the schedule; a deleted one has a sentence, so that the page can say that it was deleted."""
    if not asked.id:
        raise HttpFault(400, "the address names no schedule: add id=...")
    request = DescribeScheduleRequest(namespace=asked.namespace, schedule_id=asked.id)
    try:
        found = await context.call("DescribeSchedule", request, DescribeScheduleResponse)
    except RpcStatus as failure:
        if failure.code is not Code.NOT_FOUND:
            raise
        return Grids(grids=[], sentence=f"This namespace has no schedule {asked.id!r}.", kind="problem")
    state, info = found.schedule.state, found.info
    sentence = f"{asked.id} is {'paused' if state.paused else 'active'}" + (f": {state.notes}" if state.notes else ".")
    if info.invalid_schedule_error:
        sentence = f"{asked.id} is invalid: {info.invalid_schedule_error}"
    return Grids(
        grids=[_times(found), _upcoming(info), _recent(info), _facts(found)],
        heading=f"Schedule {asked.id}",
        sentence=sentence,
        kind="problem" if info.invalid_schedule_error else "notice" if state.paused else "calm",
        page_actions=["resume" if state.paused else "pause", "trigger", "delete"],
    )


def _times(found: DescribeScheduleResponse) -> Grid:
    return Grid(
        id="spec",
        title="Runs",
        columns=["When"],
        rows=[[text(line)] for line in spec_words(found.schedule.spec)],
    )


def _upcoming(info: ScheduleInfo) -> Grid:
    return Grid(
        id="upcoming",
        title="Next",
        columns=["At"],
        rows=[[moment(shown.seconds_of(one))] for one in info.future_action_times],
        empty="It does not run again.",
        note="These are the times of its specification: a paused schedule leaves them out.",
    )


def _recent(info: ScheduleInfo) -> Grid:
    return Grid(
        id="recent",
        title="Recent",
        columns=["Due", "Started", "Late", "Workflow", "Status"],
        rows=[_action(one) for one in reversed(info.recent_actions)],
        empty="It has not run yet.",
    )


def _action(one: ScheduleActionResult) -> list[Cell]:
    due_s, started_s = shown.seconds_of(one.schedule_time), shown.seconds_of(one.actual_time)
    late_s = None if due_s is None or started_s is None else max(started_s - due_s, 0.0)
    run = one.start_workflow_result
    status = WorkflowExecutionStatus.Name(one.start_workflow_status).removeprefix("WORKFLOW_EXECUTION_STATUS_")
    return [
        moment(due_s),
        moment(started_s),
        text(shown.duration(late_s)),
        link(run.workflow_id, "workflow", id=run.workflow_id, run=run.run_id),
        text("" if status == "UNSPECIFIED" else status.replace("_", " ").lower()),
    ]


def _facts(found: DescribeScheduleResponse) -> Grid:
    info, policies, state = found.info, found.schedule.policies, found.schedule.state
    action = found.schedule.action.start_workflow
    overlap = ScheduleOverlapPolicy.Name(policies.overlap_policy).removeprefix("SCHEDULE_OVERLAP_POLICY_")
    rows = [
        [text("Workflow type"), text(action.workflow_type.name)],
        [text("Task queue"), text(action.task_queue.name)],
        [text("Actions so far"), number(info.action_count)],
        [text("Missed: the server was down for longer than the catch-up window"), number(info.missed_catchup_window)],
        [text("Skipped: the workflow before was still running"), number(info.overlap_skipped)],
        [text("Dropped: too many were waiting"), number(info.buffer_dropped)],
        [text("Waiting"), number(info.buffer_size)],
        [text("If the workflow before still runs"), text(overlap.replace("_", " ").lower())],
        [text("Catch-up window"), text(shown.duration(policies.catchup_window))],
        [text("Created"), moment(shown.seconds_of(info.create_time))],
        [text("Changed"), moment(shown.seconds_of(info.update_time))],
    ]
    if state.limited_actions:
        rows.append([text("Actions that are left"), number(state.remaining_actions)])
    return Grid(id="facts", title="Counts and policies", columns=["Name", "Value"], rows=rows)


VIEW: Final = View(
    path="schedule",
    title="Schedule",
    parameters=Asked,
    load=load,
    template=TEMPLATE,
    actions=ACTIONS,
)
