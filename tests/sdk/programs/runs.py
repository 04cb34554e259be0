"""Runs that follow each other: continue as new, retries, cron; and the timeouts that end them."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import ApplicationError

from tests.history.reference_programs import ContinuesAsNew, Fails, Hello, UntilCanceled
from tests.sdk.programs.starts import ALL_KINDS, Waits
from tests.sdk.stage import NO_ONE, Stage, program

SECOND = timedelta(seconds=1)
SOON = timedelta(seconds=3)
QUICKLY = timedelta(milliseconds=100)


@workflow.defn
class BecomesAnother:
    @workflow.run
    async def run(self, changes: bool) -> None:
        if changes:
            workflow.continue_as_new(
                args=["another"],
                workflow="Hello",
                run_timeout=timedelta(minutes=2),
                task_timeout=timedelta(seconds=5),
                memo={"new": True},
                search_attributes=TypedSearchAttributes(
                    [SearchAttributePair(SearchAttributeKey.for_keyword("CustomKeywordField"), "red")]
                ),
                retry_policy=RetryPolicy(maximum_attempts=3),
            )
        workflow.continue_as_new(args=["another"], workflow="Hello")


@workflow.defn
class ContinuesLater:
    @workflow.run
    async def run(self, left: int) -> str:
        if left:
            workflow.continue_as_new(left - 1, backoff_start_interval=SECOND)
        return "done"


@workflow.defn
class FailsForGood:
    @workflow.run
    async def run(self, kind: str) -> None:
        raise ApplicationError("no", {"a": 1}, type=kind, non_retryable=kind == "Fatal")


@workflow.defn
class FailsByTurns:
    """A cron job that fails every other time."""

    @workflow.run
    async def run(self) -> str:
        last = workflow.get_last_failure()
        if last is None:
            raise ApplicationError("this time not", type="ByTurns")
        return f"after {last}"


@workflow.defn
class CountsRuns:
    """A cron job whose result depends on the last run's result."""

    @workflow.run
    async def run(self) -> int:
        return (workflow.get_last_completion_result(int) or 0) + 1


@program
async def continue_as_new_thrice(stage: Stage) -> Any:
    return await stage.run(ContinuesAsNew.run, 3, memo={"first": True}, search_attributes=ALL_KINDS)


@program
async def continue_as_another(stage: Stage) -> Any:
    return await stage.run(
        BecomesAnother.run, True, memo={"old": True}, search_attributes=ALL_KINDS,
        execution_timeout=timedelta(hours=1), static_summary="summary",
    )  # fmt: skip


@program
async def continue_as_another_with_what_there_was(stage: Stage) -> Any:
    return await stage.run(
        BecomesAnother.run, False, memo={"old": True}, search_attributes=ALL_KINDS,
        execution_timeout=timedelta(hours=1), run_timeout=timedelta(minutes=30), task_timeout=timedelta(seconds=7),
        retry_policy=RetryPolicy(maximum_attempts=2), static_summary="summary", static_details="details",
    )  # fmt: skip


@program
async def continue_later(stage: Stage) -> Any:
    return await stage.run(ContinuesLater.run, 1)


@program
async def workflow_fails(stage: Stage) -> Any:
    return await stage.run(FailsForGood.run, "Some")


@program
async def workflow_retried(stage: Stage) -> Any:
    policy = RetryPolicy(initial_interval=QUICKLY, maximum_attempts=3)
    return await stage.run(Fails.run, 3, retry_policy=policy, memo={"kept": 1}, search_attributes=ALL_KINDS)


@program
async def workflow_retries_exhausted(stage: Stage) -> Any:
    policy = RetryPolicy(initial_interval=timedelta(seconds=1.25), backoff_coefficient=1.5, maximum_attempts=3)
    return await stage.run(Fails.run, 9, retry_policy=policy)


@program
async def workflow_not_retried_by_flag(stage: Stage) -> Any:
    return await stage.run(FailsForGood.run, "Fatal", retry_policy=RetryPolicy(initial_interval=QUICKLY))


@program
async def workflow_not_retried_by_type(stage: Stage) -> Any:
    policy = RetryPolicy(initial_interval=QUICKLY, non_retryable_error_types=["Some"])
    return await stage.run(FailsForGood.run, "Some", retry_policy=policy)


@program
async def workflow_retry_ends_with_the_execution_timeout(stage: Stage) -> Any:
    """The next attempt would start after the execution timeout."""
    policy = RetryPolicy(initial_interval=timedelta(seconds=100))
    return await stage.run(Fails.run, 9, retry_policy=policy, execution_timeout=timedelta(seconds=30))


@program
async def run_timeout_retried(stage: Stage) -> Any:
    policy = RetryPolicy(initial_interval=QUICKLY, maximum_attempts=2)
    return await stage.run(UntilCanceled.run, run_timeout=SOON, retry_policy=policy)


@program
async def run_timeout(stage: Stage) -> Any:
    return await stage.run(UntilCanceled.run, run_timeout=SOON)


@program
async def execution_timeout(stage: Stage) -> Any:
    return await stage.run(UntilCanceled.run, execution_timeout=SOON)


@program
async def run_timeout_without_a_worker(stage: Stage) -> Any:
    return await stage.run(Hello.run, "x", queue=NO_ONE, run_timeout=SECOND)


@program
async def cron(stage: Stage) -> None:
    handle = await stage.start(CountsRuns.run, cron_schedule="@every 1s", memo={"kept": 1})
    runs = [await stage.saw_current()]
    while len(runs) < 3:
        await stage.closed(handle.id, runs[-1])
        runs.append(await stage.saw_current())
    # Terminate during the backoff before the third run.
    await stage.client.get_workflow_handle(handle.id).terminate()


@program
async def cron_that_fails(stage: Stage) -> None:
    handle = await stage.start(FailsByTurns.run, cron_schedule="@every 1s")
    runs = [await stage.saw_current()]
    while len(runs) < 3:
        await stage.closed(handle.id, runs[-1])
        runs.append(await stage.saw_current())
    await stage.client.get_workflow_handle(handle.id).terminate()


@program
async def cron_canceled_in_backoff(stage: Stage) -> Any:
    handle = await stage.start(Waits.run, cron_schedule="0 0 1 1 *")
    await handle.cancel()
    return await stage.outcome(handle.result())


@program
async def closed_one_is_described(stage: Stage) -> None:
    """Describe a closed run by its run id after its workflow id was used again."""
    first = await stage.start(Waits.run)
    first_run = await stage.saw_current()
    await stage.idle(first)
    await stage.signal_and_end(first, "say", "end")
    await stage.run(Hello.run, "second")
    stage.note("signal to the first", await stage.outcome(
        stage.client.get_workflow_handle(stage.id(), run_id=first_run).signal("say", "x")
    ))  # fmt: skip
