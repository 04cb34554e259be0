"""One connection of the server, from the preface to GOAWAY."""

import asyncio
import random
import ssl

from fairlead.rpc.budget import origin
from fairlead.rpc.calls import Calls
from fairlead.rpc.certificate import peer_certificate
from fairlead.rpc.frames import (
    PING,
    PREFACE,
    SETTING_HEADER_LIST_BYTES_MAX,
    SETTING_INITIAL_WINDOW,
    SETTING_STREAMS_MAX,
    STREAM_ID_MAX,
    ConnectionFault,
    ErrorCode,
    frame,
    goaway,
    settings,
)
from fairlead.rpc.host import Host
from fairlead.rpc.http2 import (
    KEEPALIVE_PING,
    Http2Connection,
    as_transport,
    close_once,
    negotiated_http2,
)
from fairlead.rpc.intake import STREAM_WINDOW_BYTES, Intake
from fairlead.rpc.memory import Account
from fairlead.rpc.outbox import TRANSPORT_BYTES_MAX
from fairlead.rpc.server_outbox import ServerOutbox
from fairlead.rpc.stream import Stream
from fairlead.rpc.trust import Chain, Trust, chain_of, trust_of

# Seconds between asking the peer to open no more streams and ignoring the streams that it still opens.
DRAIN_NOTICE_S = 1.0
# Seconds for the open calls of a client whose certificate has expired: longer than a long poll.
EXPIRED_S_MAX = 70.0

# Share by which the maximum age of a connection varies, up and down.
AGE_SPREAD = 0.1

_DRAIN_PING = b"draining"


class Connection(Http2Connection):
    """The server's side of a connection with a client."""

    _calls: Calls

    def __init__(self, host: Host) -> None:
        super().__init__(host.stranger_limits, loop=host.loop, clock=host.clock, log=host.log)
        self._host = host
        self._origin = ""
        self.account = Account(host.stranger_memory)
        self._who = ""
        self._made_s = host.clock()
        # Clients that have connected together don't reconnect together.
        self._age_share = 1 + AGE_SPREAD * (2 * random.random() - 1)  # noqa: S311 - not a secret
        self._is_preface_read = False
        # The verified chain of the client's certificate, and the authorities that accept it.
        self._trust: Trust | None = None
        self._chain: Chain | None = None
        # Time in seconds when GOAWAY was sent; None before.
        self._drained_s: float | None = None
        self._is_final = False

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send our SETTINGS at once; the peer sends its own without waiting for them."""
        self._transport = as_transport(transport)
        limits = self._host.stranger_limits
        account = self.account
        outbox = self._outbox = ServerOutbox(self._host.loop, self._transport, on_sent=self._sent, account=account)
        self._intake = Intake(self._outbox, receive_bytes_max=limits.receive_bytes_max, account=account)
        self._begin_budgets()
        encryption: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._trust = trust_of(encryption)
        self._chain = None if encryption is None or self._trust is None else chain_of(encryption)
        certificate = peer_certificate(encryption)
        self._who = _peer(self._transport)
        self._calls = Calls(
            self._host,
            outbox,
            self._intake,
            account=account,
            refusals=self._resets,
            peer=self._who,
            certificate=certificate,
            on_idle=self._end_when_idle,
            on_trust=self._raise_limits,
            on_fault=self._fail_once,
        )
        is_other = not negotiated_http2(transport)
        # A context that was chosen by host name may require more than the handshake did.
        is_missing = certificate is None and _requires_certificate(encryption)
        # A chain that can't be read can't be checked later on either.
        is_missing |= certificate is not None and self._trust is not None and self._chain is None
        # The handshake of a resumed session does not check its certificate again.
        is_missing |= self._trust is not None and self._chain is not None and not self._trust.accepts(self._chain)
        if is_other or is_missing or self._host.is_draining or self._is_one_too_many():
            self._is_ending = True
            self._transport.abort()
            return
        self._host.connections.add(self)
        self._transport.set_write_buffer_limits(high=TRANSPORT_BYTES_MAX)
        self._outbox.write(
            settings(
                (
                    (SETTING_STREAMS_MAX, limits.streams_max),
                    (SETTING_INITIAL_WINDOW, STREAM_WINDOW_BYTES),
                    (SETTING_HEADER_LIST_BYTES_MAX, limits.header_list_bytes_max),
                )
            )
        )
        self._intake.open()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Cancel all calls of the peer."""
        self._is_ending = True
        now_s = self._clock()
        spent = max(self._resets.spent_share(now_s), self._control.spent_share(now_s))
        self._host.spent_budgets.add(self._origin, spent, now_s)
        self._host.connections.discard(self)
        self._outbox.close()
        self.account.close()
        self._calls.lose()

    # Called by the server.

    @property
    def streams(self) -> int:
        """Number of open calls."""
        return len(self._calls.streams)

    @property
    def is_draining(self) -> bool:
        """Whether the peer was asked to open no more streams, or the connection ends."""
        return self._drained_s is not None or self._is_ending

    def drain(self) -> None:
        """Ask the peer to open no more streams; streams opened before it gets the GOAWAY are still served."""
        if self._drained_s is None and not self._is_ending:
            self._drained_s = self._clock()
            self._outbox.write(goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR, "draining"))
            self._outbox.write(frame(PING, 0, 0, _DRAIN_PING))

    def close(self) -> None:
        """Send GOAWAY and close, without waiting for the peer to read it."""
        if not self._is_ending:
            self._is_final = self._is_ending = True
            self._outbox.write(goaway(self._calls.last_id, ErrorCode.NO_ERROR, "stopped"))
            self._outbox.close()
        close_once(self._transport)

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def cut(self, reason: str) -> None:
        """End the connection, and free what it holds at once."""
        self._fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason))
        self.account.close()

    def check(self, now_s: float) -> None:
        """Enforce time limits: end a connection with a late preface, ping a silent peer, abort if the ping fails."""
        limits = self._host.limits
        if self._is_ending:
            return
        self._calls.check(now_s)
        if self._has_ended(now_s):
            return
        if self._drained_s is not None and now_s - self._drained_s > DRAIN_NOTICE_S:
            self._finalize()
        if (not self._is_settled or self._block) and now_s - self._begun_s > limits.preface_s_max:
            reason = f"no complete SETTINGS or headers within {limits.preface_s_max} s"
            self._fail(ConnectionFault(ErrorCode.SETTINGS_TIMEOUT, reason))
        elif self._pinged_s is not None:
            if now_s - self._pinged_s > limits.keepalive_timeout_s:
                self._transport.abort()
        elif now_s - self._heard_s > limits.keepalive_s:
            self._pinged_s = now_s
            self._outbox.write(frame(PING, 0, 0, KEEPALIVE_PING))

    def _has_ended(self, now_s: float) -> bool:
        """Whether the connection ends, because of its certificate or its age or for any other reason."""
        self._check_certificate(now_s)
        self._check_age(now_s)
        return self._is_ending

    def _check_certificate(self, now_s: float) -> None:
        """End the connection of a client whose certificate has expired or whose authority was withdrawn."""
        if self._trust is None or self._chain is None or self._trust.accepts(self._chain):
            return
        if self._trust.has_withdrawn(self._chain):
            self._log.warning("rpc connection closed: the authority of its certificate is withdrawn", peer=self._who)
            self.close()
        elif self._drained_s is None:
            # The client may have a new certificate already: its open calls may end.
            self._log.info("rpc connection drained: its certificate has expired", peer=self._who)
            self.drain()
        elif now_s - self._drained_s > EXPIRED_S_MAX:
            self.close()

    def _check_age(self, now_s: float) -> None:
        """Ask the client of an old connection to open another one, and close it when its open calls have had time."""
        age_s_max = self._host.age_s_max * self._age_share
        if age_s_max and now_s - self._made_s > age_s_max:
            self.drain()
            if self._drained_s is not None and now_s - self._drained_s > self._host.age_grace_s:
                self.close()

    def _begin_budgets(self) -> None:
        """Begin with less than full budgets if earlier connections of the same address have spent theirs."""
        self._origin = origin(self._transport.get_extra_info("peername"))
        now_s = self._clock()
        share = self._host.spent_budgets.share_left(self._origin, now_s)
        if share < 1:
            self._resets.begin_with(share, now_s)
            self._control.begin_with(share, now_s)

    def _raise_limits(self) -> None:
        """Replace the limits of strangers."""
        limits = self._host.limits
        self._resets.raise_to(burst_max=limits.resets_burst_max, per_s_max=limits.resets_per_s_max)
        self.account.move(self._host.memory)
        self._intake.raise_to(limits.receive_bytes_max)
        self._outbox.write(settings(((SETTING_STREAMS_MAX, limits.streams_max),)))

    def _is_one_too_many(self) -> bool:
        host = self._host
        if len(host.connections) >= host.limits.connections_max:
            host.log.warning("rpc connection refused: too many are open", connections=len(host.connections))
            return True
        return host.descriptors.is_reserved(self._transport)

    def _begin(self, data: bytes) -> int:
        if self._is_preface_read:
            return 0
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with the HTTP/2 preface")
        if len(data) < len(PREFACE):
            return -1
        self._is_preface_read = True
        return len(PREFACE)

    def _lost(self, reason: str) -> None:  # noqa: ARG002 - no caller is left
        self._calls.lose()

    def _last_peer_id(self) -> int:
        return self._calls.last_id

    def _ping_answered(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self._drained_s is not None:
            self._finalize()

    def _sent(self, stream: Stream) -> None:
        self._calls.sent(stream)

    def _finalize(self) -> None:
        if not self._is_final:
            self._is_final = True
            self._outbox.write(goaway(self._calls.last_id, ErrorCode.NO_ERROR, "draining"))
            self._calls.finalize()

    def _fail_once(self, fault: ConnectionFault) -> None:
        if not self._is_ending:
            self._fail(fault)

    def _end_when_idle(self) -> None:
        if not self._is_ending:
            self._end()


def _requires_certificate(encryption: ssl.SSLObject | None) -> bool:
    return encryption is not None and encryption.context.verify_mode is ssl.CERT_REQUIRED


def _peer(transport: asyncio.Transport) -> str:
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "")
