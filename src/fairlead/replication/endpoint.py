"""What this cluster answers to the others: its streams, its histories, its namespaces."""

from collections.abc import AsyncIterator, Awaitable, Callable

from fairlead.cluster.wire import ERROR_KEY
from fairlead.core.errors import FairleadError
from fairlead.history.client import HistoryClient
from fairlead.history.clusters import Clusters
from fairlead.history.refusals import Refused, invalid, refused
from fairlead.history.shard_operations import PULL_WAIT_S_MAX
from fairlead.history.stream_messages import ReadLineRequest
from fairlead.replication.dead_letters import DeadLetters
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
from fairlead.replication.wire import (
    ERRORS,
    FAIL_OVER,
    INFO,
    LETTERS,
    NAMESPACES,
    NUDGE,
    PULL,
    READ_LINE,
    REPAIR,
    decode,
    encode,
    parts_of,
)
from fairlead.rpc import Call, Code, RpcServer, RpcStatus
from fairlead.telemetry import get_log

READ_S = 15.0

_log = get_log("replication.endpoint")

Handle = Callable[[bytes], Awaitable[bytes]]


class Endpoint:
    """Answers other clusters, by gRPC or, in a simulation, directly: it has the methods of a `Remote`."""

    def __init__(
        self,
        *,
        clusters: Clusters,
        history: HistoryClient,
        cluster_id: str,
        shards: int,
        namespaces: Callable[[NamespacesRequest], NamespacesAnswer],
        fail_over: Callable[[FailOverRequest], Awaitable[FailOverAnswer]],
        on_nudge: Callable[[str], Awaitable[None]],
        repair: Callable[[RepairRequest], Awaitable[RepairAnswer]],
        letters: DeadLetters,
    ) -> None:
        """`namespaces` and `fail_over` answer what is not about histories; `on_nudge` is told who has news.

        `repair` gets what this cluster lacks from others.
        """
        self._clusters = clusters
        self._history = history
        self._cluster_id = cluster_id
        self._shards = shards
        self._namespaces = namespaces
        self._fail_over = fail_over
        self._on_nudge = on_nudge
        self._repair = repair
        self._letters = letters

    async def info(self) -> ClusterInfo:
        """Who this cluster is."""
        versions = self._clusters.versions
        here = self._clusters.here
        return ClusterInfo(here, self._cluster_id, versions.initial_versions[here], versions.increment, self._shards)

    async def pull(self, request: PullRequest) -> PullAnswer:
        """The next tasks of one of the shards here."""
        return decode(await self._pull(request), PullAnswer)

    async def read_line(self, request: RemoteReadLine) -> ReadLineAnswer:
        """Events of one of the runs here."""
        return decode(await self._read_line(request), ReadLineAnswer)

    async def namespaces(self, request: NamespacesRequest) -> NamespacesAnswer:
        """The global namespaces here."""
        return self._namespaces(request)

    async def fail_over(self, request: FailOverRequest) -> FailOverAnswer:
        """Make a cluster the active one of a namespace."""
        return await self._fail_over(request)

    async def count_letters(self, request: LettersAsked) -> LettersCounted:
        """How much of what was written in a namespace could not be taken in here."""
        count = await self._letters.count_of(source=request.source, namespace_id=request.namespace_id)
        return LettersCounted(count)

    async def nudge(self, cluster: str) -> None:
        """Look at the namespaces of a cluster now."""
        if cluster not in self._clusters.remotes:
            raise invalid(f"cluster {cluster!r} is none that {self._clusters.here!r} is connected with")
        await self._on_nudge(cluster)

    async def repair(self, request: RepairRequest) -> RepairAnswer:
        """Get events from other clusters that this one lacks."""
        return await self._repair(request)

    async def _pull(self, request: PullRequest) -> bytes:
        if request.source_id not in ("", self._cluster_id):
            raise refused(
                Code.OUT_OF_RANGE,
                f"cluster {self._clusters.here!r} has the id {self._cluster_id} and not {request.source_id}, whose "
                "stream is asked for: it was set up anew; begin anew",
            )
        # As bytes: what a shard answers is what is sent.
        timeout_s = min(max(request.wait_s, 0.0), PULL_WAIT_S_MAX) + READ_S
        return await self._history.call_shard("PullStream", request.shard_id, request, timeout_s=timeout_s)

    async def _read_line(self, request: RemoteReadLine) -> bytes:
        asked = ReadLineRequest(
            request.workflow_id,
            request.run_id,
            request.items,
            request.from_event_id,
            request.to_event_id,
            request.bytes_max,
        )
        return await self._history.call("ReadLine", request.namespace_id, request.workflow_id, asked, timeout_s=READ_S)

    # By gRPC

    def add_to(self, server: RpcServer) -> None:
        """Answer at this server from now on."""

        async def info(_data: bytes) -> bytes:
            return encode(await self.info())

        async def pull(data: bytes) -> bytes:
            return await self._pull(decode(data, PULL.request))

        async def read_line(data: bytes) -> bytes:
            return await self._read_line(decode(data, READ_LINE.request))

        async def namespaces(data: bytes) -> bytes:
            return encode(await self.namespaces(decode(data, NAMESPACES.request)))

        async def fail_over(data: bytes) -> bytes:
            return encode(await self.fail_over(decode(data, FAIL_OVER.request)))

        async def count_letters(data: bytes) -> bytes:
            return encode(await self.count_letters(decode(data, LETTERS.request)))

        async def nudge(data: bytes) -> bytes:
            await self.nudge(decode(data, Nudge).cluster)
            return encode(Done())

        async def repair(data: bytes) -> bytes:
            return encode(await self.repair(decode(data, REPAIR.request)))

        for call, handle in (
            (INFO, info),
            (PULL, pull),
            (READ_LINE, read_line),
            (NAMESPACES, namespaces),
            (FAIL_OVER, fail_over),
            (LETTERS, count_letters),
            (NUDGE, nudge),
            (REPAIR, repair),
        ):
            if call.in_parts:
                server.add_stream(call.path, _in_parts(handle))
            else:
                server.add(call.path, _whole(handle))


def _whole(handle: Handle) -> Callable[[bytes, Call], Awaitable[bytes]]:
    async def answer(data: bytes, call: Call) -> bytes:
        return await _handled(handle, data, call)

    return answer


def _in_parts(handle: Handle) -> Callable[[bytes, Call], AsyncIterator[bytes]]:
    async def answer(data: bytes, call: Call) -> AsyncIterator[bytes]:
        for part in parts_of(await _handled(handle, data, call)):
            yield part

    return answer


async def _handled(handle: Handle, data: bytes, call: Call) -> bytes:
    try:
        return await handle(data)
    except FairleadError as failure:
        call.set_trailer(ERROR_KEY, ERRORS.encode(failure))
        code = Code(failure.code) if isinstance(failure, Refused) else Code.UNAVAILABLE
        raise RpcStatus(code, str(failure)) from failure
