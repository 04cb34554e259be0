"""Nexus operations that are backed by updates of workflows."""

from typing import Any

from nexusrpc.handler import service_handler
from temporalio import nexus, workflow
from temporalio.client import WorkflowUpdateStage
from temporalio.exceptions import ApplicationError

from tests.sdk.programs.nexus import Calls, endpoint_of
from tests.sdk.programs.nexus_backing import calling
from tests.sdk.programs.nexus_executions import CLOSED, STARTED, note_operation, poll_operation, start_operation
from tests.sdk.stage import Handle, Stage, program


@workflow.defn
class Updatable:
    """Accepts updates until the signal `end`."""

    def __init__(self) -> None:
        self._released = False
        self._ended = False

    @workflow.signal
    def release(self) -> None:
        self._released = True

    @workflow.signal
    def end(self) -> None:
        self._ended = True

    @workflow.update
    async def change(self, how: str) -> str:
        await workflow.wait_condition(lambda: self._released)
        if how == "fail":
            raise ApplicationError("changed badly", {"a": 1}, type="Bad", non_retryable=True)
        return f"changed {how}"

    @change.validator
    def check(self, how: str) -> None:
        if how == "reject":
            raise ApplicationError("not this one", type="Rejected")

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self._ended)
        return "ended"


@service_handler(name="Updating")
class Updating:
    """An operation that an update carries out."""

    @nexus.temporal_operation
    async def update(
        self, _context: nexus.TemporalStartOperationContext, client: nexus.TemporalNexusClient, given: list[str]
    ) -> nexus.TemporalOperationResult[str]:
        workflow_id, update_id, how = given
        return await client.start_workflow_update(
            workflow_id,
            "change",
            how,
            update_id=update_id,
            wait_for_stage=WorkflowUpdateStage.ACCEPTED,
            result_type=str,
        )


HANDLERS: list[Any] = [Updating()]


async def _updatable(stage: Stage) -> Handle:
    handle = await stage.start(Updatable, suffix="updated")
    await stage.idle(handle)
    return handle


async def _update(stage: Stage, how: str) -> Any:
    updated = await _updatable(stage)
    caller = await calling(stage, "update", [updated.id, "the-update", how], service="Updating")
    await stage.until(caller, "NEXUS_OPERATION_STARTED")
    await stage.idle(caller)
    stage.note("callbacks", list((await stage.describe(updated.id)).callbacks))
    await updated.signal("release")
    outcome = await stage.outcome(caller.result())
    await _update_reported(stage)
    stage.note("callbacks", list((await stage.describe(updated.id)).callbacks))
    await stage.signal_and_end(updated, "end")
    return outcome


async def _update_reported(stage: Stage) -> None:
    async def there() -> bool:
        callbacks = (await stage.describe(stage.id("updated"))).callbacks
        return bool(callbacks) and all(each.HasField("last_attempt_complete_time") for each in callbacks)

    await stage.until_true(there, "the callback of the update")


@program
async def nexus_update(stage: Stage) -> Any:
    return await _update(stage, "well")


@program
async def nexus_update_fails(stage: Stage) -> Any:
    return await _update(stage, "fail")


@program
async def nexus_update_rejected(stage: Stage) -> Any:
    updated = await _updatable(stage)
    caller = await calling(stage, "update", [updated.id, "the-update", "reject"], service="Updating")
    outcome = await stage.outcome(caller.result())
    await stage.signal_and_end(updated, "end")
    return outcome


@program
async def nexus_update_of_a_workflow_that_ends(stage: Stage) -> Any:
    updated = await _updatable(stage)
    caller = await calling(stage, "update", [updated.id, "the-update", "well"], service="Updating")
    await stage.until(caller, "NEXUS_OPERATION_STARTED")
    await stage.idle(caller)
    await stage.signal_and_end(updated, "end")
    outcome = await stage.outcome(caller.result())
    await _update_reported(stage)
    return outcome


@program
async def nexus_alone_update(stage: Stage) -> Any:
    updated = await _updatable(stage)
    await start_operation(stage, "update", [updated.id, "the-update", "well"], service="Updating")
    stage.note("started", await poll_operation(stage, STARTED))
    await updated.signal("release")
    answer = await poll_operation(stage, CLOSED)
    await _update_reported(stage)
    await note_operation(stage, "at its end")
    await stage.signal_and_end(updated, "end")
    return answer


@program
async def nexus_update_joined(stage: Stage) -> Any:
    """Two operations are backed by one update."""
    updated = await _updatable(stage)
    first = await calling(stage, "update", [updated.id, "the-update", "well"], service="Updating")
    await stage.until(first, "NEXUS_OPERATION_STARTED")
    options = {"service": "Updating"}
    second = await stage.start(
        Calls, await endpoint_of(stage), "update", [updated.id, "the-update", "well"], options, suffix="second"
    )
    await stage.until(second, "NEXUS_OPERATION_STARTED")
    await stage.idle(first)
    await stage.idle(second)
    # Sorted: the reference server lists them in any order.
    callbacks = list((await stage.describe(updated.id)).callbacks)
    stage.note("callbacks", sorted(callbacks, key=lambda one: one.callback.links[0].workflow_event.workflow_id))
    await updated.signal("release")
    outcomes = [await stage.outcome(first.result()), await stage.outcome(second.result())]
    await _update_reported(stage)
    await stage.signal_and_end(updated, "end")
    return outcomes
