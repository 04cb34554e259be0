"""Sends a call on to the frontend of another cluster, as it came, and brings back its answer, as that came."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from fairlead.cluster.calls import is_cancelled
from fairlead.cluster.grpc_caller import CHANNEL_OPTIONS
from fairlead.rpc import Call, Code, RpcStatus

# Temporal's header: with "false", a call is answered where it arrives. What was sent on once is never sent on again.
REDIRECTION_HEADER = "xdc-redirection"
DETAILS_HEADER = "grpc-status-details-bin"
# Of one connection only, or put there by the one who sends.
_NOT_SENT_ON = frozenset(("user-agent", "host", "content-length", REDIRECTION_HEADER))


class Forwarder:
    """Calls the frontends of other clusters, with one connection to each address."""

    def __init__(self, address: Callable[[str], str]) -> None:
        """`address` tells where the frontend of a cluster is."""
        self._address = address
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, cluster: str, data: bytes, call: Call) -> bytes:
        """The other cluster's answer, or its status; it is told when the caller here has gone."""
        send: Any = self._channel(cluster).unary_unary(call.path, None, None)
        try:
            answer: bytes = await send(data, timeout=call.remaining_s(), metadata=_headers(call))
        except grpc.aio.AioRpcError as failure:
            raise _status(cluster, failure) from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise RpcStatus(Code.UNAVAILABLE, f"cluster {cluster} is no longer connected with: try again") from None
        return answer

    async def close(self) -> None:
        """Let go of all connections."""
        channels = [channel for _, channel in self._channels.values()]
        self._channels.clear()
        for channel in channels:
            await channel.close(None)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _channel(self, cluster: str) -> grpc.aio.Channel:
        address = self._address(cluster)
        before = self._channels.get(cluster)
        if before is not None and before[0] == address:
            return before[1]
        if before is not None:
            closing = asyncio.get_running_loop().create_task(before[1].close(None))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        channel = grpc.aio.insecure_channel(address, options=[*CHANNEL_OPTIONS, ("grpc.enable_retries", 0)])
        self._channels[cluster] = (address, channel)
        return channel


def is_redirectable(call: Call) -> bool:
    """Whether a call may be sent on: it has not been already, and its caller does not mind."""
    return call.metadata.get(REDIRECTION_HEADER, "").lower() != "false"


def _headers(call: Call) -> list[tuple[str, str | bytes]]:
    headers: list[tuple[str, str | bytes]] = [(REDIRECTION_HEADER, "false")]
    sent: Mapping[str, str | bytes] = {**call.metadata, **call.binary_metadata}
    headers += [
        (name, value) for name, value in sent.items() if name not in _NOT_SENT_ON and not name.startswith("grpc-")
    ]
    return headers


def _status(cluster: str, failure: grpc.aio.AioRpcError) -> RpcStatus:
    trailers: Any = failure.trailing_metadata() or ()
    details = next((value for name, value in trailers if name == DETAILS_HEADER and isinstance(value, bytes)), None)
    code, message = Code(failure.code().value[0]), failure.details() or ""
    if code is Code.UNAVAILABLE and details is None:
        message = f"cluster {cluster}, where the namespace is active, did not answer ({message})"
    return RpcStatus(code, message, details)
