"""Calls from one partition to another."""

from typing import TypeVar

from fairlead.core.partitions import Partition
from fairlead.membership.ring import RingView
from fairlead.rpc.hosts.caller import Caller, Method

Request = TypeVar("Request")
Response = TypeVar("Response")


class Peers:
    """Calls the owner of a partition, without retries: the caller decides what to do after a failure."""

    def __init__(self, caller: Caller, ring: RingView) -> None:
        self._caller = caller
        self._ring = ring

    async def ask(
        self, partition: Partition, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """Call the host that owns `partition` now."""
        return await self._caller.call(self._ring.route(partition), method, request, timeout_s=timeout_s)
