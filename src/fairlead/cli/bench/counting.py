"""Counts what clients ask of each partition, on its way."""

from collections import defaultdict
from dataclasses import dataclass

from fairlead.cluster.calls import Answer, Caller, Method, Request
from fairlead.matching.messages import AddAnswer, AddRequest, PollAnswer, PollRequest


@dataclass(slots=True)
class PartitionCounts:
    """Requests that were sent to a partition, those that failed or were refused too, and what came of them."""

    adds: int = 0
    adds_started: int = 0
    polls: int = 0
    polls_with_task: int = 0


class CountingCaller:
    """A caller that counts the adds and polls which pass through it."""

    def __init__(self, caller: Caller, counts: defaultdict[int, PartitionCounts]) -> None:
        self._caller = caller
        self._counts = counts

    async def call(self, host: str, method: Method[Request, Answer], request: Request, *, timeout_s: float) -> Answer:
        """Ask `host`, and count."""
        if isinstance(request, AddRequest):
            self._counts[request.partition.number].adds += 1
        elif isinstance(request, PollRequest):
            self._counts[request.partition.number].polls += 1
        answer = await self._caller.call(host, method, request, timeout_s=timeout_s)
        if isinstance(request, AddRequest) and isinstance(answer, AddAnswer):
            self._counts[request.partition.number].adds_started += answer.is_started
        elif isinstance(request, PollRequest) and isinstance(answer, PollAnswer):
            self._counts[request.partition.number].polls_with_task += answer.task is not None
        return answer
