"""Limits on one peer: sizes, counts, rates and waiting times."""

from dataclasses import dataclass

from fairlead.core.errors import FixRequest

KIB = 1024
MIB = 1024 * KIB

# Bytes beyond gRPC's default message limit of 4 MiB: a payload of 4 MiB must fit with the message around it.
MESSAGE_HEADROOM_BYTES = 512 * KIB
MESSAGE_BYTES_DEFAULT = 4 * MIB + MESSAGE_HEADROOM_BYTES
# Upper bound of the setting for the message size, in bytes: the server holds each whole message in memory.
MESSAGE_BYTES_SETTING_MAX = 64 * MIB


class InvalidLimits(FixRequest):
    """Limits that contradict each other or the protocol."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits that servers and clients have in common; those on bytes and frames hold per connection."""

    # Bytes of a request or response message, after decompression.
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    # Bytes of a call's header names and values, plus 32 for each header, as HTTP/2 counts.
    header_list_bytes_max: int = 32 * KIB
    # Bytes of unfinished messages that the peer sends.
    receive_bytes_max: int = 64 * MIB
    # Bytes of messages that the peer has not read. Above it new calls fail; above twice as much, large responses too.
    send_bytes_max: int = 64 * MIB
    # Two budgets of a peer: one for resets and refused calls, one for control frames and tiny DATA frames. Each allows
    # a burst, then a rate per second. A peer that exceeds a budget is cut off.
    resets_burst_max: int = 5_000
    resets_per_s_max: int = 500
    control_frames_burst_max: int = 2_000
    control_frames_per_s_max: int = 500
    # Seconds of silence until the peer gets a ping, and seconds until it must have sent something after the ping.
    keepalive_s: float = 60.0
    keepalive_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.message_bytes_max <= MESSAGE_BYTES_SETTING_MAX:
            raise InvalidLimits(
                f"message_bytes_max is {self.message_bytes_max}: give 1 to {MESSAGE_BYTES_SETTING_MAX} bytes"
            )
        for name in ("receive_bytes_max", "send_bytes_max"):
            if getattr(self, name) < self.message_bytes_max:
                raise InvalidLimits(
                    f"{name} is {getattr(self, name)}, less than one message of message_bytes_max"
                    f" ({self.message_bytes_max}): raise it, or no such message ever gets through"
                )


@dataclass(frozen=True, slots=True)
class RpcLimits(ConnectionLimits):
    """The limits of one server."""

    # Open connections, and running handlers of all connections together.
    connections_max: int = 10_000
    calls_max: int = 50_000
    # Open streams of one connection.
    streams_max: int = 4_096
    # Seconds from the connection (or its TLS handshake) to the first frame, and for a header block to be complete.
    preface_s_max: float = 10.0
    # Seconds from the headers of a call to the end of its request, and for a message of a stream to be complete.
    request_s_max: float = 60.0
    # Bytes of messages of all connections together: requests that are received or handled, and unsent responses.
    # Above it large messages wait; above it for some seconds, the connection that holds most is cut.
    memory_bytes_max: int = 256 * MIB

    def __post_init__(self) -> None:
        # The dataclass has slots, with which a plain super() does not work.
        ConnectionLimits.__post_init__(self)
        if self.memory_bytes_max < self.message_bytes_max:
            raise InvalidLimits(
                f"memory_bytes_max is {self.memory_bytes_max}, less than one message of message_bytes_max"
                f" ({self.message_bytes_max}): raise it"
            )


@dataclass(frozen=True, slots=True)
class ChannelLimits(ConnectionLimits):
    """The limits of one client's channel."""

    # Calls that are open, or that wait for a connection or for the server's limit of streams.
    calls_max: int = 100_000
    # Connections that are draining after the server asked for it; above it, the oldest is cut.
    draining_max: int = 4
    # Seconds for one attempt to connect, from the first packet to the server's SETTINGS.
    connect_s_max: float = 2.0
    # Seconds between attempts to connect, at first and at most; meanwhile calls fail at once.
    reconnect_first_s: float = 0.05
    reconnect_max_s: float = 0.5
    keepalive_s: float = 5.0
    keepalive_timeout_s: float = 5.0
