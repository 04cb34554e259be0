"""Client side of calls between hosts over gRPC."""

import asyncio
from collections import OrderedDict
from typing import Any

from fairlead.rpc.client import new_deadlines
from fairlead.rpc.hosts.caller import Caller, CallLost, Method, Request, Response, Unreachable
from fairlead.rpc.hosts.credentials import ANONYMOUS, Credentials
from fairlead.rpc.hosts.grpc_peer import Peer
from fairlead.rpc.hosts.wire import Codec, Errors

# Open connections to hosts; above it, the least recently used is closed when its calls have ended.
HOSTS_MAX = 256


class GrpcCaller:
    """Calls other hosts over gRPC, with one connection each, and `self_host` within the process."""

    def __init__(
        self,
        *,
        errors: Errors,
        self_host: str | None = None,
        local: Caller | None = None,
        hosts_max: int = HOSTS_MAX,
        credentials: Credentials = ANONYMOUS,
    ) -> None:
        """`credentials` authenticate this process to other hosts."""
        self._errors = errors
        self._credentials = credentials
        self._deadlines = new_deadlines()
        self._self_host = self_host
        self._local = local
        self._hosts_max = hosts_max
        self._peers: OrderedDict[str, Peer] = OrderedDict()
        self._let_go: set[Peer] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._codecs: dict[str, Codec[Any, Any]] = {}
        self._is_closed = False
        if credentials.tls is not None:
            credentials.tls.on_change(self.reconnect)

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """Call `method` at `host`; raise `CallLost` without a response in `timeout_s`, `Unreachable` without a host."""
        if host == self._self_host and self._local is not None:
            return await self._local.call(host, method, request, timeout_s=timeout_s)
        if not timeout_s > 0:
            raise CallLost(f"{method.name} was called with a timeout of {timeout_s} s: give more than 0")
        codec = self._codecs.get(method.name) or self._codecs.setdefault(method.name, Codec(method))
        data = codec.encode(request)
        peer = self._peer(host)
        peer.calls += 1
        try:
            answer: Response = codec.decode_answer(await peer.send(method.name, data, timeout_s=timeout_s))
        finally:
            peer.calls -= 1
            if peer.is_let_go and not peer.calls:
                self._close(peer)
        return answer

    async def close(self) -> None:
        """Close every connection; open calls fail with `CallLost`."""
        self._is_closed = True
        if self._credentials.tls is not None:
            self._credentials.tls.forget(self.reconnect)
        peers = [*self._peers.values(), *self._let_go]
        self._peers.clear()
        self._let_go.clear()
        for peer in peers:
            await peer.close()
        await asyncio.gather(*self._closing)
        self._deadlines.close()

    def reconnect(self) -> None:
        """Send new calls over new connections, for example with a renewed certificate; open calls continue."""
        for peer in self._peers.values():
            peer.reconnect()

    def _peer(self, host: str) -> Peer:
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
        peer = self._peers[host] = Peer(host, self._errors, deadlines=self._deadlines, credentials=self._credentials)
        return peer

    def _close(self, peer: Peer) -> None:
        self._let_go.discard(peer)
        closing = asyncio.create_task(peer.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
