"""Updates: accepted, completed, rejected, several at once, with start, and pending when the run ends."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.client import WithStartWorkflowOperation, WorkflowUpdateStage
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError

from tests.history.reference_programs import SOON, Hello, echo
from tests.sdk.gates import first_time, hold_task
from tests.sdk.stage import Handle, Stage, program

ACCEPTED = WorkflowUpdateStage.ACCEPTED


@workflow.defn
class Sums:
    """Adds numbers by update. A negative number is rejected; a number above 100 fails the update."""

    def __init__(self) -> None:
        self._sum = 0
        self._go = False
        self._done = False

    @workflow.update
    async def add(self, number: int) -> int:
        if number > 100:
            raise ApplicationError("too large", "detail", type="TooLarge")
        self._sum += number
        return self._sum

    @add.validator
    def check_add(self, number: int) -> None:
        if number < 0:
            raise ValueError("negative")

    @workflow.update
    async def add_later(self, number: int) -> int:
        await workflow.wait_condition(lambda: self._go)
        self._sum += number
        return self._sum

    @workflow.update
    async def add_by_activity(self, number: int) -> str:
        return await workflow.execute_activity(echo, f"{number}", start_to_close_timeout=SOON)

    @workflow.update
    async def fails_the_task(self) -> str:
        if first_time("update"):
            raise RuntimeError("the task fails once")
        return "at last"

    @workflow.update
    async def finish_by_update(self) -> str:
        self._done = True
        return "finished"

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.signal
    def finish(self) -> None:
        self._done = True

    @workflow.run
    async def run(self, how: str) -> int:
        if how == "held":
            hold_task("first task")
        await workflow.wait_condition(lambda: self._done)
        if how == "continues":
            workflow.continue_as_new("plain")
        return self._sum


async def _begin(stage: Stage, how: str = "plain") -> Handle:
    handle = await stage.start(Sums.run, how)
    await stage.idle(handle)
    return handle


async def _finish(stage: Stage, handle: Handle) -> Any:
    await stage.idle(handle)
    return await stage.signal_and_end(handle, "finish")


@program
async def update_completes(stage: Stage) -> Any:
    handle = await _begin(stage)
    for number in (1, 2):
        stage.note("sum", await stage.outcome(handle.execute_update("add", number, id=f"add-{number}")))
    return await _finish(stage, handle)


@program
async def update_rejected_leaves_no_event(stage: Stage) -> Any:
    handle = await _begin(stage)
    for number in (-1, -2):
        stage.note("rejected", await stage.outcome(handle.execute_update("add", number, id=f"add{number}")))
    stage.note("events", len(await stage.events(handle)))
    stage.note("accepted", await stage.outcome(handle.execute_update("add", 3, id="add-3")))
    return await _finish(stage, handle)


@program
async def update_fails(stage: Stage) -> Any:
    handle = await _begin(stage)
    stage.note("failed", await stage.outcome(handle.execute_update("add", 101, id="large")))
    return await _finish(stage, handle)


@program
async def update_unknown(stage: Stage) -> Any:
    handle = await _begin(stage)
    stage.note("unknown", await stage.outcome(handle.execute_update("nope", id="nope")))
    return await _finish(stage, handle)


@program
async def update_accepted_and_completed_later(stage: Stage) -> Any:
    handle = await _begin(stage)
    update = await handle.start_update("add_later", 5, id="later", wait_for_stage=ACCEPTED)
    await stage.idle(handle)
    stage.note("while it is pending", await stage.describe(stage.id()))
    await stage.signal(handle, "go")
    stage.note("sum", await stage.outcome(update.result()))
    polled = handle.get_update_handle("later")
    stage.note("polled", await stage.outcome(polled.result()))
    return await _finish(stage, handle)


@program
async def update_by_an_activity(stage: Stage) -> Any:
    handle = await _begin(stage)
    stage.note("result", await stage.outcome(handle.execute_update("add_by_activity", 7, id="activity")))
    return await _finish(stage, handle)


@program
async def update_with_one_id_twice(stage: Stage) -> Any:
    handle = await _begin(stage)
    for number in (1, 2):
        stage.note("sum", await stage.outcome(handle.execute_update("add", number, id="the-same")))
    return await _finish(stage, handle)


@program
async def updates_while_a_task_is_in_flight(stage: Stage) -> Any:
    handle = await stage.start(Sums.run, "held")
    await stage.reached("first task")
    asked = []
    for number in (1, 2, -3):
        asked.append(asyncio.create_task(stage.outcome(handle.execute_update("add", number, id=f"add{number}"))))
        # No API call shows an update that waits, so give it time to arrive.
        await asyncio.sleep(0.2)
    stage.open("first task")
    for answer in asked:
        stage.note("sum", await answer)
    return await _finish(stage, handle)


@program
async def update_and_signal_while_a_task_is_in_flight(stage: Stage) -> Any:
    handle = await stage.start(Sums.run, "held")
    await stage.reached("first task")
    asked = asyncio.create_task(stage.outcome(handle.execute_update("add_later", 4, id="later")))
    await asyncio.sleep(0.3)
    await handle.signal("go")
    stage.open("first task")
    stage.note("sum", await asked)
    return await _finish(stage, handle)


@program
async def update_before_the_first_task(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    handle = await stage.start(Sums.run, "plain", queue=queue)
    asked = asyncio.create_task(stage.outcome(handle.execute_update("add", 4, id="early")))
    await asyncio.sleep(0.3)
    async with stage.worker(queue, [Sums]):
        stage.note("sum", await asked)
        return await _finish(stage, handle)


@program
async def update_survives_a_failed_task(stage: Stage) -> Any:
    handle = await _begin(stage)
    stage.note("result", await stage.outcome(handle.execute_update("fails_the_task", id="fails-once")))
    return await _finish(stage, handle)


@program
async def update_without_cache(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [Sums], max_cached_workflows=0):
        handle = await stage.start(Sums.run, "plain", queue=queue)
        await stage.idle(handle)
        for number in (1, -1, 2):
            stage.note("sum", await stage.outcome(handle.execute_update("add", number, id=f"add{number}")))
        return await _finish(stage, handle)


@program
async def update_that_finishes(stage: Stage) -> Any:
    handle = await _begin(stage)
    stage.note("update", await stage.outcome(handle.execute_update("finish_by_update", id="finish")))
    return await stage.outcome(handle.result())


@program
async def update_pending_at_the_end(stage: Stage) -> Any:
    handle = await _begin(stage)
    update = await handle.start_update("add_later", 5, id="pending", wait_for_stage=ACCEPTED)
    result = await _finish(stage, handle)
    stage.note("update", await stage.outcome(update.result()))
    return result


@program
async def update_pending_at_continue_as_new(stage: Stage) -> Any:
    handle = await _begin(stage, "continues")
    first = await stage.saw_current()
    update = await handle.start_update("add_later", 5, id="pending", wait_for_stage=ACCEPTED)
    await stage.idle(handle)
    await handle.signal("finish")
    await stage.closed(handle.id, first)
    stage.note("update", await stage.outcome(update.result()))
    return await _finish(stage, stage.client.get_workflow_handle(handle.id))


@program
async def update_pending_at_termination(stage: Stage) -> Any:
    handle = await _begin(stage)
    update = await handle.start_update("add_later", 5, id="pending", wait_for_stage=ACCEPTED)
    await stage.idle(handle)
    await handle.terminate()
    stage.note("update", await stage.outcome(update.result()))
    return await stage.outcome(handle.result())


@program
async def update_refused(stage: Stage) -> None:
    handle = await stage.start(Hello.run, "x")
    await handle.result()
    stage.note("closed", await stage.outcome(handle.execute_update("add", 1, id="closed")))
    missing = stage.client.get_workflow_handle(stage.id("missing"))
    stage.note("missing", await stage.outcome(missing.execute_update("add", 1, id="missing")))
    stage.note("never sent", await stage.outcome(handle.get_update_handle("never-sent").result()))
    running = await stage.start(Sums.run, "plain", suffix="running")
    await stage.idle(running)
    stage.note("never sent to it", await stage.outcome(running.get_update_handle("never-sent").result()))
    await stage.signal_and_end(running, "finish")


def _operation(stage: Stage, policy: WorkflowIDConflictPolicy, **options: Any) -> Any:
    return WithStartWorkflowOperation(
        Sums.run, "plain", id=stage.id(), task_queue=stage.queue, id_conflict_policy=policy, **options
    )


async def _with_start(stage: Stage, operation: Any, number: int, update_id: str) -> None:
    call = stage.client.execute_update_with_start_workflow(
        "add", number, start_workflow_operation=operation, id=update_id
    )
    stage.note(update_id, await stage.outcome(call))


@program
async def update_with_start_new_and_existing(stage: Stage) -> Any:
    for number in (1, 2):
        await _with_start(stage, _operation(stage, WorkflowIDConflictPolicy.USE_EXISTING), number, f"add-{number}")
        await stage.saw_current()
        await stage.idle(stage.client.get_workflow_handle(stage.id()))
    return await _finish(stage, stage.client.get_workflow_handle(stage.id()))


@program
async def update_with_start_rejected(stage: Stage) -> Any:
    await _with_start(stage, _operation(stage, WorkflowIDConflictPolicy.USE_EXISTING), -1, "negative")
    await stage.saw_current()
    return await _finish(stage, stage.client.get_workflow_handle(stage.id()))


@program
async def update_with_start_refused(stage: Stage) -> Any:
    handle = await _begin(stage)
    await _with_start(stage, _operation(stage, WorkflowIDConflictPolicy.FAIL), 1, "running already")
    result = await _finish(stage, handle)
    reject = WorkflowIDReusePolicy.REJECT_DUPLICATE
    operation = _operation(stage, WorkflowIDConflictPolicy.FAIL, id_reuse_policy=reject)
    await _with_start(stage, operation, 1, "closed already")
    return result


@program
async def update_with_start_replaces_the_running(stage: Stage) -> Any:
    await _begin(stage)
    await _with_start(stage, _operation(stage, WorkflowIDConflictPolicy.TERMINATE_EXISTING), 9, "replaces")
    await stage.saw_current()
    return await _finish(stage, stage.client.get_workflow_handle(stage.id()))
