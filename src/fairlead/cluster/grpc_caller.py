"""A caller's side of calls by gRPC."""

import asyncio
from collections import OrderedDict
from typing import Any, TypeAlias

import grpc

from fairlead.cluster.calls import Answer, Caller, CallLost, Method, Request, UnknownMethod, Unreachable, is_cancelled
from fairlead.cluster.wire import ERROR_KEY, MESSAGE_BYTES_MAX, SERVICE, Codec, Errors
from fairlead.core.errors import FairleadError

# Connections that are kept; of more hosts, the one that was called longest ago is let go when its calls have ended.
HOSTS_MAX = 256

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # A host that comes back is found again within this time. Meanwhile calls fail at once, and go elsewhere.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # What a connection may take to come about before it is tried anew.
    ("grpc.min_reconnect_backoff_ms", 2000),
    # A host that vanishes without a word is noticed within this time by the polls that wait there.
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.http2.ping_timeout_ms", 5000),
    ("grpc.http2.max_pings_without_data", 0),
    # Hosts are called by their addresses, never by way of a proxy.
    ("grpc.enable_http_proxy", 0),
    # Not shared with other callers of this process, so that closing one closes its connections.
    ("grpc.use_local_subchannel_pool", 1),
)

_Send: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"

# How gRPC begins to say that there was no connection to send a request on.
_NEVER_SENT = ("failed to connect to all addresses", "errors resolving ")


class _Peer:
    """The connection to one host, what has been called on it, and how many calls are under way."""

    __slots__ = ("calls", "channel", "is_let_go", "sends")

    def __init__(self, host: str) -> None:
        self.channel = grpc.aio.insecure_channel(host, options=CHANNEL_OPTIONS)
        self.sends: dict[str, _Send] = {}
        self.calls = 0
        self.is_let_go = False

    def send(self, method_name: str) -> _Send:
        send = self.channel.unary_unary(f"/{SERVICE}/{method_name}", None, None)
        self.sends[method_name] = send
        return send


class GrpcCaller:
    """Calls other hosts by gRPC, one connection each, and `self_host` without leaving the process."""

    def __init__(
        self, *, errors: Errors, self_host: str | None = None, local: Caller | None = None, hosts_max: int = HOSTS_MAX
    ) -> None:
        self._errors = errors
        self._self_host = self_host
        self._local = local
        self._hosts_max = hosts_max
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._let_go: set[_Peer] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._codecs: dict[str, Codec[Any, Any]] = {}
        self._is_closed = False

    async def call(self, host: str, method: Method[Request, Answer], request: Request, *, timeout_s: float) -> Answer:
        """Ask `host`; `CallLost` if it does not answer within `timeout_s`, `Unreachable` if it is not there."""
        if host == self._self_host and self._local is not None:
            return await self._local.call(host, method, request, timeout_s=timeout_s)
        if not timeout_s > 0:
            raise CallLost(f"{method.name} was to be answered within {timeout_s} s: allow it some time")
        codec = self._codecs.get(method.name) or self._codecs.setdefault(method.name, Codec(method))
        data = codec.encode(request)
        peer = self._peer(host)
        send = peer.sends.get(method.name) or peer.send(method.name)
        peer.calls += 1
        try:
            answer: Answer = codec.decode_answer(await send(data, timeout=timeout_s))
        except grpc.aio.AioRpcError as failure:
            raise self._error(host, method.name, failure) from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise CallLost(f"{method.name} at {host!r} was not waited for: this caller was closed") from None
        finally:
            peer.calls -= 1
            if peer.is_let_go and not peer.calls:
                self._close(peer)
        return answer

    async def close(self) -> None:
        """Close every connection; calls under way are lost."""
        self._is_closed = True
        peers = [*self._peers.values(), *self._let_go]
        self._peers.clear()
        self._let_go.clear()
        for peer in peers:
            await peer.channel.close(None)
        await asyncio.gather(*self._closing)

    def _peer(self, host: str) -> _Peer:
        peer = self._peers.get(host)
        if peer is not None:
            self._peers.move_to_end(host)
            return peer
        if self._is_closed:
            raise Unreachable(f"this caller is closed: it can't reach {host!r}")
        if len(self._peers) >= self._hosts_max:
            _, oldest = self._peers.popitem(last=False)
            oldest.is_let_go = True
            self._let_go.add(oldest)
            if not oldest.calls:
                self._close(oldest)
        peer = self._peers[host] = _Peer(host)
        return peer

    def _close(self, peer: _Peer) -> None:
        self._let_go.discard(peer)
        closing = asyncio.create_task(peer.channel.close(None))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _error(self, host: str, method_name: str, failure: grpc.aio.AioRpcError) -> FairleadError:
        metadata: Any = failure.trailing_metadata() or ()
        for key, value in metadata:
            if key == ERROR_KEY:
                return self._errors.decode(value)
        # It is not the other host that speaks here, but gRPC.
        code, details = failure.code(), failure.details() or ""
        if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NEVER_SENT):
            return Unreachable(f"{method_name} did not get to {host!r} ({details}): ask for the owner again")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return UnknownMethod(
                f"{host!r} has no method {method_name!r} ({details}): is it of another release or role?"
            )
        return CallLost(f"{method_name} at {host!r} was not answered ({code.name}: {details}): it may be carried out")
