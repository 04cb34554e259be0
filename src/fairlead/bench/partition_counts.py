"""Counts the requests of clients by partition."""

from collections import defaultdict
from dataclasses import dataclass

from fairlead.matching.messages import AddRequest, AddResponse, PollRequest, PollResponse
from fairlead.rpc.hosts.caller import Caller, Method, Request, Response


@dataclass(slots=True)
class PartitionCounts:
    """Requests to a partition, including failed ones, and their results."""

    adds: int = 0
    adds_started: int = 0
    polls: int = 0
    polls_with_task: int = 0


class CountingCaller:
    """A caller that counts adds and polls, and passes them on."""

    def __init__(self, caller: Caller, counts: defaultdict[int, PartitionCounts]) -> None:
        self._caller = caller
        self._counts = counts

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """Call `host`, and count the request and its result."""
        if isinstance(request, AddRequest):
            self._counts[request.partition.number].adds += 1
        elif isinstance(request, PollRequest):
            self._counts[request.partition.number].polls += 1
        answer = await self._caller.call(host, method, request, timeout_s=timeout_s)
        if isinstance(request, AddRequest) and isinstance(answer, AddResponse):
            self._counts[request.partition.number].adds_started += answer.is_started
        elif isinstance(request, PollRequest) and isinstance(answer, PollResponse):
            self._counts[request.partition.number].polls_with_task += answer.task is not None
        return answer
