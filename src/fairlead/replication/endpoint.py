"""The service for other clusters: streams, histories and namespaces of this cluster."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fairlead.api.clusters import Clusters
from fairlead.api.codes import code_of
from fairlead.api.errors import InvalidArgument, OutOfRange
from fairlead.core.errors import FairleadError
from fairlead.history.client import HistoryClient
from fairlead.history.messages.stream import PULL_WAIT_S_MAX, ReadBranchRequest
from fairlead.replication.admission import ClusterAdmission
from fairlead.replication.dead_letters import DeadLetters
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
from fairlead.replication.wire import (
    DEAD_LETTERS,
    ERRORS,
    FAIL_OVER,
    INFO,
    NAMESPACES,
    NUDGE,
    PULL,
    READ_BRANCH,
    REPAIR,
    ClusterCall,
    decode,
    encode,
    parts_of,
)
from fairlead.rpc import Call, RpcServer, RpcStatus, UnaryHandler
from fairlead.rpc.hosts.wire import ERROR_KEY
from fairlead.telemetry import get_log

READ_S = 15.0

_log = get_log("replication.endpoint")

Handle = Callable[[Any], Awaitable[bytes]]


class Endpoint:
    """Serves requests of other clusters, by gRPC or, in a simulation, directly: it has the methods of a `Remote`."""

    def __init__(
        self,
        *,
        clusters: Clusters,
        history: HistoryClient,
        cluster_id: str,
        shards: int,
        namespaces: Callable[[NamespacesRequest], NamespacesResponse],
        fail_over: Callable[[FailOverRequest], Awaitable[FailOverResponse]],
        on_nudge: Callable[[str], Awaitable[None]],
        repair: Callable[[RepairRequest], Awaitable[RepairResponse]],
        dead_letters: DeadLetters,
    ) -> None:
        """`namespaces` and `fail_over` handle the requests of these names; `on_nudge` is called with the name of a
        cluster that has changes.

        `repair` fetches events that this cluster lacks from others.
        """
        self._clusters = clusters
        self._history = history
        self._cluster_id = cluster_id
        self._shards = shards
        self._namespaces = namespaces
        self._fail_over = fail_over
        self._on_nudge = on_nudge
        self._repair = repair
        self._dead_letters = dead_letters

    async def info(self) -> ClusterInfo:
        """The identity of this cluster."""
        versions = self._clusters.versions
        here = self._clusters.here
        return ClusterInfo(here, self._cluster_id, versions.initial_versions[here], versions.increment, self._shards)

    async def pull(self, request: PullRequest) -> PullResponse:
        """The next tasks of one of this cluster's shards."""
        return decode(await self._pull(request), PullResponse)

    async def read_branch(self, request: RemoteReadBranch) -> ReadBranchResponse:
        """Events of one of this cluster's runs."""
        return decode(await self._read_branch(request), ReadBranchResponse)

    async def namespaces(self, request: NamespacesRequest) -> NamespacesResponse:
        """The global namespaces of this cluster that the sender shares."""
        return self._namespaces(request)

    async def fail_over(self, request: FailOverRequest) -> FailOverResponse:
        """Make a cluster the active one of a namespace."""
        return await self._fail_over(request)

    async def count_dead_letters(self, request: DeadLetterCountRequest) -> DeadLetterCount:
        """Number of dead letters here from a source cluster in a namespace."""
        count = await self._dead_letters.count_of(source=request.source, namespace_id=request.namespace_id)
        return DeadLetterCount(count)

    async def nudge(self, cluster: str) -> None:
        """Pull the namespaces of a cluster now."""
        if cluster not in self._clusters.remotes:
            raise InvalidArgument(f"cluster {self._clusters.here!r} is not connected to {cluster!r}")
        await self._on_nudge(cluster)

    async def repair(self, request: RepairRequest) -> RepairResponse:
        """Fetch events that this cluster lacks from other clusters."""
        return await self._repair(request)

    async def _pull(self, request: PullRequest) -> bytes:
        if request.source_id not in ("", self._cluster_id):
            raise OutOfRange(
                f"cluster {self._clusters.here!r} has id {self._cluster_id}, but the stream of {request.source_id} was "
                "requested: the cluster was set up anew; pull its stream from the beginning",
            )
        # Forward the shard's response as it is, without decoding it.
        timeout_s = min(max(request.wait_s, 0.0), PULL_WAIT_S_MAX) + READ_S
        return await self._history.call_shard("PullStream", request.shard_id, request, timeout_s=timeout_s)

    async def _read_branch(self, request: RemoteReadBranch) -> bytes:
        asked = ReadBranchRequest(
            request.workflow_id,
            request.run_id,
            request.items,
            request.from_event_id,
            request.to_event_id,
            request.bytes_max,
        )
        return await self._history.call(
            "ReadBranch", request.namespace_id, request.workflow_id, asked, timeout_s=READ_S
        )

    # gRPC

    def add_to(self, server: RpcServer, admission: ClusterAdmission | None = None) -> None:
        """Register the methods with a server; `admission` lets callers in."""

        async def info(_: Done) -> bytes:
            return encode(await self.info())

        async def namespaces(request: NamespacesRequest) -> bytes:
            return encode(await self.namespaces(request))

        async def fail_over(request: FailOverRequest) -> bytes:
            return encode(await self.fail_over(request))

        async def count_dead_letters(request: DeadLetterCountRequest) -> bytes:
            return encode(await self.count_dead_letters(request))

        async def nudge(request: Nudge) -> bytes:
            await self.nudge(request.cluster)
            return encode(Done())

        async def repair(request: RepairRequest) -> bytes:
            return encode(await self.repair(request))

        methods: tuple[tuple[ClusterCall[Any, Any], Handle], ...] = (
            (INFO, info),
            (PULL, self._pull),
            (READ_BRANCH, self._read_branch),
            (NAMESPACES, namespaces),
            (FAIL_OVER, fail_over),
            (DEAD_LETTERS, count_dead_letters),
            (NUDGE, nudge),
            (REPAIR, repair),
        )
        for method, handle in methods:
            answer = _answerer(method, handle, admission)
            if method.in_parts:
                server.add_stream(method.path, _in_parts(answer))
            else:
                server.add(method.path, answer)


def _in_parts(answer: UnaryHandler) -> Callable[[bytes, Call], AsyncIterator[bytes]]:
    async def answer_in_parts(data: bytes, call: Call) -> AsyncIterator[bytes]:
        for part in parts_of(await answer(data, call)):
            yield part

    return answer_in_parts


def _answerer(method: ClusterCall[Any, Any], handle: Handle, admission: ClusterAdmission | None) -> UnaryHandler:
    async def answer(data: bytes, call: Call) -> bytes:
        try:
            claims = None if admission is None else await admission.identify(call, method.name)
            request: Any = decode(data, method.request) if data else Done()
            if admission is not None:
                request = await admission.check(call, claims, method.name, request)
            return await handle(request)
        except FairleadError as failure:
            call.set_trailer(ERROR_KEY, ERRORS.encode(failure))
            raise RpcStatus(code_of(failure), str(failure)) from failure

    return answer
