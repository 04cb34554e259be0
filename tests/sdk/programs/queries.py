"""Queries: direct, attached to a task, on closed runs, refused; none of them leaves an event."""

import asyncio
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest
from temporalio.common import QueryRejectCondition

from tests.history.reference_programs import Fails
from tests.sdk.gates import hold_task
from tests.sdk.stage import NAMESPACE, Stage, program


@workflow.defn
class Queried:
    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.signal
    def say(self, word: str) -> None:
        self._words.append(word)

    @workflow.query
    def words(self) -> list[str]:
        return self._words

    @workflow.query
    def broken(self) -> None:
        raise ValueError("no answer")

    @workflow.run
    async def run(self, held: bool) -> list[str]:
        if held:
            hold_task("first task")
        await workflow.wait_condition(lambda: "end" in self._words)
        return self._words


@program
async def query_direct(stage: Stage) -> Any:
    handle = await stage.start(Queried.run, False)
    await stage.idle(handle)
    stage.note("before", await handle.query("words"))
    await stage.signal(handle, "say", "one")
    stage.note("after", await handle.query("words"))
    return await stage.signal_and_end(handle, "say", "end")


@program
async def query_closed(stage: Stage) -> None:
    handle = await stage.start(Queried.run, False)
    await stage.idle(handle)
    await stage.signal_and_end(handle, "say", "end")
    stage.note("closed", await handle.query("words"))
    for condition in QueryRejectCondition:
        stage.note(condition.name, await stage.outcome(handle.query("words", reject_condition=condition)))


@program
async def query_failed_run_rejected(stage: Stage) -> None:
    handle = await stage.start(Fails.run, 9)
    await stage.outcome(handle.result())
    for condition in QueryRejectCondition:
        call = handle.query("__stack_trace", reject_condition=condition)
        stage.note(condition.name, "rejected" if "rejected" in str(await stage.outcome(call)) else "answered")


@program
async def query_refused(stage: Stage) -> None:
    handle = await stage.start(Queried.run, False)
    await stage.idle(handle)
    stage.note("unknown", await stage.outcome(handle.query("nope")))
    stage.note("broken", await stage.outcome(handle.query("broken")))
    missing = stage.client.get_workflow_handle(stage.id("missing"))
    stage.note("missing", await stage.outcome(missing.query("words")))
    for label, run in {"no query": "", "bad run": "zzz"}.items():
        bad = QueryWorkflowRequest(
            namespace=NAMESPACE,
            execution=WorkflowExecution(workflow_id=stage.id(), run_id=run),
            query=WorkflowQuery(query_type="words") if run else None,
        )
        stage.note(label, await stage.outcome(stage.service.query_workflow(bad)))
    await stage.signal_and_end(handle, "say", "end")


@program
async def query_while_a_task_is_in_flight(stage: Stage) -> Any:
    handle = await stage.start(Queried.run, True)
    await stage.reached("first task")
    asked = asyncio.create_task(handle.query("words"))
    await asyncio.sleep(0.3)
    stage.open("first task")
    stage.note("answer", await asked)
    await stage.idle(handle)
    return await stage.signal_and_end(handle, "say", "end")


@program
async def query_attached_to_a_task(stage: Stage) -> Any:
    """A signal is buffered and the query waits for the task that carries it."""
    handle = await stage.start(Queried.run, True)
    await stage.reached("first task")
    await handle.signal("say", "one")
    asked = asyncio.create_task(handle.query("words"))
    await asyncio.sleep(0.3)
    stage.open("first task")
    stage.note("answer", await asked)
    await stage.idle(handle)
    return await stage.signal_and_end(handle, "say", "end")


@program
async def query_without_cache(stage: Stage) -> Any:
    queue = f"{stage.name}-queue"
    async with stage.worker(queue, [Queried], max_cached_workflows=0):
        handle = await stage.start(Queried.run, False, queue=queue)
        await stage.idle(handle)
        await stage.signal(handle, "say", "one")
        stage.note("answer", await handle.query("words"))
        return await stage.signal_and_end(handle, "say", "end")
