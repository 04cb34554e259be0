"""The load generator's connection to a matching service, as an external client."""

import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from fairlead.bench.generator import SWEEP_POLL_S
from fairlead.bench.partition_counts import CountingCaller, PartitionCounts
from fairlead.core.partitions import Partition, TaskQueueId
from fairlead.matching.client import POLL_MARGIN_S, MatchingClient
from fairlead.matching.messages import (
    ADD,
    DESCRIBE,
    POLL,
    AddRequest,
    AddResponse,
    DescribeRequest,
    NewTask,
    PollRequest,
    PollResponse,
)
from fairlead.membership.ring import NoResponse, RemoteRing, RingView
from fairlead.rpc.hosts.caller import Caller, NotReached
from fairlead.server import new_caller
from fairlead.settings import DynamicSettings

PRELOAD_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Link:
    """Clients, and direct calls to partitions; `counts` are the clients' requests by partition."""

    clients: Sequence[MatchingClient]
    counts: defaultdict[int, PartitionCounts]
    caller: Caller
    ring: RingView
    _poll_numbers: Iterator[int] = field(default_factory=count)

    async def add_to(self, partition: Partition, task: NewTask) -> AddResponse:
        """Add a task to this partition, without counting it."""
        request = AddRequest(partition, task)
        return await self.caller.call(self.ring.route(partition), ADD, request, timeout_s=PRELOAD_TIMEOUT_S)

    async def load_root(self, task_queue: TaskQueueId) -> None:
        """Load the root, which stores the partition configuration that the other partitions use."""
        root = Partition(task_queue, 0)
        await self.caller.call(self.ring.route(root), DESCRIBE, DescribeRequest(root), timeout_s=PRELOAD_TIMEOUT_S)

    async def poll_at(self, partition: Partition, identity: str) -> PollResponse:
        """Poll this partition for a task, without counting it."""
        request = PollRequest(partition, identity, f"{identity}-{next(self._poll_numbers)}", SWEEP_POLL_S)
        return await self.caller.call(self.ring.route(partition), POLL, request, timeout_s=SWEEP_POLL_S + POLL_MARGIN_S)


def new_link(caller: Caller, ring: RingView, settings: DynamicSettings, *, clients: int = 1) -> Link:
    """Return a link with clients that reach the hosts of `ring` by `caller`; they share no state."""
    counts: defaultdict[int, PartitionCounts] = defaultdict(PartitionCounts)
    counting = CountingCaller(caller, counts)
    made = [
        MatchingClient(counting, ring, settings=settings, clock=time.time, random=random.random) for _ in range(clients)
    ]
    return Link(made, counts, caller, ring)


@asynccontextmanager
async def connect(address: str, settings: DynamicSettings) -> AsyncIterator[Link]:
    """Connect to the cluster of the host at `address`."""
    caller = new_caller()
    ring = RemoteRing(caller, [address], clock=time.time)
    try:
        try:
            await ring.open()
        except NoResponse as nobody:
            raise NotReached(
                f"no server answers at {address}: start one (fairlead server start), or give its --address, "
                "or run a --scenario, which has a cluster of its own"
            ) from nobody
        yield new_link(caller, ring, settings)
    finally:
        await ring.close()
        await caller.close()
