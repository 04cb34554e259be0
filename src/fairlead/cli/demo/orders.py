"""The workflows and activities of the demonstration's first part: orders of several tenants, with Temporal's SDK."""

import asyncio
import time
from collections import Counter, deque
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import Priority, RetryPolicy
from temporalio.exceptions import ApplicationError

PACK_S = 0.05
# Waits that are remembered for each tenant, the latest.
WAITS_MAX = 100_000
# Every n-th parcel fails at the first attempt.
FAILING_ONE_IN = 40


class Packing:
    """Packs parcels, and records their number and the wait of each attempt."""

    def __init__(self) -> None:
        self.waits_s: dict[str, deque[tuple[float, float]]] = {}
        self.packed: Counter[str] = Counter()

    @activity.defn
    async def pack(self, tenant: str, number: int) -> None:
        """Pack one parcel, which takes a moment, and sometimes needs a second attempt."""
        info = activity.info()
        waited_s = time.time() - info.current_attempt_scheduled_time.timestamp()
        self.waits_s.setdefault(tenant, deque(maxlen=WAITS_MAX)).append((time.monotonic(), max(0.0, waited_s)))
        await asyncio.sleep(PACK_S)
        if number % FAILING_ONE_IN == FAILING_ONE_IN - 1 and info.attempt == 1:
            raise ApplicationError("the box was too small", type="BoxTooSmall")
        self.packed[tenant] += 1


@workflow.defn
class Order:
    """An order of a tenant: all its parcels are packed at once, each under the tenant's fairness key."""

    @workflow.run
    async def run(self, tenant: str, weight: float, parcels: int) -> int:
        """Pack the parcels; return their number."""
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
