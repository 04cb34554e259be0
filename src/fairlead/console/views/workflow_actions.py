"""Actions on one workflow: signal, update, cancel, terminate, reset, pause, and those on its activities."""

import uuid
from typing import Any, Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    PauseActivityRequest,
    PauseActivityResponse,
    PauseWorkflowExecutionRequest,
    PauseWorkflowExecutionResponse,
    RequestCancelWorkflowExecutionRequest,
    RequestCancelWorkflowExecutionResponse,
    ResetActivityRequest,
    ResetActivityResponse,
    ResetWorkflowExecutionRequest,
    ResetWorkflowExecutionResponse,
    SignalWorkflowExecutionRequest,
    SignalWorkflowExecutionResponse,
    TerminateWorkflowExecutionRequest,
    TerminateWorkflowExecutionResponse,
    UnpauseActivityRequest,
    UnpauseActivityResponse,
    UnpauseWorkflowExecutionRequest,
    UnpauseWorkflowExecutionResponse,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.console.context import Context
from fairlead.console.payloads import parsed
from fairlead.console.view import Action, Field, FieldKind, Form, workflow_method
from fairlead.http import HttpFault

_INPUT: Final = Field(
    name="input",
    label="Input",
    kind=FieldKind.LONG_TEXT,
    hint='Arguments as JSON, one after another, such as "text" 5 {"a": 1}.',
)
_ACTIVITY: Final = Field(name="activity", label="Activity id", is_required=True)


def _execution(asked: Any) -> WorkflowExecution:
    return WorkflowExecution(workflow_id=asked.id, run_id=asked.run)


async def _signal(context: Context, asked: Any, form: Form) -> str:
    request = SignalWorkflowExecutionRequest(
        namespace=asked.namespace,
        workflow_execution=_execution(asked),
        signal_name=form["name"],
        input=parsed(form.get("input", "")),
        identity=context.identity(),
        request_id=str(uuid.uuid4()),
    )
    await context.call("SignalWorkflowExecution", request, SignalWorkflowExecutionResponse)
    return f"Signal {form['name']} was sent."


async def _update(context: Context, asked: Any, form: Form) -> str:
    stage = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
    request = UpdateWorkflowExecutionRequest(
        namespace=asked.namespace,
        workflow_execution=_execution(asked),
        wait_policy=WaitPolicy(lifecycle_stage=stage),
        request=Request(
            meta=Meta(update_id=str(uuid.uuid4()), identity=context.identity()),
            input=Input(name=form["name"], args=parsed(form.get("input", ""))),
        ),
    )
    answer = await context.call("UpdateWorkflowExecution", request, UpdateWorkflowExecutionResponse)
    if answer.outcome.HasField("failure"):
        raise HttpFault(400, f"the workflow rejected the update: {answer.outcome.failure.message}")
    return f"Update {form['name']} was accepted." if answer.stage >= stage else "The update waits for a worker."


async def _cancel(context: Context, asked: Any, form: Form) -> str:
    request = RequestCancelWorkflowExecutionRequest(
        namespace=asked.namespace,
        workflow_execution=_execution(asked),
        identity=context.identity(),
        request_id=str(uuid.uuid4()),
        reason=form["reason"],
    )
    await context.call("RequestCancelWorkflowExecution", request, RequestCancelWorkflowExecutionResponse)
    return "The cancellation was requested."


async def _terminate(context: Context, asked: Any, form: Form) -> str:
    request = TerminateWorkflowExecutionRequest(
        namespace=asked.namespace,
        workflow_execution=_execution(asked),
        reason=form["reason"],
        identity=context.identity(),
    )
    await context.call("TerminateWorkflowExecution", request, TerminateWorkflowExecutionResponse)
    return "The workflow was terminated."


async def _reset(context: Context, asked: Any, form: Form) -> str:
    event = form.get("event", "").strip()
    if not event.isdecimal() or len(event) > 9:
        raise HttpFault(400, f"{event!r} is not the number of an event")
    request = ResetWorkflowExecutionRequest(
        namespace=asked.namespace,
        workflow_execution=_execution(asked),
        reason=form["reason"],
        workflow_task_finish_event_id=int(event),
        request_id=str(uuid.uuid4()),
        identity=context.identity(),
    )
    answer = await context.call("ResetWorkflowExecution", request, ResetWorkflowExecutionResponse)
    return f"The workflow was reset. Its new run is {answer.run_id}."


async def _pause(context: Context, asked: Any, form: Form) -> str:
    request = PauseWorkflowExecutionRequest(
        namespace=asked.namespace,
        workflow_id=asked.id,
        run_id=asked.run,
        identity=context.identity(),
        reason=form["reason"],
        request_id=str(uuid.uuid4()),
    )
    await context.call("PauseWorkflowExecution", request, PauseWorkflowExecutionResponse)
    return "The workflow is paused."


async def _unpause(context: Context, asked: Any, form: Form) -> str:
    request = UnpauseWorkflowExecutionRequest(
        namespace=asked.namespace,
        workflow_id=asked.id,
        run_id=asked.run,
        identity=context.identity(),
        reason=form["reason"],
        request_id=str(uuid.uuid4()),
    )
    await context.call("UnpauseWorkflowExecution", request, UnpauseWorkflowExecutionResponse)
    return "The workflow continues."


async def _retry_activity(context: Context, asked: Any, form: Form) -> str:
    request = ResetActivityRequest(
        namespace=asked.namespace, execution=_execution(asked), identity=context.identity(), id=form["activity"]
    )
    await context.call("ResetActivity", request, ResetActivityResponse)
    return f"Activity {form['activity']} begins again with its first attempt."


async def _pause_activity(context: Context, asked: Any, form: Form) -> str:
    request = PauseActivityRequest(
        namespace=asked.namespace,
        execution=_execution(asked),
        identity=context.identity(),
        id=form["activity"],
        reason=form["reason"],
    )
    await context.call("PauseActivity", request, PauseActivityResponse)
    return f"Activity {form['activity']} is paused: it is not tried again until it is unpaused."


async def _unpause_activity(context: Context, asked: Any, form: Form) -> str:
    request = UnpauseActivityRequest(
        namespace=asked.namespace, execution=_execution(asked), identity=context.identity(), id=form["activity"]
    )
    await context.call("UnpauseActivity", request, UnpauseActivityResponse)
    return f"Activity {form['activity']} goes on."


def _is_open(data: Any) -> bool:
    return bool(data.is_open)


def _is_running(data: Any) -> bool:
    return data.is_open and data.can_pause and not data.pause_reason


def _is_paused(data: Any) -> bool:
    return data.is_open and bool(data.pause_reason)


ACTIONS: Final = (
    Action(
        name="signal",
        label="Signal",
        access=workflow_method("SignalWorkflowExecution"),
        act=_signal,
        fields=(Field(name="name", label="Name of the signal", is_required=True), _INPUT),
        applies=_is_open,
    ),
    Action(
        name="update",
        label="Update",
        access=workflow_method("UpdateWorkflowExecution"),
        act=_update,
        fields=(Field(name="name", label="Name of the update", is_required=True), _INPUT),
        about="Waits until the workflow has accepted the update: a worker must be running.",
        applies=_is_open,
    ),
    Action(
        name="pause",
        label="Pause",
        access=workflow_method("PauseWorkflowExecution"),
        act=_pause,
        about="No more workflow tasks or activities are given to workers.",
        applies=_is_running,
    ),
    Action(
        name="unpause",
        label="Unpause",
        access=workflow_method("UnpauseWorkflowExecution"),
        act=_unpause,
        applies=_is_paused,
    ),
    Action(
        name="cancel",
        label="Cancel",
        access=workflow_method("RequestCancelWorkflowExecution"),
        act=_cancel,
        about="The workflow gets a cancellation request, and may clean up.",
        applies=_is_open,
    ),
    Action(
        name="reset",
        label="Reset",
        access=workflow_method("ResetWorkflowExecution"),
        act=_reset,
        fields=(
            Field(
                name="event",
                label="Event",
                is_required=True,
                hint="Number of a WorkflowTaskCompleted, Failed, TimedOut or Started event; the new run starts there. "
                "These events have a button of their own in the list of events.",
            ),
        ),
        about="A new run gets the events before this one. This run is terminated.",
        word="reset",
    ),
    Action(
        name="terminate",
        label="Terminate",
        access=workflow_method("TerminateWorkflowExecution"),
        act=_terminate,
        about="The run ends at once; the workflow can't clean up.",
        word="terminate",
        applies=_is_open,
    ),
    Action(
        name="activity-retry",
        label="Retry now",
        access=workflow_method("ResetActivity"),
        act=_retry_activity,
        fields=(_ACTIVITY,),
        applies=_is_open,
    ),
    Action(
        name="activity-pause",
        label="Pause",
        access=workflow_method("PauseActivity"),
        act=_pause_activity,
        fields=(_ACTIVITY,),
        applies=_is_open,
    ),
    Action(
        name="activity-unpause",
        label="Unpause",
        access=workflow_method("UnpauseActivity"),
        act=_unpause_activity,
        fields=(_ACTIVITY,),
        applies=_is_open,
    ),
)
