"""What the demonstration's workers do: orders of several tenants, by Temporal's own SDK."""

import asyncio
import time
from collections import Counter
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ApplicationError

PACK_S = 0.05
# One in so many parcels is not right at the first attempt.
FAILING_ONE_IN = 40


class Packing:
    """Packs parcels, and remembers how many, and how long each attempt had waited for it."""

    def __init__(self) -> None:
        self.waits_s: dict[str, list[tuple[float, float]]] = {}
        self.packed: Counter[str] = Counter()

    @activity.defn
    async def pack(self, tenant: str, number: int) -> None:
        """One parcel: it takes a moment, and now and then another attempt."""
        info = activity.info()
        waited_s = time.time() - info.current_attempt_scheduled_time.timestamp()
        self.waits_s.setdefault(tenant, []).append((time.monotonic(), max(0.0, waited_s)))
        await asyncio.sleep(PACK_S)
        if number % FAILING_ONE_IN == FAILING_ONE_IN - 1 and info.attempt == 1:
            raise ApplicationError("the box was too small", type="BoxTooSmall")
        self.packed[tenant] += 1


@workflow.defn
class Order:
    """An order of a tenant: all of its parcels are packed at once, each under the tenant's fairness key."""

    @workflow.run
    async def run(self, tenant: str, weight: float, parcels: int) -> int:
        """Answers with the number of parcels."""
        await asyncio.gather(
            *(
                workflow.execute_activity_method(
                    Packing.pack,
                    args=[tenant, number],
                    start_to_close_timeout=timedelta(seconds=10),
                    retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200)),
                    priority=Priority(fairness_key=tenant, fairness_weight=weight),
                )
                for number in range(parcels)
            )
        )
        return parcels
