"""What the connections of one server share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from fairlead.rpc.call import Route
from fairlead.rpc.limits import RpcLimits

if TYPE_CHECKING:
    from fairlead.rpc.connection import Connection


@dataclass(slots=True)
class Host:
    """The server, as far as its connections know it."""

    limits: RpcLimits
    loop: asyncio.AbstractEventLoop
    clock: Callable[[], float]
    log: FilteringBoundLogger
    routes: dict[str, Route]
    connections: "set[Connection]" = field(default_factory=set)
    # Handlers that run, those that were cancelled and have not ended included.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    is_draining: bool = False
