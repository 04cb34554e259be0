"""The connection of a process outside the cluster to the matching service."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead.api.namespace_lookup import TooManyNamespaces
from fairlead.core.partitions import InvalidName, NotDrained, WriteNotLowered
from fairlead.matching.client import MatchingClient
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import NotARoot, ScalerIsOn, StaleConfig, StickyWorkerGone
from fairlead.matching.partition.task_validation import InvalidPoll, InvalidTask
from fairlead.matching.partition.task_writer import AppendQueueFull
from fairlead.membership.ring import RemoteRing
from fairlead.rpc.hosts.credentials import ANONYMOUS, Credentials
from fairlead.rpc.hosts.grpc_caller import GrpcCaller
from fairlead.rpc.hosts.wire import Errors
from fairlead.settings import DynamicSettings
from fairlead.storage.tasks import LeaseLost, OutcomeUnknown, StoreUnavailable

# Errors that callers at other hosts get as their own class, not only as their kind.
MATCHING_ERRORS = (
    *(StaleConfig, NotOwner, AppendQueueFull, LeaseLost, OutcomeUnknown, StoreUnavailable),
    *(ScalerIsOn, NotARoot, StickyWorkerGone, NotDrained, WriteNotLowered, InvalidName, InvalidTask, InvalidPoll),
    TooManyNamespaces,
)


@asynccontextmanager
async def connect(
    *addresses: str, settings: DynamicSettings | None = None, credentials: Credentials = ANONYMOUS
) -> AsyncIterator[MatchingClient]:
    """Connect to the cluster; one host's address is enough, because the client gets all other addresses from that host.

    async with connect("127.0.0.1:7240") as client:
        await client.add(task_queue, task)
    """
    caller = new_caller(credentials)
    ring = RemoteRing(caller, addresses, clock=time.time)
    try:
        await ring.open()
        yield MatchingClient(
            caller, ring, settings=settings or DynamicSettings(), clock=time.time, random=random.random
        )
    finally:
        await ring.close()
        await caller.close()


def new_caller(credentials: Credentials = ANONYMOUS) -> GrpcCaller:
    """Make a caller for a process outside the cluster."""
    return GrpcCaller(errors=Errors(MATCHING_ERRORS), credentials=credentials)
