"""How one partition speaks to another, wherever that is."""

from typing import TypeVar

from fairlead.cluster.calls import Caller, Method
from fairlead.cluster.ring import RingView
from fairlead.core.partitions import Partition

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Peers:
    """Asks the owner of a partition. Nothing is tried again here: who asks knows what a failure means."""

    def __init__(self, caller: Caller, ring: RingView) -> None:
        self._caller = caller
        self._ring = ring

    async def ask(
        self, partition: Partition, method: Method[Request, Answer], request: Request, *, timeout_s: float
    ) -> Answer:
        """Ask the host that owns `partition` now."""
        return await self._caller.call(self._ring.route(partition), method, request, timeout_s=timeout_s)
