"""The server that stays after the demonstration: with the first part's workflows, and the lake in its console."""

import asyncio
from itertools import count
from pathlib import Path

from rich.console import Console
from temporalio.client import Client

from fairlead.cli.demo.orders import Packing
from fairlead.cli.demo.server import server
from fairlead.cli.demo.tenants import SETTINGS, TENANTS, new_worker, order

# Seconds between two orders of a tenant: often enough to fill the curves, and rarely enough not to fill the disk in
# days.
ORDER_S = 2.0


async def remain(console: Console, folder: Path, store: Path) -> None:
    """Run the server with a worker until the task is cancelled; all tenants except the flooding one keep ordering."""
    async with server(folder / "journal", SETTINGS, store=store, lake=folder / "lake") as running:
        client = await Client.connect(running.address)
        async with new_worker(client, Packing()):
            console.print(f"\nThe console: {running.console}", highlight=False, soft_wrap=True)
            console.print(
                f"Its pipeline, every hour, as a workflow on it: fairlead pipeline worker --address {running.address} "
                f"--journal {folder / 'journal'} --lake {folder / 'lake'} --schedule 1h",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            console.print(f"SDKs connect to {running.address}. Ctrl-C stops it.", highlight=False, soft_wrap=True)
            for number in count():
                for tenant in TENANTS:
                    if not tenant.is_flood:
                        await order(client, tenant, f"later-{number}")
                await asyncio.sleep(ORDER_S)
