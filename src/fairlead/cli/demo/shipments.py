"""The workflows of the second part: shipments that take a while, so that failovers happen while they run."""

import asyncio
from datetime import timedelta

from temporalio import activity, workflow

LEGS = 4
LEG_S = 0.3


@activity.defn
async def carry(leg: int) -> int:
    """Carry a shipment over one leg."""
    await asyncio.sleep(0.05)
    return leg


@workflow.defn
class Shipment:
    """A workflow of some legs with a wait after each; it then waits for a signal with its destination."""

    def __init__(self) -> None:
        self._destinations: list[str] = []

    @workflow.run
    async def run(self) -> tuple[int, list[str]]:
        """Return the number of legs carried, and all destinations signaled."""
        carried = 0
        for leg in range(LEGS):
            await workflow.execute_activity(carry, leg, start_to_close_timeout=timedelta(seconds=5))
            carried += 1
            await asyncio.sleep(LEG_S)
        await workflow.wait_condition(lambda: bool(self._destinations))
        return carried, self._destinations

    @workflow.signal
    def set_destination(self, where: str) -> None:
        """Signal the destination."""
        self._destinations.append(where)
