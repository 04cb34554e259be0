"""Calls between clusters over the simulated network: messages are encoded, and may be late, repeated or lost."""

from typing import TypeVar

from msgspec.structs import replace

from fairlead.replication.endpoint import Endpoint
from fairlead.replication.messages import (
    ClusterInfo,
    DeadLetterCount,
    DeadLetterCountRequest,
    Done,
    FailOverRequest,
    FailOverResponse,
    NamespacesRequest,
    NamespacesResponse,
    Nudge,
    PullRequest,
    PullResponse,
    ReadBranchResponse,
    RemoteReadBranch,
    RepairRequest,
    RepairResponse,
)
from fairlead.replication.remote import RemoteUnavailable
from fairlead.rpc.hosts.caller import CallLost, Handlers, Method, Unreachable
from tests.simulators.matching.network import SimCaller

Request = TypeVar("Request")
Response = TypeVar("Response")

TIMEOUT_S = 2.0
# Seconds that a pull may wait for new events: short, so that a cut connection is noticed soon.
PULL_WAIT_S_MAX = 3.0

INFO = Method("replication.Info", Done, ClusterInfo)
PULL = Method("replication.Pull", PullRequest, PullResponse)
READ_BRANCH = Method("replication.ReadBranch", RemoteReadBranch, ReadBranchResponse)
NAMESPACES = Method("replication.Namespaces", NamespacesRequest, NamespacesResponse)
FAIL_OVER = Method("replication.FailOver", FailOverRequest, FailOverResponse)
DEAD_LETTERS = Method("replication.CountDeadLetters", DeadLetterCountRequest, DeadLetterCount)
NUDGE = Method("replication.Nudge", Nudge, Done)
REPAIR = Method("replication.RemoteRepair", RepairRequest, RepairResponse)


class SimRemote:
    """The `Remote` by which one cluster calls another."""

    def __init__(self, here: str, there: str, caller: SimCaller) -> None:
        self._here = here
        self._there = there
        self._caller = caller

    async def info(self) -> ClusterInfo:
        """See `Remote`."""
        return await self._ask(INFO, Done())

    async def pull(self, request: PullRequest) -> PullResponse:
        """See `Remote`."""
        request = replace(request, wait_s=min(request.wait_s, PULL_WAIT_S_MAX))
        return await self._ask(PULL, request, timeout_s=request.wait_s + TIMEOUT_S)

    async def read_branch(self, request: RemoteReadBranch) -> ReadBranchResponse:
        """See `Remote`."""
        return await self._ask(READ_BRANCH, request)

    async def namespaces(self, request: NamespacesRequest) -> NamespacesResponse:
        """See `Remote`."""
        return await self._ask(NAMESPACES, request)

    async def fail_over(self, request: FailOverRequest) -> FailOverResponse:
        """See `Remote`."""
        return await self._ask(FAIL_OVER, request, timeout_s=request.timeout_s + TIMEOUT_S)

    async def count_dead_letters(self, request: DeadLetterCountRequest) -> DeadLetterCount:
        """See `Remote`."""
        return await self._ask(DEAD_LETTERS, request)

    async def nudge(self) -> None:
        """See `Remote`."""
        await self._ask(NUDGE, Nudge(self._here))

    async def repair(self, request: RepairRequest) -> RepairResponse:
        """See `Remote`."""
        return await self._ask(REPAIR, request)

    async def _ask(
        self, method: Method[Request, Response], request: Request, *, timeout_s: float = TIMEOUT_S
    ) -> Response:
        try:
            return await self._caller.call(self._there, method, request, timeout_s=timeout_s)
        except (CallLost, Unreachable) as lost:
            raise RemoteUnavailable(str(lost)) from None


def handlers_of(endpoint: Endpoint) -> Handlers:
    """The handlers for calls of other clusters, with the real endpoint."""

    async def info(_: Done) -> ClusterInfo:
        return await endpoint.info()

    async def nudge(request: Nudge) -> Done:
        await endpoint.nudge(request.cluster)
        return Done()

    handlers = Handlers()
    handlers.add(INFO, info)
    handlers.add(PULL, endpoint.pull)
    handlers.add(READ_BRANCH, endpoint.read_branch)
    handlers.add(NAMESPACES, endpoint.namespaces)
    handlers.add(FAIL_OVER, endpoint.fail_over)
    handlers.add(DEAD_LETTERS, endpoint.count_dead_letters)
    handlers.add(NUDGE, nudge)
    handlers.add(REPAIR, endpoint.repair)
    return handlers
