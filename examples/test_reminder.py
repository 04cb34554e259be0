"""A test of a workflow that sleeps for a month, and takes a second: `pytest examples/test_reminder.py`."""

import asyncio
from datetime import datetime, timedelta

from temporalio import activity, workflow
from temporalio.worker import Worker

from fairlead.testing import start_time_skipping

MONTH = timedelta(days=30)


@activity.defn
async def send(customer: str) -> str:
    """Send the reminder."""
    return f"reminded {customer}"


@workflow.defn
class Reminder:
    """Reminds a customer after a month."""

    @workflow.run
    async def run(self, customer: str) -> str:
        """Wait, then send."""
        await asyncio.sleep(MONTH.total_seconds())
        return await workflow.execute_activity(send, customer, start_to_close_timeout=timedelta(seconds=10))


async def remind() -> tuple[str, timedelta]:
    """Run the workflow on a server that skips time; return its result, and the time that has passed on the server."""
    async with await start_time_skipping() as environment:
        started: datetime = await environment.get_current_time()
        async with Worker(environment.client, task_queue="reminders", workflows=[Reminder], activities=[send]):
            result = await environment.client.execute_workflow(
                Reminder.run, "acme", id="reminder", task_queue="reminders"
            )
        return result, await environment.get_current_time() - started


def test_a_customer_is_reminded_after_a_month() -> None:
    """No real month passes: the server's clock jumps to the next timer."""
    result, passed = asyncio.run(remind())
    assert result == "reminded acme"
    assert passed >= MONTH
