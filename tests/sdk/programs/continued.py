"""The time between continued runs, and queries of a run that waits for its first workflow task."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

from temporalio import workflow
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.workflowservice.v1 import QueryWorkflowRequest

from tests.sdk.stage import NAMESPACE, Stage, execution, program


@workflow.defn
class Countdown:
    """Continues as new until `left` is 0, then waits for a signal."""

    def __init__(self) -> None:
        self._may_end = False
        self._left = -1

    @workflow.run
    async def run(self, left: int) -> str:
        self._left = left
        if left:
            workflow.continue_as_new(left - 1)
        await workflow.wait_condition(lambda: self._may_end)
        return "done"

    @workflow.signal
    def end(self) -> None:
        self._may_end = True

    @workflow.query
    def left(self) -> int:
        return self._left


async def _execution_times(stage: Stage) -> list[float]:
    """The due time of each run's first workflow task, in seconds, from the program's first run on."""
    run_id, found = stage.runs[0][1], []
    while run_id:
        events = (await stage.client.get_workflow_handle(stage.id(), run_id=run_id).fetch_history()).events
        backoff = events[0].workflow_execution_started_event_attributes.first_workflow_task_backoff
        found.append(events[0].event_time.ToNanoseconds() / 1e9 + backoff.ToNanoseconds() / 1e9)
        run_id = events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


async def _until_runs(stage: Stage, count: int) -> list[float]:
    async def there() -> bool:
        return len(await _execution_times(stage)) == count

    await stage.until_true(there, f"{count} runs")
    return await _execution_times(stage)


@program
async def continue_as_new_is_spaced(stage: Stage) -> Any:
    handle = await stage.start(Countdown.run, 3)
    times = await _until_runs(stage, 4)
    # On a busy machine a run may take longer than the interval of one second.
    stage.note("seconds between runs", [min(1.0, round(after - before, 1)) for before, after in pairwise(times)])
    last = stage.client.get_workflow_handle(stage.id())
    await stage.idle(last)
    await last.signal("end")
    return await stage.outcome(handle.result())


async def _left(stage: Stage, timeout_s: float = 10.0) -> Any:
    request = QueryWorkflowRequest(
        namespace=NAMESPACE, execution=execution(stage.id()), query=WorkflowQuery(query_type="left")
    )
    return await stage.outcome(stage.service.query_workflow(request, timeout=timedelta(seconds=timeout_s)))


@program
async def query_before_the_first_task_of_a_continued_run(stage: Stage) -> Any:
    handle = await stage.start(Countdown.run, 1)
    await _until_runs(stage, 2)
    stage.note("left", await _left(stage))
    await stage.client.get_workflow_handle(stage.id()).signal("end")
    return await stage.outcome(handle.result())


@program
async def query_before_the_first_task_of_a_delayed_run(stage: Stage) -> None:
    handle = await stage.start(Countdown.run, 0, start_delay=timedelta(seconds=30))
    stage.note("left", await _left(stage, 2.0))
    await handle.terminate()


@program
async def query_before_the_first_task_of_a_run_that_is_woken(stage: Stage) -> Any:
    handle = await stage.start(Countdown.run, 0, start_delay=timedelta(milliseconds=700))
    stage.note("left", await _left(stage))
    await handle.signal("end")
    return await stage.outcome(handle.result())
