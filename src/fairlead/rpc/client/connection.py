"""One connection of the client, from its preface to GOAWAY."""

import asyncio
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from fairlead.aio.deadlines import Deadlines
from fairlead.rpc.client.call import ClientCall
from fairlead.rpc.client.calls import ClientCalls
from fairlead.rpc.client.client_outbox import ClientOutbox
from fairlead.rpc.frames import (
    PING,
    PREFACE,
    SETTING_ENABLE_PUSH,
    SETTING_HEADER_LIST_BYTES_MAX,
    SETTING_INITIAL_WINDOW,
    SETTING_STREAMS_MAX,
    ErrorCode,
    error_name,
    frame,
    goaway,
    settings,
)
from fairlead.rpc.http2 import (
    CUT_S,
    KEEPALIVE_PING,
    Http2Connection,
    as_transport,
    close_once,
    negotiated_http2,
)
from fairlead.rpc.intake import STREAM_WINDOW_BYTES, Intake
from fairlead.rpc.limits import ChannelLimits
from fairlead.rpc.outbox import TRANSPORT_BYTES_MAX

# Seconds in which an overdue answer to a ping may still be read.
_LAST_LOOK_S = 0.05


class ClientConnection(Http2Connection):
    """The client's side of a connection with a server.

    `on_change` is called when the connection is ready for calls, takes no more of them, or is lost.
    """

    _calls: ClientCalls
    _outbox: ClientOutbox

    def __init__(
        self,
        limits: ChannelLimits,
        *,
        loop: asyncio.AbstractEventLoop,
        log: FilteringBoundLogger,
        keepalive_s: float,
        deadlines: Deadlines[ClientCall],
        on_change: Callable[["ClientConnection"], None],
    ) -> None:
        super().__init__(limits, loop=loop, clock=loop.time, log=log)
        self._channel_limits = limits
        self._keepalive_s = keepalive_s
        self._deadlines = deadlines
        self._keepalive_timer: asyncio.TimerHandle | None = None
        # Whether the answer to the last ping is overdue.
        self._is_suspect = False
        self._cut_timer: asyncio.TimerHandle | None = None
        self._on_change = on_change
        # Reason for the end, once the connection ends.
        self.end_reason: str | None = None
        self.is_lost = False
        # Whether the server has asked us to send fewer pings.
        self.is_told_to_calm = False

    @property
    def calls(self) -> ClientCalls:
        """The calls of this connection; there are none before it is made."""
        return self._calls

    @property
    def header_list_bytes_max(self) -> int:
        """Bytes of a call's headers that the server accepts."""
        return self._outbox.header_list_bytes_max

    @property
    def is_ready(self) -> bool:
        """Whether new calls can be sent."""
        return self._is_settled and not self._is_ending and self._calls.is_accepting

    @property
    def was_useful(self) -> bool:
        """Whether the connection lasted long enough for a call; otherwise the next attempt waits."""
        return self._is_settled and self._calls.last_id > 0

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and our SETTINGS.

        Calls wait for the server's SETTINGS, so a call that still waits was never sent.
        """
        self._transport = as_transport(transport)
        limits = self._channel_limits
        outbox = self._outbox = ClientOutbox(self._loop, self._transport, on_room=self._has_room)
        self._intake = Intake(outbox, receive_bytes_max=limits.receive_bytes_max)
        self._calls = ClientCalls(
            limits, outbox, self._intake, clock=self._clock, deadlines=self._deadlines, on_idle=self._idle
        )
        if not negotiated_http2(transport):
            self._is_ending = True
            self.end_reason = "the server did not choose HTTP/2 in the TLS handshake"
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=TRANSPORT_BYTES_MAX)
        outbox.write(
            PREFACE
            + settings(
                (
                    (SETTING_ENABLE_PUSH, 0),
                    (SETTING_INITIAL_WINDOW, STREAM_WINDOW_BYTES),
                    (SETTING_HEADER_LIST_BYTES_MAX, limits.header_list_bytes_max),
                )
            )
        )
        self._intake.open()

    def eof_received(self) -> bool:
        """Read the last responses, and close."""
        self._finish_turns()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        self._is_ending = self.is_lost = True
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        self._lost(str(exc) if exc else "the server closed the connection")
        self._outbox.close()

    # Called by the channel.

    def open(self, call: ClientCall) -> None:
        """Send a call; raises NotSent. While calls are open, a silent server is pinged, and cut if it stays silent."""
        self._calls.open(call)
        if not self._calls.is_accepting:
            # The connection has used its last stream id.
            self._on_change(self)
        if self._keepalive_timer is None:
            self._keepalive_timer = self._loop.call_at(self._heard_s + self._keepalive_s, self._check)

    def give(self, call: ClientCall, size: int) -> None:
        """Give back the window of a message that the caller has read."""
        if not call.is_done:
            self._intake.give(call, size)

    def retire(self) -> None:
        """Take no more calls, and close when the open ones have ended."""
        if self._calls.is_accepting:
            self._calls.is_accepting = False
            self._on_change(self)
        if not self._calls.number:
            self._idle()

    def close(self, reason: str) -> None:
        """Close now; open calls fail."""
        if not self._is_ending:
            self._is_ending = True
            self._outbox.write(goaway(0, ErrorCode.NO_ERROR))
            self._lost(reason)
            self._outbox.close()
        close_once(self._transport)
        if self._cut_timer is None and not self.is_lost:
            self._cut_timer = self._loop.call_later(CUT_S, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Cut the connection; open calls fail."""
        self._is_ending = True
        self._lost(reason)
        self._transport.abort()

    def _check(self) -> None:
        """Ping a silent server, and cut a server that does not react to the ping."""
        self._keepalive_timer = None
        if self._is_ending or not self._calls.number:
            return
        now_s, timeout_s = self._clock(), self._limits.keepalive_timeout_s
        if self._pinged_s is not None:
            due_s = self._pinged_s + timeout_s
            if now_s >= due_s and self._is_suspect:
                self.abort(f"the server did not react to a ping within {timeout_s} s")
                return
            if now_s >= due_s:
                # Read once more before the end: the event loop may have been busy while the answer came.
                self._is_suspect = True
                due_s = now_s + _LAST_LOOK_S
        elif now_s >= self._heard_s + self._keepalive_s:
            self._pinged_s = now_s
            self._is_suspect = False
            self._outbox.write(frame(PING, 0, 0, KEEPALIVE_PING))
            due_s = now_s + min(timeout_s, self._keepalive_s)
        else:
            due_s = self._heard_s + self._keepalive_s
        self._keepalive_timer = self._loop.call_at(due_s, self._check)

    def _has_room(self) -> None:
        self._calls.resume()

    def _idle(self) -> None:
        if not self._calls.is_accepting and not self._is_ending:
            self.close("it takes no more calls")

    def _lost(self, reason: str) -> None:
        if self.end_reason is None:
            self.end_reason = reason
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        self._calls.lose(self.end_reason)
        self._on_change(self)

    def _last_peer_id(self) -> int:
        return 0

    def _settled(self) -> None:
        self._on_change(self)

    def _set(self, name: int, value: int) -> None:
        if name == SETTING_STREAMS_MAX:
            self._calls.streams_max = value
            self._calls.resume()
        else:
            super()._set(name, value)

    def _going_away(self, last_id: int, code: int, reason: str) -> None:
        is_calm = code == ErrorCode.NO_ERROR
        self.is_told_to_calm = code == ErrorCode.ENHANCE_YOUR_CALM
        text = f"the server closes the connection ({reason or error_name(code)})"
        if not is_calm:
            self._log.info("rpc server sent GOAWAY", code=error_name(code), reason=reason)
        self._calls.go_away(last_id, text)
        self._on_change(self)
        if not self._calls.number:
            self._idle()
