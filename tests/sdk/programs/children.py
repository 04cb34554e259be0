"""Child workflows: how they end, how their parent's end affects them, and their options."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, ChildWorkflowError, WorkflowAlreadyStartedError

from tests.sdk.gates import hold_task
from tests.sdk.programs.starts import ALL_KINDS, Waits
from tests.sdk.stage import Stage, program

CHILD = "child"


@workflow.defn
class HeldChild:
    """Ends when the gate opens, which is after the parent has seen it start."""

    @workflow.run
    async def run(self, how: str) -> str:
        hold_task("child")
        if how == "fails":
            raise ApplicationError("a child's failure", "detail", type="Childish")
        if how == "continues":
            workflow.continue_as_new("ends")
        return how


def _child_options(given: dict[str, Any]) -> dict[str, Any]:
    """Convert the workflow's plain arguments to the SDK's child options."""
    options: dict[str, Any] = {
        key: timedelta(seconds=value) if "timeout" in key else value for key, value in given.items()
    }
    if attempts := options.pop("attempts", 0):
        options["retry_policy"] = RetryPolicy(initial_interval=timedelta(seconds=2), maximum_attempts=attempts)
    if cancellation := options.pop("cancellation", None):
        options["cancellation_type"] = workflow.ChildWorkflowCancellationType[cancellation]
    if "full" in options:
        options = {
            "memo": {"of": "child"}, "search_attributes": ALL_KINDS, "static_summary": "a child",
            "static_details": "its details", "priority": Priority(priority_key=1, fairness_key="f"),
            "run_timeout": timedelta(minutes=3), "execution_timeout": timedelta(minutes=4),
            "task_timeout": timedelta(seconds=9), "retry_policy": RetryPolicy(maximum_attempts=2),
            "id_reuse_policy": WorkflowIDReusePolicy.REJECT_DUPLICATE,
        }  # fmt: skip
    return options


@workflow.defn
class OneChild:
    """Starts a child workflow and then does what its arguments say."""

    def __init__(self) -> None:
        self._go = False
        self._end = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.signal
    def end(self) -> None:
        self._end = True

    @workflow.run
    async def run(self, kind: Any, args: list[Any], then: str, policy: int, options: dict[str, Any]) -> Any:
        me = workflow.info().workflow_id
        try:
            child = await workflow.start_child_workflow(
                kind, args=args, id=me.replace("/main", "/child"),
                parent_close_policy=workflow.ParentClosePolicy(policy), **_child_options(options),
            )  # fmt: skip
        except WorkflowAlreadyStartedError as error:
            return repr(error)
        if then == "end":
            return "left"
        await workflow.wait_condition(lambda: self._go)
        if then == "leave":
            return "left"
        if then == "continue":
            workflow.continue_as_new(args=["Waits", [], "end", policy, options])
        if then == "signal":
            await child.signal("say", "from the parent")
        if "cancel" in then:
            child.cancel()
        try:
            return await child
        except asyncio.CancelledError:
            return "canceled"
        except ChildWorkflowError as error:
            if then == "cancel and stay":
                await workflow.wait_condition(lambda: self._end)
            return f"{error} by {error.cause!r} {error.retry_state}"


@workflow.defn
class Grandparent:
    @workflow.run
    async def run(self) -> str:
        me = workflow.info().workflow_id
        return await workflow.execute_child_workflow(Parenting.run, id=me.replace("/main", "/parent"))


@workflow.defn
class Parenting:
    @workflow.run
    async def run(self) -> str:
        hold_task("parent")
        me = workflow.info().workflow_id
        return await workflow.execute_child_workflow(HeldChild.run, "ends", id=me.replace("/parent", "/child"))


async def _parent(
    stage: Stage, kind: str, *args: Any, then: str = "wait", policy: int = 1, go: bool = True, **options: Any
) -> Any:
    """Start a parent and wait until its history shows that the child has started."""
    parent = await stage.start(OneChild.run, kind, list(args), then, policy, options)
    await stage.until(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    await stage.idle(parent)
    if go:
        await stage.signal(parent, "go")
    return parent


@program
async def child_completes(stage: Stage) -> Any:
    parent = await _parent(stage, "HeldChild", "ends")
    stage.note("with a child", await stage.describe(stage.id()))
    stage.open("child", CHILD)
    return await stage.outcome(parent.result())


@program
async def child_with_everything(stage: Stage) -> Any:
    parent = await _parent(stage, "HeldChild", "ends", full=True)
    stage.open("child", CHILD)
    return await stage.outcome(parent.result())


@program
async def child_fails(stage: Stage) -> Any:
    parent = await _parent(stage, "HeldChild", "fails")
    stage.open("child", CHILD)
    return await stage.outcome(parent.result())


@program
async def child_continues_as_new(stage: Stage) -> Any:
    parent = await _parent(stage, "HeldChild", "continues")
    stage.open("child", CHILD)
    return await stage.outcome(parent.result())


@program
async def child_retried(stage: Stage) -> Any:
    parent = await _parent(stage, "Fails", 2, attempts=2)
    return await stage.outcome(parent.result())


@program
async def child_signaled_by_its_parent(stage: Stage) -> Any:
    parent = await stage.start(OneChild.run, "Waits", [], "signal", 1, {})
    await stage.until(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    await stage.idle(parent)
    child = stage.client.get_workflow_handle(stage.id(CHILD))
    await stage.idle(child)
    await parent.signal("go")
    await stage.until(parent, "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED")
    await stage.idle(parent)
    await stage.idle(child)
    await child.signal("say", "end")
    return await stage.outcome(parent.result())


async def _canceled_child(stage: Stage, cancellation: str, then: str = "cancel", policy: int = 1) -> Any:
    parent = await stage.start(OneChild.run, "CleansUpSlowly", [], then, policy, {"cancellation": cancellation})
    await stage.until(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    await stage.idle(parent)
    child = stage.client.get_workflow_handle(stage.id(CHILD))
    await stage.idle(child)
    await parent.signal("go")
    return parent, child


@program
async def child_canceled_and_waited_for(stage: Stage) -> Any:
    parent, child = await _canceled_child(stage, "WAIT_CANCELLATION_COMPLETED")
    await stage.until(parent, "EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    await stage.idle(parent)
    await stage.idle(child)
    await child.signal("end")
    return await stage.outcome(parent.result())


@program
async def child_cancel_requested_and_waited_for(stage: Stage) -> Any:
    parent, child = await _canceled_child(stage, "WAIT_CANCELLATION_REQUESTED")
    await stage.until(parent, "EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    await stage.idle(parent)
    await stage.idle(child)
    await child.signal("end")
    return await stage.outcome(parent.result())


@program
async def child_cancel_tried(stage: Stage) -> Any:
    parent, child = await _canceled_child(stage, "TRY_CANCEL", "cancel and stay", policy=2)
    await stage.until(parent, "EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    await stage.idle(parent)
    await stage.idle(child)
    result = await stage.signal_and_end(parent, "end")
    await child.signal("end")
    await stage.closed(child.id)
    return result


@program
async def child_cancel_lost_with_the_end(stage: Stage) -> Any:
    """The parent requests the cancellation and completes in one task: the request has no effect."""
    parent, child = await _canceled_child(stage, "TRY_CANCEL", policy=2)
    result = await stage.outcome(parent.result())
    await asyncio.sleep(0.3)
    await child.terminate()
    return result


@program
async def child_cancel_abandoned(stage: Stage) -> Any:
    parent, child = await _canceled_child(stage, "ABANDON", policy=2)
    result = await stage.outcome(parent.result())
    await child.terminate()
    return result


@program
async def child_terminated(stage: Stage) -> Any:
    parent = await _parent(stage, "Waits")
    child = stage.client.get_workflow_handle(stage.id(CHILD))
    await stage.idle(child)
    await child.terminate(reason="by a client")
    return await stage.outcome(parent.result())


@program
async def child_canceled_by_a_client(stage: Stage) -> Any:
    parent = await _parent(stage, "Waits")
    child = stage.client.get_workflow_handle(stage.id(CHILD))
    await stage.idle(child)
    await child.cancel()
    return await stage.outcome(parent.result())


@program
async def child_times_out(stage: Stage) -> Any:
    parent = await stage.start(OneChild.run, "Waits", [], "wait", 1, {"run_timeout": 2})
    await stage.until(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    await stage.idle(parent)
    await parent.signal("go")
    return await stage.outcome(parent.result())


@program
async def child_id_is_taken(stage: Stage) -> Any:
    child = await stage.start(Waits.run, suffix=CHILD)
    await stage.idle(child)
    result = await stage.run(OneChild.run, "Waits", [], "end", 1, {})
    await child.terminate()
    return result


async def _left(stage: Stage, policy: int) -> tuple[Any, Any]:
    parent = await _parent(stage, "Waits", policy=policy, go=False)
    child = stage.client.get_workflow_handle(stage.id(CHILD))
    await stage.idle(child)
    return parent, child


@program
async def parent_terminated_ends_the_child(stage: Stage) -> Any:
    parent, child = await _left(stage, 1)
    await parent.terminate(reason="the parent")
    await stage.closed(child.id)
    return await stage.outcome(child.result())


@program
async def parent_terminated_abandons_the_child(stage: Stage) -> Any:
    parent, child = await _left(stage, 2)
    await parent.terminate()
    return await stage.signal_and_end(child, "say", "end")


@program
async def parent_terminated_cancels_the_child(stage: Stage) -> Any:
    parent, child = await _left(stage, 3)
    await parent.terminate()
    return await stage.outcome(child.result())


@program
async def parent_completes_and_ends_the_child(stage: Stage) -> Any:
    parent = await _parent(stage, "HeldChild", "never", then="leave", go=False)
    await stage.reached("child", CHILD)
    result = await stage.signal_and_end(parent, "go")
    await stage.closed(stage.id(CHILD))
    stage.open("child", CHILD)
    return result


@program
async def parent_continues_as_new_with_an_abandoned_child(stage: Stage) -> Any:
    parent = await _parent(stage, "Waits", then="continue", policy=2, go=False)
    child = stage.client.get_workflow_handle(stage.id(CHILD))
    await stage.idle(child)
    await parent.signal("go")
    # The child id is already in use when the next run starts its child.
    result = await stage.outcome(parent.result())
    await child.terminate()
    return result


@program
async def parent_canceled_with_a_child(stage: Stage) -> Any:
    parent, child = await _left(stage, 1)
    await parent.cancel()
    result = await stage.outcome(parent.result())
    await stage.closed(child.id)
    return result


@program
async def grandchild(stage: Stage) -> Any:
    handle = await stage.start(Grandparent.run)
    await stage.until(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    await stage.idle(handle)
    stage.open("parent", "parent")
    parent = stage.client.get_workflow_handle(stage.id("parent"))
    await stage.until(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    await stage.idle(parent)
    stage.open("child", CHILD)
    return await stage.outcome(handle.result())
