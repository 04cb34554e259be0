"""Workflows that wait for different things, for tests of the diagnosis."""

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy


@activity.defn
async def fail() -> None:
    raise RuntimeError("out of boxes")


@activity.defn
async def sleep_quietly() -> None:
    await asyncio.Event().wait()


@workflow.defn
class Waiting:
    """Waits for the thing that its argument names: a timer, a child, a signal, or an activity as QUEUE/NAME."""

    @workflow.run
    async def run(self, what: str) -> None:
        if what == "timer":
            await asyncio.sleep(3600)
        elif what == "child":
            await workflow.execute_child_workflow(Waiting.run, "signal", id=f"{workflow.info().workflow_id}-child")
        elif what == "signal":
            await workflow.wait_condition(lambda: False)
        elif what == "three activities":
            hour = timedelta(hours=1)
            waiting = (
                workflow.execute_activity(
                    "fail", task_queue="nobody", start_to_close_timeout=hour, activity_id=f"a-{number}"
                )
                for number in range(3)
            )
            await asyncio.gather(*waiting)
        elif what == "failing task":
            raise RuntimeError("a bug in the code")
        else:
            queue, name = what.split("/")
            await workflow.execute_activity(
                name,
                task_queue=queue or None,
                start_to_close_timeout=timedelta(hours=1),
                heartbeat_timeout=timedelta(seconds=2) if name == "sleep_quietly" else None,
                retry_policy=RetryPolicy(initial_interval=timedelta(hours=1)),
            )
