"""A workflow for tests of security, and a worker for it."""

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE = "greetings"


@activity.defn
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=10))


def worker(client: Client, task_queue: str = QUEUE) -> Worker:
    return Worker(client, task_queue=task_queue, workflows=[Greeting], activities=[greet])
