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
    """Activities do everything that may fail, take long or touch the outside world."""
    return f"Hello, {name}!"


@workflow.defn
class Greeting:
    """Continues where it was after a restart of the server or of the worker."""

    @workflow.run
    async def run(self, name: str) -> str:
        """Run the activity; its result is the workflow's."""
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=10))


async def main(address: str, namespace: str) -> None:
    """Run worker and client in one process; usually they are two."""
    client = await Client.connect(address, namespace=namespace)
    async with Worker(client, task_queue="greetings", workflows=[Greeting], activities=[greet]):
        workflow_id = f"greeting-{uuid.uuid4()}"
        greeting = await client.execute_workflow(Greeting.run, "world", id=workflow_id, task_queue="greetings")
    print(greeting)
    shown = f"temporal workflow show --workflow-id {workflow_id} --address {address} --namespace {namespace}"
    print(f"its history: {shown}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:7233", help="address of the server")
    parser.add_argument("--namespace", default="default")
    asyncio.run(main(**vars(parser.parse_args())))
