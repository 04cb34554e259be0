"""Signal, query and update a running workflow: start `fairlead server start-dev`, then this."""

import argparse
import asyncio
import uuid

from temporalio import workflow
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker


@workflow.defn
class ShoppingCart:
    """Holds items until it is checked out."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.is_checked_out = False

    @workflow.run
    async def run(self) -> list[str]:
        """Wait for the check-out; the result is the items."""
        await workflow.wait_condition(lambda: self.is_checked_out)
        return self.items

    @workflow.update
    async def add(self, item: str) -> int:
        """Add an item. An update returns a value: here, the number of items."""
        self.items.append(item)
        return len(self.items)

    @add.validator
    def validate_add(self, item: str) -> None:
        """Reject an update before it is written to the history."""
        if not item:
            raise ApplicationError("the item has no name")

    @workflow.query
    def count(self) -> int:
        """Return the number of items. A query changes nothing."""
        return len(self.items)

    @workflow.signal
    async def check_out(self) -> None:
        """End the workflow. A signal returns nothing: the sender does not wait for the worker."""
        self.is_checked_out = True


async def main(address: str, namespace: str) -> None:
    """Fill a cart, ask it for its size, check it out."""
    client = await Client.connect(address, namespace=namespace)
    async with Worker(client, task_queue="carts", workflows=[ShoppingCart]):
        cart = await client.start_workflow(ShoppingCart.run, id=f"cart-{uuid.uuid4()}", task_queue="carts")
        print("update: items now", await cart.execute_update(ShoppingCart.add, "rope"))
        print("update: items now", await cart.execute_update(ShoppingCart.add, "anchor"))
        try:
            await cart.execute_update(ShoppingCart.add, "")
        except WorkflowUpdateFailedError as error:
            print("update rejected:", error.cause)
        print("query: items", await cart.query(ShoppingCart.count))
        await cart.signal(ShoppingCart.check_out)
        print("result:", await cart.result())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:7233", help="address of the server")
    parser.add_argument("--namespace", default="default")
    asyncio.run(main(**vars(parser.parse_args())))
