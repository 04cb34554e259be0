"""How a process that is no host of the cluster reaches it."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.cluster.grpc_caller import GrpcCaller
from fairlead.cluster.ring import RemoteRing
from fairlead.cluster.wire import Errors
from fairlead.core.partitions import InvalidName, NotDrained, WriteNotLowered
from fairlead.matching.backlog import AppendQueueFull
from fairlead.matching.client import MatchingClient
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import NotARoot, ScalerIsOn, StaleConfig, StickyWorkerGone
from fairlead.matching.partition import InvalidPoll, InvalidTask
from fairlead.settings import DynamicSettings
from fairlead.storage.contract import LeaseLost, OutcomeUnknown, StoreUnavailable

# Those that a caller at another host must tell from others of their kind.
MATCHING_ERRORS = (
    *(StaleConfig, NotOwner, AppendQueueFull, LeaseLost, OutcomeUnknown, StoreUnavailable),
    *(ScalerIsOn, NotARoot, StickyWorkerGone, NotDrained, WriteNotLowered, InvalidName, InvalidTask, InvalidPoll),
)


@asynccontextmanager
async def connect(address: str, *, settings: DynamicSettings | None = None) -> AsyncIterator[MatchingClient]:
    """A client of the cluster that the host at `address` is of; the other hosts it finds by itself.

    async with connect("127.0.0.1:7240") as client:
        await client.add(task_list, task)
    """
    caller = new_caller()
    ring = RemoteRing(caller, [address], clock=time.time)
    try:
        await ring.open()
        yield MatchingClient(
            caller, ring, settings=settings or DynamicSettings(), clock=time.time, random=random.random
        )
    finally:
        await ring.close()
        await caller.close()


def new_caller() -> GrpcCaller:
    """Calls the hosts of a cluster from outside of it."""
    return GrpcCaller(errors=Errors(MATCHING_ERRORS))
