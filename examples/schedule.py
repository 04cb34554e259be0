"""A schedule that starts a workflow every second: start `fairlead server start-dev`, then this."""

import argparse
import asyncio
import uuid
from datetime import timedelta

from temporalio import workflow
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleIntervalSpec,
    ScheduleSpec,
)
from temporalio.worker import Worker

RUNS = 2


@workflow.defn
class Report:
    """The workflow that the schedule starts."""

    @workflow.run
    async def run(self, subject: str) -> str:
        """Return the report."""
        return f"report about {subject}"


async def main(address: str, namespace: str) -> None:
    """Create a schedule, print the results of its first runs, and delete it."""
    client = await Client.connect(address, namespace=namespace)
    name = f"report-{uuid.uuid4()}"
    async with Worker(client, task_queue="reports", workflows=[Report]):
        action = ScheduleActionStartWorkflow(Report.run, "sales", id=name, task_queue="reports")
        # Calendars and cron expressions are other fields of the spec.
        spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=1))])
        schedule = await client.create_schedule(name, Schedule(action=action, spec=spec))
        printed: set[str] = set()
        while len(printed) < RUNS:
            for started in (await schedule.describe()).info.recent_actions:
                run = started.action
                if isinstance(run, ScheduleActionExecutionStartWorkflow) and run.workflow_id not in printed:
                    print("result:", await client.get_workflow_handle(run.workflow_id).result())
                    printed.add(run.workflow_id)
            await asyncio.sleep(0.1)
        await schedule.delete()
        print("schedule deleted")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:7233", help="address of the server")
    parser.add_argument("--namespace", default="default")
    asyncio.run(main(**vars(parser.parse_args())))
