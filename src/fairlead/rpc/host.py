"""State shared by the connections of one server."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from fairlead.aio.deadlines import Deadlines
from fairlead.rpc.budget import SpentBudgets
from fairlead.rpc.call import Route
from fairlead.rpc.limits import RpcLimits
from fairlead.rpc.memory import Memory
from fairlead.rpc.stream import Stream
from fairlead.telemetry.descriptors import Descriptors

if TYPE_CHECKING:
    from fairlead.rpc.connection import Connection


@dataclass(slots=True)
class Host:
    """The parts of a server that its connections use.

    `stranger_limits` and `stranger_memory` are for connections whose caller is not identified yet; a server that does
    not distinguish callers has the same for all.
    """

    limits: RpcLimits
    stranger_limits: RpcLimits
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    log: FilteringBoundLogger
    routes: dict[str, Route]
    memory: Memory
    stranger_memory: Memory
    descriptors: Descriptors
    spent_budgets: SpentBudgets = field(default_factory=SpentBudgets)
    connections: "set[Connection]" = field(default_factory=set)
    # Running handlers, including cancelled ones that have not ended.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    # One timer for all calls: a timer for each connection would keep the passed ticks of each.
    deadlines: Deadlines[Stream] = field(default_factory=lambda: Deadlines(expire))
    is_draining: bool = False
    # Seconds until a connection is drained, 0 for no limit, and seconds for its open calls after that.
    age_s_max: float = 0.0
    age_grace_s: float = 0.0


def expire(stream: Stream) -> None:
    """End a call whose deadline has passed."""
    stream.owner.expire(stream)
