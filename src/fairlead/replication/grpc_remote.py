"""Another cluster over gRPC: one channel, which connects again by itself."""

import asyncio
from typing import Any

import grpc

from fairlead.cluster.calls import is_cancelled
from fairlead.cluster.wire import ERROR_KEY
from fairlead.core.errors import FairleadError
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
from fairlead.replication.wire import (
    ANSWER_BYTES_MAX,
    ERRORS,
    FAIL_OVER,
    INFO,
    LETTERS,
    NAMESPACES,
    NUDGE,
    PART_BYTES_MAX,
    PULL,
    READ_LINE,
    REPAIR,
    Answer,
    Call,
    Request,
    UnreadableMessage,
    decode,
    encode,
    joined,
)

CALL_S = 10.0
READ_S = 20.0
REPAIR_S = 60.0
# An answer comes a little after the time that it may be waited for.
MARGIN_S = 5.0
_MESSAGE_BYTES_MAX = 2 * PART_BYTES_MAX

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    # A cluster that comes back is found again within this time.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 2000),
    # One that vanishes without a word is noticed within this time by the pulls that wait there.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    # Not shared, so that closing one closes its connection.
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcRemote:
    """The cluster whose frontend is at `address`, asked by the cluster `here`."""

    def __init__(self, address: str, *, here: str) -> None:
        self._address = address
        self._here = here
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._sends: dict[str, Any] = {}

    async def close(self) -> None:
        """Let go of the connection; calls under way are lost."""
        await self._channel.close(None)

    async def info(self) -> ClusterInfo:
        """Who it is."""
        return await self._ask(INFO, Done(), CALL_S)

    async def pull(self, request: PullRequest) -> PullAnswer:
        """The next tasks of one of its shards."""
        return await self._ask(PULL, request, request.wait_s + READ_S)

    async def read_line(self, request: RemoteReadLine) -> ReadLineAnswer:
        """Events of one of its runs."""
        return await self._ask(READ_LINE, request, READ_S)

    async def namespaces(self, request: NamespacesRequest) -> NamespacesAnswer:
        """Its global namespaces."""
        return await self._ask(NAMESPACES, request, CALL_S)

    async def fail_over(self, request: FailOverRequest) -> FailOverAnswer:
        """Have it make a cluster the active one of a namespace."""
        return await self._ask(FAIL_OVER, request, request.timeout_s + MARGIN_S)

    async def count_letters(self, request: LettersAsked) -> LettersCounted:
        """How much of what was written in a namespace it could not take in."""
        return await self._ask(LETTERS, request, CALL_S)

    async def nudge(self) -> None:
        """Have it look at this cluster's namespaces now."""
        await self._ask(NUDGE, Nudge(self._here), CALL_S)

    async def repair(self, request: RepairRequest) -> RepairAnswer:
        """Have it get events that it lacks."""
        return await self._ask(REPAIR, request, REPAIR_S)

    async def _ask(self, call: Call[Request, Answer], request: Request, timeout_s: float) -> Answer:
        send = self._sends.get(call.name)
        if send is None:
            kind = self._channel.unary_stream if call.in_parts else self._channel.unary_unary
            send = self._sends[call.name] = kind(call.path, None, None)
        try:
            asked: Any = send(encode(request), timeout=timeout_s)
            data = await self._parts(call, asked) if call.in_parts else await asked
        except grpc.aio.AioRpcError as failure:
            raise self._error(call.name, failure) from None
        except grpc.aio.UsageError:
            raise RemoteUnavailable(f"{call.name} at {self._address} was not asked for: it was closed") from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise RemoteUnavailable(f"{call.name} at {self._address} was not waited for: it was closed") from None
        return decode(data, call.answer)

    async def _parts(self, call: Call[Any, Any], asked: Any) -> bytes:
        parts: list[bytes] = []
        size_bytes = 0
        async for part in asked:
            parts.append(part)
            size_bytes += len(part)
            if size_bytes > ANSWER_BYTES_MAX:
                asked.cancel()
                raise UnreadableMessage(
                    f"{call.name} at {self._address} answers with more than {ANSWER_BYTES_MAX} bytes: is it of this "
                    "release?"
                )
        return joined(parts)

    def _error(self, name: str, failure: grpc.aio.AioRpcError) -> FairleadError:
        metadata: Any = failure.trailing_metadata() or ()
        for key, value in metadata:
            if key == ERROR_KEY:
                return ERRORS.decode(value)
        # It is not the other cluster that speaks here, but gRPC.
        return RemoteUnavailable(
            f"{name} at {self._address} was not answered ({failure.code().name}: {failure.details()})"
        )
