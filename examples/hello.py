"""Tasks of three tenants with fair shares: run `fairlead server start`, then `python examples/hello.py [HOST:PORT]`."""

import asyncio
import sys

from fairlead.client import connect

ADDRESS = "127.0.0.1:7240"
# Weights by tenant: acme gets 5 of 8 tasks while all three have tasks waiting.
WEIGHTS = {"acme": 5.0, "globex": 2.0, "initech": 1.0}


async def main(address: str = ADDRESS) -> None:
    """Add three tasks for each tenant, then poll for them."""
    async with connect(address) as client:
        for number in range(1, 4):
            for tenant, weight in WEIGHTS.items():
                payload = f"hello {number} from {tenant}".encode()
                await client.add("greetings", payload, fairness_key=tenant, weight=weight)
        for _ in range(3 * len(WEIGHTS)):
            task = await client.poll("greetings", timeout_s=5)
            print(task.payload.decode() if task else "no task came")


asyncio.run(main(*sys.argv[1:2]))
