"""Counts with GROUP BY: the groups and their order."""

from datetime import timedelta
from typing import Any

from temporalio.api.workflowservice.v1 import CountActivityExecutionsRequest, CountWorkflowExecutionsRequest
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from tests.history.reference_programs import Hello
from tests.sdk.programs.runs import FailsForGood
from tests.sdk.programs.starts import Waits
from tests.sdk.stage import NAMESPACE, NO_ONE, Stage, program


async def _groups(stage: Stage, by: str) -> Any:
    query = f"WorkflowId STARTS_WITH '{stage.name}/' GROUP BY {by}"

    return await stage.service.count_workflow_executions(
        CountWorkflowExecutionsRequest(namespace=NAMESPACE, query=query)
    )


@program
async def groups_by_status(stage: Stage) -> None:
    for number in range(3):
        await stage.run(Hello.run, "x", suffix=f"completed {number}")
    for number in range(2):
        await (await stage.start(Waits.run, suffix=f"terminated {number}", queue=NO_ONE)).terminate()
    await stage.run(FailsForGood.run, "Fatal", suffix="failed")
    await stage.run(Waits.run, suffix="timed out", queue=NO_ONE, run_timeout=timedelta(seconds=1))
    running = [await stage.start(Waits.run, suffix=f"running {number}", queue=NO_ONE) for number in range(4)]

    async def listed() -> bool:
        closed = await stage.client.count_workflows(f"WorkflowId STARTS_WITH '{stage.name}/' AND CloseTime IS NOT NULL")
        opened = await stage.client.count_workflows(f"WorkflowId STARTS_WITH '{stage.name}/' AND CloseTime IS NULL")
        return (closed.count, opened.count) == (7, 4)

    await stage.until_true(listed, "all workflows in the list")
    for by in ("ExecutionStatus", "WorkflowType", "CustomKeywordField", "ExecutionStatus, WorkflowType", "StartTime"):
        stage.note(by, await stage.outcome(_groups(stage, by)))
    for handle in running:
        await handle.terminate()


@program
async def groups_of_activities_by_status(stage: Stage) -> None:
    keyword = SearchAttributeKey.for_keyword("CustomKeywordField")
    handles = [
        await stage.client.start_activity(
            "activity",
            id=stage.id(f"{number}"),
            task_queue=NO_ONE,
            start_to_close_timeout=timedelta(seconds=30),
            search_attributes=TypedSearchAttributes([SearchAttributePair(keyword, stage.name)]),
        )
        for number in range(4)
    ]
    await handles[0].terminate()
    await handles[1].terminate()
    # No worker runs the activity, so the request ends it at once.
    await handles[2].cancel()
    query = f"CustomKeywordField = '{stage.name}'"

    async def listed() -> bool:
        running = await stage.client.count_activities(f"{query} AND ExecutionStatus = 'Running'")
        return (running.count, (await stage.client.count_activities(query)).count) == (1, 4)

    await stage.until_true(listed, "all activities in the list")
    request = CountActivityExecutionsRequest(namespace=NAMESPACE, query=f"{query} GROUP BY ExecutionStatus")
    stage.note("by status", await stage.outcome(stage.service.count_activity_executions(request)))
    await handles[3].terminate()
