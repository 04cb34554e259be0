"""Resets: to the first and the last workflow task, to an event, with signals and updates applied again or not."""

from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import ResetReapplyExcludeType, ResetReapplyType

from tests.history.reference_programs import SOON, echo
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import Handle, Stage, program


@workflow.defn
class ManySteps:
    """Runs an activity, then takes signals and updates until a signal ends it."""

    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.signal
    def say(self, word: str) -> None:
        self._words.append(word)

    @workflow.update
    async def add(self, word: str) -> int:
        self._words.append(word)
        return len(self._words)

    @workflow.run
    async def run(self) -> list[str]:
        self._words.append(await workflow.execute_activity(echo, "first", start_to_close_timeout=SOON))
        await workflow.wait_condition(lambda: "end" in self._words)
        return self._words


async def _two_signals(stage: Stage) -> Handle:
    """Events 1-4 start it, 5 is a signal with task 6-8, 9 a signal with task 10-12, 13 completes it."""
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    await stage.signal(handle, "say", "one")
    await handle.signal("say", "end")
    await handle.result()
    return handle


async def _result(stage: Stage, handle: Handle, run_id: str) -> Any:
    return await stage.outcome(stage.client.get_workflow_handle(handle.id, run_id=run_id).result())


@program
async def reset_to_the_first_task(stage: Stage) -> Any:
    handle = await _two_signals(stage)
    return await _result(stage, handle, await stage.reset(handle, 4))


@program
async def reset_to_the_last_task(stage: Stage) -> Any:
    handle = await _two_signals(stage)
    return await _result(stage, handle, await stage.reset(handle, 12))


@program
async def reset_twice(stage: Stage) -> Any:
    handle = await _two_signals(stage)
    await _result(stage, handle, await stage.reset(handle, 8))
    return await _result(stage, handle, await stage.reset(handle, 4))


@program
async def reset_without_signals(stage: Stage) -> Any:
    handle = await _two_signals(stage)
    run_id = await stage.reset(
        handle, 4, reset_reapply_exclude_types=[ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL]
    )
    again = stage.client.get_workflow_handle(handle.id, run_id=run_id)
    await stage.idle(again)
    return await stage.signal_and_end(again, "say", "end")


@program
async def reset_with_nothing_applied_again(stage: Stage) -> Any:
    handle = await _two_signals(stage)
    run_id = await stage.reset(handle, 4, reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_NONE)
    again = stage.client.get_workflow_handle(handle.id, run_id=run_id)
    await stage.idle(again)
    return await stage.signal_and_end(again, "say", "end")


async def _updated(stage: Stage) -> Handle:
    handle = await stage.start(ManySteps.run)
    await stage.until(handle, "ACTIVITY_TASK_COMPLETED")
    await stage.idle(handle)
    stage.note("update", await handle.execute_update("add", "updated", id="update-1"))
    await stage.idle(handle)
    return handle


@program
async def reset_of_a_running_one_with_an_update(stage: Stage) -> Any:
    handle = await _updated(stage)
    run_id = await stage.reset(handle, 4)
    again = stage.client.get_workflow_handle(handle.id, run_id=run_id)
    await stage.until(again, "ACTIVITY_TASK_COMPLETED")
    await stage.idle(again)
    return await stage.signal_and_end(again, "say", "end")


@program
async def reset_without_updates(stage: Stage) -> Any:
    handle = await _updated(stage)
    exclude = [ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE]
    run_id = await stage.reset(handle, 4, reset_reapply_exclude_types=exclude)
    again = stage.client.get_workflow_handle(handle.id, run_id=run_id)
    await stage.until(again, "ACTIVITY_TASK_COMPLETED")
    await stage.idle(again)
    return await stage.signal_and_end(again, "say", "end")


@program
async def reset_after_the_activity(stage: Stage) -> Any:
    handle = await _updated(stage)
    run_id = await stage.reset(handle, 10)
    again = stage.client.get_workflow_handle(handle.id, run_id=run_id)
    await stage.idle(again)
    return await stage.signal_and_end(again, "say", "end")


@program
async def reset_of_a_terminated_one(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    await handle.terminate(reason="too soon")
    run_id = await stage.reset(handle, 4)
    again = stage.client.get_workflow_handle(handle.id, run_id=run_id)
    await stage.idle(again)
    return await stage.signal_and_end(again, "say", "end")


@program
async def reset_refused(stage: Stage) -> None:
    handle = await _two_signals(stage)
    for event_id in (0, 1, 5, 13, 99, -1):
        stage.note(f"event {event_id}", await stage.outcome(stage.reset(handle, event_id)))
    missing = stage.client.get_workflow_handle(stage.id("missing"))
    stage.note("missing", await stage.outcome(stage.reset(missing, 4)))
