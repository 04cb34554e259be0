"""Signal-with-start from a workflow, through the server's own Nexus endpoint."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import NexusOperationError

from tests.sdk.programs.starts import Waits
from tests.sdk.stage import Stage, program


@workflow.defn
class Listens:
    """Collects signals and ends after the signal `last`."""

    def __init__(self) -> None:
        self._heard: list[str] = []

    @workflow.signal
    def hear(self, word: str) -> None:
        self._heard.append(word)

    @workflow.run
    async def run(self, last: str) -> list[str]:
        await workflow.wait_condition(lambda: last in self._heard)
        return self._heard


@workflow.defn
class SignalsWithStart:
    """Sends signal-with-start to another workflow; returns a failure as its result."""

    @workflow.run
    async def run(self, workflow_id: str, queue: str, words: list[str], options: dict[str, Any]) -> Any:
        rest: dict[str, Any] = {}
        if "conflict" in options:
            rest["id_conflict_policy"] = WorkflowIDConflictPolicy(options["conflict"])
        if "reuse" in options:
            rest["id_reuse_policy"] = WorkflowIDReusePolicy(options["reuse"])
        if "memo" in options:
            rest |= {
                "memo": options["memo"],
                "static_summary": "a summary",
                "execution_timeout": timedelta(minutes=5),
                "task_timeout": timedelta(seconds=5),
            }
        runs = []
        try:
            for word in words:
                handle = await workflow.signal_with_start_workflow(
                    "Listens", "end", id=workflow_id, task_queue=queue, signal="hear", signal_args=[word], **rest
                )
                runs.append(handle.run_id)
        except NexusOperationError as error:
            return [str(error), error.endpoint, error.service, error.operation, repr(error.__cause__)]
        return len(set(runs))


async def _signal(stage: Stage, words: list[str], **options: Any) -> Any:
    return await stage.run(SignalsWithStart, stage.id("other"), stage.queue, words, options)


@program
async def system_nexus_starts(stage: Stage) -> Any:
    outcome = await _signal(stage, ["end"], memo={"a": 1})
    await stage.saw_current("other")
    await stage.closed(stage.id("other"))
    return outcome


@program
async def system_nexus_signals_the_running(stage: Stage) -> Any:
    other = await stage.start(Listens, "end", suffix="other")
    await stage.idle(other)
    outcome = await _signal(stage, ["end"])
    await stage.closed(stage.id("other"))
    return outcome


@program
async def system_nexus_replaces_the_running(stage: Stage) -> Any:
    other = await stage.start(Waits, suffix="other")
    await stage.idle(other)
    outcome = await _signal(stage, ["end"], conflict=int(WorkflowIDConflictPolicy.TERMINATE_EXISTING))
    await stage.saw_current("other")
    await stage.closed(stage.id("other"))
    return outcome


@program
async def system_nexus_refused(stage: Stage) -> Any:
    first = await stage.start(Listens, "end", suffix="other", start_signal="hear", start_signal_args=["end"])
    await first.result()
    return await _signal(stage, ["end"], reuse=int(WorkflowIDReusePolicy.REJECT_DUPLICATE))


@program
async def system_nexus_bad_request(stage: Stage) -> None:
    caller = await stage.start(SignalsWithStart, stage.id("other"), "", ["end"], {})
    await stage.until(caller, "WORKFLOW_TASK_FAILED")
    await caller.terminate("seen enough")
