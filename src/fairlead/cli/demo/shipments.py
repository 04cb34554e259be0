"""The workflows of the second part: shipments that take a while, so that failovers meet them on their way."""

import asyncio
from datetime import timedelta

from temporalio import activity, workflow

LEGS = 4
LEG_S = 0.3


@activity.defn
async def carry(leg: int) -> int:
    """One leg of the way."""
    await asyncio.sleep(0.05)
    return leg


@workflow.defn
class Shipment:
    """Some legs with a wait after each; it arrives when it was told where to, as often as it was told."""

    def __init__(self) -> None:
        self._told: list[str] = []

    @workflow.run
    async def run(self) -> tuple[int, list[str]]:
        """Answers with the legs that were carried, and what it was told."""
        carried = 0
        for leg in range(LEGS):
            await workflow.execute_activity(carry, leg, start_to_close_timeout=timedelta(seconds=5))
            carried += 1
            await asyncio.sleep(LEG_S)
        await workflow.wait_condition(lambda: bool(self._told))
        return carried, self._told

    @workflow.signal
    def tell(self, where: str) -> None:
        """Say where it goes."""
        self._told.append(where)
