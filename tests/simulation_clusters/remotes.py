"""Clusters that ask each other over the simulator's network: everything crosses as bytes, late, twice or not at all."""

from typing import TypeVar

from msgspec.structs import replace

from fairlead.cluster.calls import CallLost, Handlers, Method, Unreachable
from fairlead.replication.endpoint import Endpoint
from fairlead.replication.messages import (
    ClusterInfo,
    Done,
    FailOverAnswer,
    FailOverRequest,
    LettersAsked,
    LettersCounted,
    NamespacesAnswer,
    NamespacesRequest,
    Nudge,
    PullAnswer,
    PullRequest,
    ReadLineAnswer,
    RemoteReadLine,
    RepairAnswer,
    RepairRequest,
)
from fairlead.replication.remote import RemoteUnavailable
from tests.simulation.network import SimCaller

Request = TypeVar("Request")
Answer = TypeVar("Answer")

TIMEOUT_S = 2.0
# A pull that nobody answers because the network is cut is noticed sooner than outside.
PULL_WAIT_S_MAX = 3.0

INFO = Method("replication.Info", Done, ClusterInfo)
PULL = Method("replication.Pull", PullRequest, PullAnswer)
READ_LINE = Method("replication.ReadLine", RemoteReadLine, ReadLineAnswer)
NAMESPACES = Method("replication.Namespaces", NamespacesRequest, NamespacesAnswer)
FAIL_OVER = Method("replication.FailOver", FailOverRequest, FailOverAnswer)
LETTERS = Method("replication.CountLetters", LettersAsked, LettersCounted)
NUDGE = Method("replication.Nudge", Nudge, Done)
REPAIR = Method("replication.RemoteRepair", RepairRequest, RepairAnswer)


class SimRemote:
    """The `Remote` that one cluster has of another."""

    def __init__(self, here: str, there: str, caller: SimCaller) -> None:
        self._here = here
        self._there = there
        self._caller = caller

    async def info(self) -> ClusterInfo:
        """See `Remote`."""
        return await self._ask(INFO, Done())

    async def pull(self, request: PullRequest) -> PullAnswer:
        """See `Remote`."""
        request = replace(request, wait_s=min(request.wait_s, PULL_WAIT_S_MAX))
        return await self._ask(PULL, request, timeout_s=request.wait_s + TIMEOUT_S)

    async def read_line(self, request: RemoteReadLine) -> ReadLineAnswer:
        """See `Remote`."""
        return await self._ask(READ_LINE, request)

    async def namespaces(self, request: NamespacesRequest) -> NamespacesAnswer:
        """See `Remote`."""
        return await self._ask(NAMESPACES, request)

    async def fail_over(self, request: FailOverRequest) -> FailOverAnswer:
        """See `Remote`."""
        return await self._ask(FAIL_OVER, request, timeout_s=request.timeout_s + TIMEOUT_S)

    async def count_letters(self, request: LettersAsked) -> LettersCounted:
        """See `Remote`."""
        return await self._ask(LETTERS, request)

    async def nudge(self) -> None:
        """See `Remote`."""
        await self._ask(NUDGE, Nudge(self._here))

    async def repair(self, request: RepairRequest) -> RepairAnswer:
        """See `Remote`."""
        return await self._ask(REPAIR, request)

    async def _ask(self, method: Method[Request, Answer], request: Request, *, timeout_s: float = TIMEOUT_S) -> Answer:
        try:
            return await self._caller.call(self._there, method, request, timeout_s=timeout_s)
        except (CallLost, Unreachable) as lost:
            raise RemoteUnavailable(str(lost)) from None


def handlers_of(endpoint: Endpoint) -> Handlers:
    """What a cluster answers to others, by its real endpoint."""

    async def info(_: Done) -> ClusterInfo:
        return await endpoint.info()

    async def nudge(request: Nudge) -> Done:
        await endpoint.nudge(request.cluster)
        return Done()

    handlers = Handlers()
    handlers.add(INFO, info)
    handlers.add(PULL, endpoint.pull)
    handlers.add(READ_LINE, endpoint.read_line)
    handlers.add(NAMESPACES, endpoint.namespaces)
    handlers.add(FAIL_OVER, endpoint.fail_over)
    handlers.add(LETTERS, endpoint.count_letters)
    handlers.add(NUDGE, nudge)
    handlers.add(REPAIR, endpoint.repair)
    return handlers
