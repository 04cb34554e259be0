"""Schedules of a namespace: when each ran, when it runs next, and its actions."""

import base64
from typing import Any, Final

from temporalio.api.schedule.v1 import SchedulePatch, TriggerImmediatelyRequest
from temporalio.api.workflowservice.v1 import (
    DeleteScheduleRequest,
    DeleteScheduleResponse,
    ListSchedulesRequest,
    ListSchedulesResponse,
    PatchScheduleRequest,
    PatchScheduleResponse,
)

from fairlead.console import text as shown
from fairlead.console.context import Context
from fairlead.console.grid import TEMPLATE, Grid, Grids, button, link, moment, text
from fairlead.console.view import Action, Form, Parameters, View, workflow_method
from fairlead.http import HttpFault

ROWS: Final = 100


class Asked(Parameters, frozen=True, kw_only=True):
    """`after` is the token of a page."""

    after: str = ""


async def load(context: Context, asked: Asked) -> Grids:
    """Read a page of schedules."""
    try:
        token = base64.urlsafe_b64decode(asked.after)
    except ValueError:
        raise HttpFault(400, "the parameter `after` is not a token of a page: begin with the first page") from None
    request = ListSchedulesRequest(namespace=asked.namespace, maximum_page_size=ROWS, next_page_token=token)
    found = await context.call("ListSchedules", request, ListSchedulesResponse)
    rows = []
    for one in found.schedules:
        info = one.info
        last = info.recent_actions[-1] if info.recent_actions else None
        next_s = shown.seconds_of(info.future_action_times[0]) if info.future_action_times else None
        run = None if last is None else last.start_workflow_result
        rows.append(
            [
                link(one.schedule_id, "schedule", id=one.schedule_id),
                text("paused", "warn") if info.paused else text("active", "good"),
                text(info.workflow_type.name),
                moment(None if last is None else shown.seconds_of(last.actual_time)),
                text("") if run is None else link(run.workflow_id, "workflow", id=run.workflow_id, run=run.run_id),
                moment(next_s),
                text(info.notes),
                button("resume" if info.paused else "pause", schedule=one.schedule_id),
                button("trigger", schedule=one.schedule_id),
                button("delete", schedule=one.schedule_id),
            ]
        )
    columns = ["Schedule", "State", "Workflow type", "Last run", "Workflow", "Next run", "Notes", "", "", ""]
    grid = Grid(
        id="schedules",
        title="Schedules",
        columns=columns,
        rows=rows,
        empty="This namespace has no schedule.",
        hint="Create one with an SDK, or with: temporal schedule create",
    )
    return Grids(grids=[grid], next=base64.urlsafe_b64encode(found.next_page_token).decode())


def _schedule(asked: Any, form: Form) -> str:
    """The schedule of the row, or of the page of one schedule."""
    return form.get("schedule", "") or str(getattr(asked, "id", ""))


async def _patch(context: Context, asked: Any, form: Form, patch: SchedulePatch) -> None:
    request = PatchScheduleRequest(
        namespace=asked.namespace, schedule_id=_schedule(asked, form), patch=patch, identity=context.identity()
    )
    await context.call("PatchSchedule", request, PatchScheduleResponse)


async def _pause(context: Context, asked: Any, form: Form) -> str:
    await _patch(context, asked, form, SchedulePatch(pause=form.get("reason", "") or "paused in the console"))
    return f"The schedule {_schedule(asked, form)} is paused."


async def _resume(context: Context, asked: Any, form: Form) -> str:
    await _patch(context, asked, form, SchedulePatch(unpause=form.get("reason", "") or "resumed in the console"))
    return f"The schedule {_schedule(asked, form)} is active."


async def _trigger(context: Context, asked: Any, form: Form) -> str:
    await _patch(context, asked, form, SchedulePatch(trigger_immediately=TriggerImmediatelyRequest()))
    return f"The schedule {_schedule(asked, form)} runs now."


async def _delete(context: Context, asked: Any, form: Form) -> str:
    request = DeleteScheduleRequest(
        namespace=asked.namespace, schedule_id=_schedule(asked, form), identity=context.identity()
    )
    await context.call("DeleteSchedule", request, DeleteScheduleResponse)
    return f"The schedule {_schedule(asked, form)} is deleted."


_PATCH = workflow_method("PatchSchedule")

# Also those of the page of one schedule.
ACTIONS: Final = (
    Action(name="pause", label="Pause", access=_PATCH, act=_pause),
    Action(name="resume", label="Resume", access=_PATCH, act=_resume),
    Action(name="trigger", label="Run now", access=_PATCH, act=_trigger),
    Action(
        name="delete", label="Delete", access=workflow_method("DeleteSchedule"), act=_delete, word="delete",
        about="Workflows that it started go on.",
    ),
)  # fmt: skip

VIEW: Final = View(
    path="schedules",
    title="Schedules",
    nav="Schedules",
    access=workflow_method("ListSchedules"),
    key="s",
    parameters=Asked,
    load=load,
    template=TEMPLATE,
    actions=ACTIONS,
)
