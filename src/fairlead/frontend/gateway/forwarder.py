"""Forwards calls to the frontend of another cluster, unchanged, and returns the response unchanged."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from fairlead.api.principals import current_principal
from fairlead.frontend.gateway.redirection import REDIRECTION_HEADER
from fairlead.rpc import MESSAGE_BYTES_SETTING_MAX, Call, Code, RpcStatus
from fairlead.rpc.client import CallFailed, Channel, ChannelLimits
from fairlead.rpc.hosts.credentials import ANONYMOUS, AUTHORIZATION_HEADER, PRINCIPAL_HEADER, Credentials

if TYPE_CHECKING:
    from fairlead.rpc.tls.client_side import ClientSide

# Headers that belong to one connection, or that the sender sets itself.
_NOT_SENT_ON = frozenset(("user-agent", "host", "content-length", REDIRECTION_HEADER))
# Prefixes of headers that are not forwarded: they concern one connection, or would let a caller choose its principal.
_OWN_PREFIXES = ("grpc-", "fairlead-", "principal", "temporal-principal")
# The frontends at both ends check the size of messages, so the channel need not.
LIMITS = ChannelLimits(message_bytes_max=MESSAGE_BYTES_SETTING_MAX)


class Forwarder:
    """Calls the frontends of other clusters, with one connection to each address."""

    def __init__(
        self,
        address: Callable[[str], str],
        credentials: Callable[[str], Credentials] = lambda _: ANONYMOUS,
        *,
        credential_headers: Collection[str] = (),
    ) -> None:
        """`address` returns the address of a cluster's frontend, `credentials` returns this cluster's credentials for
        it.

        With them, the other cluster trusts that this one has authorized the caller, and the caller's own credentials
        are not forwarded. Without them, the caller's credentials are forwarded. `credential_headers` are the names
        of headers that carry credentials, in addition to `authorization`.
        """
        self._address = address
        self._credentials = credentials
        self._credential_headers = frozenset((AUTHORIZATION_HEADER, *credential_headers))
        self._channels: dict[str, Channel] = {}
        # The client sides of TLS to whose changes this object listens.
        self._sides: list[ClientSide] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, cluster: str, data: bytes, call: Call) -> bytes:
        """Forward a call; returns the other cluster's response or raises its status.

        A cancellation of the call is forwarded too.
        """
        address = self._address(cluster)
        credentials = self._credentials(address)
        channel = self._channel(cluster, address, credentials)
        is_vouched = bool(credentials.headers) or (credentials.tls is not None and bool(credentials.tls.certificate))
        left_out = _NOT_SENT_ON | self._credential_headers if is_vouched else _NOT_SENT_ON
        headers = _headers(call, credentials, left_out)
        try:
            return await channel.unary(call.path, data, timeout_s=call.remaining_s(), metadata=headers)
        except CallFailed as failure:
            raise _status(cluster, failure) from None

    async def close(self) -> None:
        """Close all connections."""
        for side in self._sides:
            side.forget(self.reconnect)
        self._sides.clear()
        channels = [*self._channels.values()]
        self._channels.clear()
        for channel in channels:
            await channel.close()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def reconnect(self) -> None:
        """Send new calls over new connections, for example with a renewed certificate; open calls continue."""
        for channel in self._channels.values():
            channel.reconnect()

    def _channel(self, cluster: str, address: str, credentials: Credentials) -> Channel:
        before = self._channels.get(cluster)
        if before is not None and before.address == address:
            return before
        if before is not None:
            closing = asyncio.get_running_loop().create_task(before.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        if credentials.tls is not None and credentials.tls not in self._sides:
            credentials.tls.on_change(self.reconnect)
            self._sides.append(credentials.tls)
        channel = self._channels[cluster] = Channel(address, limits=LIMITS, tls=credentials.channel_tls)
        return channel


def _headers(call: Call, credentials: Credentials, left_out: Collection[str]) -> tuple[tuple[str, str | bytes], ...]:
    headers: list[tuple[str, str | bytes]] = [(REDIRECTION_HEADER, "false"), *credentials.headers]
    kind, name = current_principal()
    if name and name.isascii() and name.isprintable():
        headers.append((PRINCIPAL_HEADER, f"{kind}/{name}"))
    sent: Mapping[str, str | bytes] = {**call.metadata, **call.binary_metadata}
    headers += [
        (name, value) for name, value in sent.items() if name not in left_out and not name.startswith(_OWN_PREFIXES)
    ]
    return tuple(headers)


def _status(cluster: str, failure: CallFailed) -> RpcStatus:
    message = failure.message
    if failure.code is Code.UNAVAILABLE and failure.details is None:
        message = f"no response from cluster {cluster}, in which the namespace is active: {message}"
    return RpcStatus(failure.code, message, failure.details)
