"""The four timeouts of an activity, with and without another attempt."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

from tests.history.reference_programs import ActivityTimeouts
from tests.sdk.stage import Stage, program

SECOND = timedelta(seconds=1)


@activity.defn
async def beats_once_then_hangs() -> list[Any]:
    if activity.info().attempt > 1:
        return list(activity.info().heartbeat_details)
    activity.heartbeat("halfway", 50)
    await asyncio.sleep(3)
    return []


@workflow.defn
class HangsOnce:
    @workflow.run
    async def run(self, kind: str, attempts: int) -> Any:
        options: Any = {"heartbeat_timeout": SECOND} if kind == "heartbeat" else {}
        try:
            return await workflow.execute_activity(
                beats_once_then_hangs,
                start_to_close_timeout=SECOND if kind == "start_to_close" else timedelta(seconds=30),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=attempts),
                **options,
            )
        except ActivityError as error:
            return f"{error} {error.retry_state} by {error.cause!r}"


@program
async def activity_start_to_close_timeout(stage: Stage) -> Any:
    return await stage.run(ActivityTimeouts.run, "start_to_close")


@program
async def activity_schedule_to_start_timeout(stage: Stage) -> Any:
    return await stage.run(ActivityTimeouts.run, "schedule_to_start")


@program
async def activity_schedule_to_close_timeout(stage: Stage) -> Any:
    return await stage.run(ActivityTimeouts.run, "schedule_to_close")


@program
async def activity_schedule_to_close_timeout_in_backoff(stage: Stage) -> Any:
    return await stage.run(ActivityTimeouts.run, "schedule_to_close_in_backoff")


@program
async def activity_start_to_close_timeout_retried(stage: Stage) -> Any:
    return await stage.run(ActivityTimeouts.run, "start_to_close_retried")


@program
async def activity_heartbeat_timeout(stage: Stage) -> Any:
    return await stage.run(HangsOnce.run, "heartbeat", 1)


@program
async def activity_heartbeat_timeout_retried(stage: Stage) -> Any:
    return await stage.run(HangsOnce.run, "heartbeat", 3)


@program
async def activity_start_to_close_timeout_passes_details_on(stage: Stage) -> Any:
    return await stage.run(HangsOnce.run, "start_to_close", 3)
