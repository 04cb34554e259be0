"""Calls to matching hosts by a frontend that may drain."""

from typing import cast

from fairlead.aio.drain import Drain
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import POLL, BacklogReport, PollResponse
from fairlead.rpc.hosts.caller import Caller, Method, Request, Response

_NO_TASK = PollResponse(
    None, PartitionConfig(version=0, read=1, write=1), BacklogReport(0, tasks=0, age_s=0.0, adds_per_s=0.0, wait_s=0.0)
)


class DrainingCaller:
    """Calls other hosts. While draining, it cancels waiting polls at the other host and answers them empty."""

    def __init__(self, caller: Caller, drain: Drain) -> None:
        self._caller = caller
        self._drain = drain

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """Call `method` at `host`."""

        async def ask() -> Response:
            return await self._caller.call(host, method, request, timeout_s=timeout_s)

        async def answer_empty() -> Response:
            return cast(Response, _NO_TASK)

        return await (self._drain.wait(ask, answer_empty) if method.name == POLL.name else ask())
