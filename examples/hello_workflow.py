"""A workflow with one activity, by Temporal's own SDK: start `fairlead server start-dev`, then this."""

import argparse
import asyncio
import uuid
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker


@activity.defn
async def greet(name: str) -> str:
    """Anything that may fail, take long or be done elsewhere belongs into an activity."""
    return f"Hello, {name}!"


@workflow.defn
class Greeting:
    """Goes on where it was, whatever is restarted meanwhile."""

    @workflow.run
    async def run(self, name: str) -> str:
        """One greeting."""
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=10))


async def main(address: str, namespace: str) -> None:
    """Worker and client in one process; they need not be."""
    client = await Client.connect(address, namespace=namespace)
    async with Worker(client, task_queue="greetings", workflows=[Greeting], activities=[greet]):
        workflow_id = f"greeting-{uuid.uuid4()}"
        greeting = await client.execute_workflow(Greeting.run, "world", id=workflow_id, task_queue="greetings")
    print(greeting)  # noqa: T201 - it is what the example is for
    shown = f"temporal workflow show --workflow-id {workflow_id} --address {address} --namespace {namespace}"
    print(f"its history: {shown}")  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:7233", help="where the server is, 127.0.0.1:7233")
    parser.add_argument("--namespace", default="default")
    asyncio.run(main(**vars(parser.parse_args())))
