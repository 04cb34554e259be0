"""Another cluster over gRPC: one channel, which reconnects automatically."""

from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from fairlead.core.errors import FairleadError
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
from fairlead.replication.wire import (
    ANSWER_BYTES_MAX,
    DEAD_LETTERS,
    ERRORS,
    FAIL_OVER,
    INFO,
    NAMESPACES,
    NUDGE,
    PART_BYTES_MAX,
    PULL,
    READ_BRANCH,
    REPAIR,
    ClusterCall,
    Request,
    Response,
    UnreadableMessage,
    decode,
    encode,
    joined,
)
from fairlead.rpc.client import CallFailed, Channel, ChannelLimits, Metadata, RemoteStatus
from fairlead.rpc.hosts.credentials import ANONYMOUS, Credentials
from fairlead.rpc.hosts.wire import ERROR_KEY

CALL_S = 10.0
READ_S = 20.0
REPAIR_S = 60.0
# Seconds added to the request's own timeout before the call times out.
MARGIN_S = 5.0
_MESSAGE_BYTES_MAX = 2 * PART_BYTES_MAX

LIMITS = ChannelLimits(
    message_bytes_max=_MESSAGE_BYTES_MAX,
    receive_bytes_max=ANSWER_BYTES_MAX,
    # Bounds the time until a restarted cluster is connected again.
    reconnect_first_s=0.1,
    reconnect_max_s=1.0,
    # Bounds the time until waiting pulls notice that the connection is lost.
    keepalive_s=10.0,
)


class GrpcRemote:
    """The cluster with its frontend at `address`; `here` is the cluster that calls."""

    def __init__(self, address: str, *, here: str, credentials: Credentials = ANONYMOUS) -> None:
        """`credentials` identify the calling cluster to that cluster."""
        self._address = address
        self._here = here
        self._channel = Channel(address, limits=LIMITS, tls=credentials.channel_tls)
        self._credentials = credentials
        if credentials.tls is not None:
            credentials.tls.on_change(self.reconnect)

    async def close(self) -> None:
        """Close the connection; pending calls fail."""
        if self._credentials.tls is not None:
            self._credentials.tls.forget(self.reconnect)
        await self._channel.close()

    def reconnect(self) -> None:
        """Send new calls over a new connection, for example with a renewed certificate."""
        self._channel.reconnect()

    def info(self) -> Coroutine[Any, Any, ClusterInfo]:
        """The identity of that cluster."""
        return self._ask(INFO, Done(), CALL_S)

    def pull(self, request: PullRequest) -> Coroutine[Any, Any, PullResponse]:
        """The next tasks of one of its shards."""
        return self._ask(PULL, request, request.wait_s + READ_S)

    def read_branch(self, request: RemoteReadBranch) -> Coroutine[Any, Any, ReadBranchResponse]:
        """Events of one of its runs."""
        return self._ask(READ_BRANCH, request, READ_S)

    def namespaces(self, request: NamespacesRequest) -> Coroutine[Any, Any, NamespacesResponse]:
        """Its global namespaces."""
        return self._ask(NAMESPACES, request, CALL_S)

    def fail_over(self, request: FailOverRequest) -> Coroutine[Any, Any, FailOverResponse]:
        """Request that the cluster make `request.to` the active cluster of a namespace."""
        return self._ask(FAIL_OVER, request, request.timeout_s + MARGIN_S)

    def count_dead_letters(self, request: DeadLetterCountRequest) -> Coroutine[Any, Any, DeadLetterCount]:
        """Number of its dead letters from a source cluster in a namespace."""
        return self._ask(DEAD_LETTERS, request, CALL_S)

    async def nudge(self) -> None:
        """Request that the cluster pull this cluster's namespaces now."""
        await self._ask(NUDGE, Nudge(self._here), CALL_S)

    def repair(self, request: RepairRequest) -> Coroutine[Any, Any, RepairResponse]:
        """Request that the cluster fetch the events that it lacks."""
        return self._ask(REPAIR, request, REPAIR_S)

    async def _ask(self, call: ClusterCall[Request, Response], request: Request, timeout_s: float) -> Response:
        data, headers = encode(request), self._credentials.headers
        try:
            if call.in_parts:
                return decode(await self._parts(call, data, timeout_s, headers), call.answer)
            return decode(
                await self._channel.unary(call.path, data, timeout_s=timeout_s, metadata=headers), call.answer
            )
        except CallFailed as failure:
            raise self._error(call.name, failure) from None

    async def _parts(self, call: ClusterCall[Any, Any], request: bytes, timeout_s: float, headers: Metadata) -> bytes:
        parts: list[bytes] = []
        size_bytes = 0
        async with aclosing(
            self._channel.stream(call.path, request, timeout_s=timeout_s, metadata=headers)
        ) as received:
            async for part in received:
                parts.append(part)
                size_bytes += len(part)
                if size_bytes > ANSWER_BYTES_MAX:
                    raise UnreadableMessage(
                        f"{call.name} at {self._address} sent more than {ANSWER_BYTES_MAX} bytes: check that both "
                        "clusters run the same release"
                    )
        return joined(parts)

    def _error(self, name: str, failure: CallFailed) -> FairleadError:
        error = failure.trailers.get(ERROR_KEY) if isinstance(failure, RemoteStatus) else None
        if isinstance(error, bytes):
            return ERRORS.decode(error)
        # The error comes from gRPC, not from the other cluster.
        return RemoteUnavailable(f"{name} at {self._address} failed ({failure.code.name}: {failure})")
