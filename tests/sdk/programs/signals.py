"""Signals: while idle, while a task is in flight, with start, to runs that are closed or not there."""

from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from tests.history.reference_programs import Hello
from tests.sdk.gates import first_time, hold_task
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, Stage, execution, program


@workflow.defn
class HeldAtFirst:
    """Counts signals after its first workflow task has waited at a gate."""

    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.signal
    def say(self, word: str) -> None:
        self._words.append(word)

    @workflow.run
    async def run(self, count: int) -> list[str]:
        hold_task("first task")
        await workflow.wait_condition(lambda: len(self._words) >= count)
        return self._words


@workflow.defn
class HeldAtEnd:
    """Its last workflow task waits at a gate on the first attempt."""

    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.signal
    def say(self, word: str) -> None:
        self._words.append(word)

    @workflow.run
    async def run(self, how: str) -> list[str]:
        await workflow.wait_condition(lambda: bool(self._words))
        if first_time("end"):
            hold_task("last task")
        if how == "continue" and len(self._words) < 2:
            workflow.continue_as_new(how)
        return self._words


@program
async def signals_in_turn(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    for word in ("one", "two"):
        await stage.signal(handle, "say", word)
    await handle.signal("say", "end")
    return await handle.result()


@program
async def signals_while_a_task_is_in_flight(stage: Stage) -> Any:
    handle = await stage.start(HeldAtFirst.run, 3)
    await stage.reached("first task")
    for word in ("one", "two", "three"):
        await handle.signal("say", word)
    stage.note("with buffered events", await stage.describe(stage.id()))
    stage.open("first task")
    return await handle.result()


@program
async def signal_before_the_first_task(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    handle = await stage.start(Waits.run, queue=queue)
    await handle.signal("say", "early")
    await handle.signal("say", "end")
    async with stage.worker(queue, [Waits]):
        return await handle.result()


@program
async def signal_nobody_handles(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    await stage.signal(handle, "whisper", "psst")
    await handle.signal("say", "end")
    return await handle.result()


@program
async def signal_meets_completion(stage: Stage) -> Any:
    """The closing command fails the task with UNHANDLED_COMMAND, and the workflow sees the signal."""
    handle = await stage.start(HeldAtEnd.run, "complete")
    await stage.idle(handle)
    await handle.signal("say", "one")
    await stage.reached("last task")
    await handle.signal("say", "two")
    stage.open("last task")
    return await handle.result()


@program
async def signal_meets_continue_as_new(stage: Stage) -> Any:
    handle = await stage.start(HeldAtEnd.run, "continue")
    await stage.idle(handle)
    await handle.signal("say", "one")
    await stage.reached("last task")
    await handle.signal("say", "two")
    stage.open("last task")
    return await handle.result()


@program
async def signal_with_request_id_once(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    for _ in range(2):
        await stage.service.signal_workflow_execution(
            SignalWorkflowExecutionRequest(
                namespace=NAMESPACE,
                workflow_execution=execution(stage.id()),
                signal_name="say",
                input=Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=b'"once"')]),
                identity="raw",
                request_id="signal-request",
            )
        )
        await stage.idle(handle)
    await handle.signal("say", "end")
    return await handle.result()


@program
async def signal_refused(stage: Stage) -> None:
    handle = await stage.start(Hello.run, "x")
    await handle.result()
    stage.note("closed", await stage.outcome(handle.signal("say", "x")))
    missing = stage.client.get_workflow_handle(stage.id("missing"))
    stage.note("missing", await stage.outcome(missing.signal("say", "x")))
    for label, fields in {
        "no name": {"workflow_execution": execution(stage.id())},
        "no id": {"signal_name": "x"},
        "bad run": {"signal_name": "x", "workflow_execution": execution(stage.id(), "zzz")},
        "long name": {"signal_name": "x" * 1001, "workflow_execution": execution(stage.id())},
    }.items():
        bad = SignalWorkflowExecutionRequest(namespace=NAMESPACE, **fields)  # type: ignore[arg-type]
        stage.note(label, await stage.outcome(stage.service.signal_workflow_execution(bad)))


@program
async def signal_with_start_new(stage: Stage) -> Any:
    return await stage.run(Waits.run, start_signal="say", start_signal_args=["end"], memo={"a": 1})


@program
async def signal_with_start_existing(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    await stage.start(Waits.run, start_signal="say", start_signal_args=["more"])
    await stage.idle(handle)
    stage.note(
        "fails if it runs",
        await stage.outcome(
            stage.start(
                Waits.run, start_signal="say", start_signal_args=["x"], id_conflict_policy=WorkflowIDConflictPolicy.FAIL
            )
        ),
    )
    await handle.signal("say", "end")
    return await handle.result()


@program
async def signal_with_start_after_the_end(stage: Stage) -> Any:
    first = await stage.start(Hello.run, "x")
    await first.result()
    stage.note(
        "rejected",
        await stage.outcome(
            stage.start(
                Waits.run, start_signal="say", start_signal_args=["end"],
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            )
        ),
    )  # fmt: skip
    return await stage.run(Waits.run, start_signal="say", start_signal_args=["end"])


@program
async def signal_with_start_replaces_the_running(stage: Stage) -> Any:
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    return await stage.run(
        Waits.run, start_signal="say", start_signal_args=["end"],
        id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
    )  # fmt: skip
