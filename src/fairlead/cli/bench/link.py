"""How the load generator reaches a matching service: as a client from outside, like everybody."""

import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from fairlead.cli.admin.cluster import NotReached
from fairlead.cli.bench.counting import CountingCaller, PartitionCounts
from fairlead.cli.bench.generator import SWEEP_POLL_S
from fairlead.cluster.calls import Caller
from fairlead.cluster.ring import NoAnswer, RemoteRing, RingView
from fairlead.core.partitions import Partition
from fairlead.matching.client import POLL_MARGIN_S, MatchingClient
from fairlead.matching.messages import ADD, POLL, AddAnswer, AddRequest, NewTask, PollAnswer, PollRequest
from fairlead.server import new_caller
from fairlead.settings import DynamicSettings

PRELOAD_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Link:
    """Clients, and a way past their choice of partitions; `counts` is what they have asked of each."""

    clients: Sequence[MatchingClient]
    counts: defaultdict[int, PartitionCounts]
    caller: Caller
    ring: RingView
    _poll_numbers: Iterator[int] = field(default_factory=count)

    async def add_to(self, partition: Partition, task: NewTask) -> AddAnswer:
        """Add a task to this very partition, without counting it."""
        request = AddRequest(partition, task)
        return await self.caller.call(self.ring.route(partition), ADD, request, timeout_s=PRELOAD_TIMEOUT_S)

    async def poll_at(self, partition: Partition, identity: str) -> PollAnswer:
        """Take a task of this very partition, if there is one, without counting it."""
        request = PollRequest(partition, identity, f"{identity}-{next(self._poll_numbers)}", SWEEP_POLL_S)
        return await self.caller.call(self.ring.route(partition), POLL, request, timeout_s=SWEEP_POLL_S + POLL_MARGIN_S)


def new_link(caller: Caller, ring: RingView, settings: DynamicSettings, *, clients: int = 1) -> Link:
    """So many clients that reach the hosts of `ring` by `caller`; each learns for itself."""
    counts: defaultdict[int, PartitionCounts] = defaultdict(PartitionCounts)
    counting = CountingCaller(caller, counts)
    made = [
        MatchingClient(counting, ring, settings=settings, clock=time.time, random=random.random) for _ in range(clients)
    ]
    return Link(made, counts, caller, ring)


@asynccontextmanager
async def connect(address: str, settings: DynamicSettings) -> AsyncIterator[Link]:
    """A client of the cluster that the host at `address` belongs to."""
    caller = new_caller()
    ring = RemoteRing(caller, [address], clock=time.time)
    try:
        try:
            await ring.open()
        except NoAnswer as nobody:
            raise NotReached(
                f"no server answers at {address}: start one (fairlead server start), or give its --address, "
                "or run a --scenario, which has a cluster of its own"
            ) from nobody
        yield new_link(caller, ring, settings)
    finally:
        await ring.close()
        await caller.close()
