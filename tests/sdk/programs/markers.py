"""Markers of patches and local activities, and the upserts of search attributes and memo."""

from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError

from tests.history.reference_programs import SOON, echo
from tests.sdk.gates import first_time
from tests.sdk.programs.starts import ALL_KINDS
from tests.sdk.stage import Stage, program

KEYWORD = SearchAttributeKey.for_keyword("CustomKeywordField")
NUMBER = SearchAttributeKey.for_int("CustomIntField")


@activity.defn
async def fails_locally(until_attempt: int) -> int:
    attempt = activity.info().attempt
    if attempt < until_attempt:
        raise ApplicationError(f"local attempt {attempt}", type="Local")
    return attempt


@workflow.defn
class Patched:
    @workflow.run
    async def run(self, kind: str) -> bool:
        if kind == "deprecated":
            workflow.deprecate_patch("old-change")
            return True
        first = workflow.patched("a-change")
        second = workflow.patched("a-change") and workflow.patched("another-change")
        await workflow.sleep(0.1)
        return first and second


@workflow.defn
class LocalActivities:
    @workflow.run
    async def run(self, until_attempt: int) -> list[Any]:
        texts: list[Any] = [
            await workflow.execute_local_activity(echo, f"{number}", start_to_close_timeout=SOON) for number in range(2)
        ]
        try:
            texts.append(
                await workflow.execute_local_activity(
                    fails_locally,
                    until_attempt,
                    schedule_to_close_timeout=SOON,
                    retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=20), maximum_attempts=3),
                )
            )
        except ActivityError as error:
            texts.append(repr(error.cause))
        return texts


@workflow.defn
class UpsertsTwice:
    @workflow.run
    async def run(self) -> str:
        workflow.upsert_search_attributes([KEYWORD.value_set("first"), NUMBER.value_set(1)])
        workflow.upsert_memo({"a": 1, "gone": None, "new": {"b": [2]}})
        await workflow.sleep(0.1)
        workflow.upsert_search_attributes([KEYWORD.value_unset(), NUMBER.value_set(2)])
        workflow.upsert_memo({"a": None})
        await workflow.sleep(0.1)
        return f"{workflow.memo()} {len(workflow.info().typed_search_attributes)}"


@workflow.defn
class UpsertsWhatNobodyKnows:
    @workflow.run
    async def run(self) -> str:
        if first_time("upsert"):
            workflow.upsert_search_attributes([SearchAttributeKey.for_keyword("NobodyKnows").value_set("x")])
        await workflow.sleep(0.1)
        return "recovered"


@workflow.defn
class Randoms:
    """Random values from the seed of the run id leave no marker."""

    @workflow.run
    async def run(self) -> str:
        workflow.set_current_details("details of now")
        value, name = workflow.random().random(), str(workflow.uuid4())
        await workflow.sleep(0.05)
        return "drawn" if 0 <= value < 1 and name else "never"


@program
async def patched(stage: Stage) -> Any:
    return await stage.run(Patched.run, "new")


@program
async def patch_deprecated(stage: Stage) -> Any:
    return await stage.run(Patched.run, "deprecated")


@program
async def local_activities(stage: Stage) -> Any:
    return await stage.run(LocalActivities.run, 2)


@program
async def local_activity_fails(stage: Stage) -> Any:
    return await stage.run(LocalActivities.run, 9)


@program
async def upserts(stage: Stage) -> Any:
    return await stage.run(UpsertsTwice.run, memo={"gone": 1, "stays": "x"}, search_attributes=ALL_KINDS)


@program
async def upsert_of_an_unknown_search_attribute(stage: Stage) -> Any:
    return await stage.run(UpsertsWhatNobodyKnows.run)


@program
async def randoms_leave_no_marker(stage: Stage) -> Any:
    return await stage.run(Randoms.run)
