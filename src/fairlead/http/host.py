"""The parts of an HTTP server that its connections share, and a request that is being received."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, TypeAlias

from structlog.typing import FilteringBoundLogger

from fairlead.http.limits import HttpLimits
from fairlead.http.message import HttpFault, Request, Response
from fairlead.telemetry.descriptors import Descriptors

if TYPE_CHECKING:
    from fairlead.http.connection import Connection

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
Refuse: TypeAlias = Callable[[HttpFault], Response]


class Host:
    """The parts of a server that its connections share."""

    def __init__(
        self,
        handler: Handler,
        *,
        refuse: Refuse,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        log: FilteringBoundLogger,
    ) -> None:
        self.handler = handler
        self.refuse = refuse
        self.limits = limits
        self.loop = loop
        self.log = log
        self.descriptors = Descriptors(log)
        self.connections: set[Connection] = set()
        self.is_draining = False
        # Bytes of all request bodies in memory.
        self.body_bytes = 0
        self._date = (0, "")

    def date(self) -> str:
        """The current time in the format of HTTP's `Date` header."""
        now_s = int(time.time())
        if self._date[0] != now_s:
            self._date = (now_s, formatdate(now_s, usegmt=True))
        return self._date[1]


class Incoming:
    """A request that is being received."""

    __slots__ = ("body", "body_bytes", "fields", "headers", "is_expecting", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.fields = 0
        self.body = bytearray()
        self.body_bytes = 0
        self.is_expecting = False
