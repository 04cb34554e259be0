"""Workflow tasks: failures, attempts, timeouts, non-determinism, workers that start and stop, long histories."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest

from tests.history.reference_programs import SOON, TaskFails, echo
from tests.sdk.gates import first_time, hold_activity, hold_task
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, Stage, program


@activity.defn
async def held_echo(text: str) -> str:
    await hold_activity(text)
    return text


@workflow.defn
class HeldTask:
    @workflow.run
    async def run(self) -> str:
        if first_time("held"):
            hold_task("first task")
        return "in time now"


@workflow.defn
class FailsInTheMiddle:
    @workflow.run
    async def run(self, times: int) -> str:
        await workflow.sleep(0.1)
        for number in range(times):
            if first_time(f"failure {number}"):
                raise RuntimeError(f"failure {number}")
        return "recovered"


@workflow.defn
class ChangesItsMind:
    """Behaves differently in its second workflow task than in the first, once: a non-determinism error."""

    def __init__(self) -> None:
        self._go = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.run
    async def run(self) -> str:
        if self._go_seen_before() and first_time("changed"):
            await workflow.execute_activity(echo, "x", start_to_close_timeout=SOON)
        await workflow.sleep(0.2)
        await workflow.wait_condition(lambda: self._go)
        return "of one mind"

    @staticmethod
    def _go_seen_before() -> bool:
        return not first_time("first run of the code")


@workflow.defn
class ManyThingsBuffered:
    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.signal
    def say(self, word: str) -> None:
        self._words.append(word)

    @workflow.run
    async def run(self) -> list[str]:
        activities = [workflow.start_activity(held_echo, name, start_to_close_timeout=SOON) for name in ("a", "b")]
        await workflow.wait_condition(lambda: bool(self._words))
        hold_task("second task")
        for each in activities:
            self._words.append(await each)
        await workflow.wait_condition(lambda: "end" in self._words)
        return self._words


@workflow.defn
class LongHistory:
    @workflow.run
    async def run(self, count: int) -> int:
        for number in range(count):
            await workflow.execute_activity(echo, f"{number}", start_to_close_timeout=SOON)
        return workflow.info().get_current_history_length()


@workflow.defn(failure_exception_types=[ValueError])
class FailsByType:
    @workflow.run
    async def run(self) -> None:
        raise ValueError("a plain error that ends the workflow")


@workflow.defn
class BlockedTwice:
    """Its workflow task fails while a signal is buffered."""

    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.signal
    def say(self, word: str) -> None:
        self._words.append(word)

    @workflow.run
    async def run(self) -> list[str]:
        if first_time("held"):
            hold_task("first task")
            raise RuntimeError("after the signal")
        await workflow.wait_condition(lambda: bool(self._words))
        return self._words


@program
async def task_fails_once(stage: Stage) -> Any:
    return await stage.run(TaskFails.run, 1)


@program
async def task_fails_thrice(stage: Stage) -> Any:
    return await stage.run(TaskFails.run, 3)


@program
async def task_fails_in_the_middle(stage: Stage) -> Any:
    return await stage.run(FailsInTheMiddle.run, 2)


@program
async def task_fails_with_a_signal_buffered(stage: Stage) -> Any:
    handle = await stage.start(BlockedTwice.run)
    await stage.reached("first task")
    await handle.signal("say", "buffered")
    stage.open("first task")
    return await stage.outcome(handle.result())


@program
async def task_times_out(stage: Stage) -> Any:
    handle = await stage.start(HeldTask.run, task_timeout=timedelta(seconds=2))
    await stage.until(handle, "WORKFLOW_TASK_TIMED_OUT")
    stage.open("first task")
    return await stage.outcome(handle.result())


@program
async def non_determinism_is_retried(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [ChangesItsMind], [echo], max_cached_workflows=0):
        handle = await stage.start(ChangesItsMind.run, queue=queue)
        await stage.until(handle, "WORKFLOW_TASK_FAILED")
        await stage.idle(handle)
        return await stage.signal_and_end(handle, "go")


@program
async def many_things_buffered(stage: Stage) -> Any:
    """Signals, activity results and a cancel request arrive while a workflow task is started."""
    handle = await stage.start(ManyThingsBuffered.run)
    for name in ("a", "b"):
        await stage.reached(name)
    await stage.idle(handle)
    await handle.signal("say", "one")
    await stage.reached("second task")
    stage.open("a")
    await stage.until_pending(1)
    await handle.signal("say", "two")
    stage.open("b")
    await stage.until_pending(0)
    await handle.signal("say", "end")
    stage.open("second task")
    return await stage.outcome(handle.result())


@program
async def workers_without_cache(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [Waits], max_cached_workflows=0):
        handle = await stage.start(Waits.run, queue=queue)
        await stage.idle(handle)
        for word in ("one", "two"):
            await stage.signal(handle, "say", word)
        return await stage.signal_and_end(handle, "say", "end")


@program
async def worker_takes_over_from_another(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [Waits]):
        handle = await stage.start(Waits.run, queue=queue)
        await stage.idle(handle)
        await stage.signal(handle, "say", "one")
    async with stage.worker(queue, [Waits]):
        await stage.signal(handle, "say", "two")
        return await stage.signal_and_end(handle, "say", "end")


@program
async def signal_while_no_worker_is_there(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [Waits]):
        handle = await stage.start(Waits.run, queue=queue)
        await stage.idle(handle)
    await handle.signal("say", "one")
    await handle.signal("say", "end")
    async with stage.worker(queue, [Waits]):
        return await stage.outcome(handle.result())


@program
async def long_history(stage: Stage) -> Any:
    return await stage.run(LongHistory.run, 50)


@program
async def fails_by_exception_type(stage: Stage) -> Any:
    return await stage.run(FailsByType.run)


@program
async def task_answers_refused(stage: Stage) -> None:
    for label, token in {"none": b"", "garbage": b"garbage"}.items():
        bad = RespondWorkflowTaskCompletedRequest(namespace=NAMESPACE, task_token=token)
        stage.note(label, await stage.outcome(stage.service.respond_workflow_task_completed(bad)))
