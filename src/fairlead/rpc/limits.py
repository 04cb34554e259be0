"""What one peer may ask of the server, and how long the server waits for it."""

from dataclasses import dataclass

from fairlead.core.errors import FixRequest

KIB = 1024
MIB = 1024 * KIB

# Payloads of 4 MiB are what gRPC takes by default; the envelope around such a payload must fit as well.
MESSAGE_HEADROOM_BYTES = 512 * KIB
MESSAGE_BYTES_DEFAULT = 4 * MIB + MESSAGE_HEADROOM_BYTES
# No setting goes beyond: a message is held in memory as a whole.
MESSAGE_BYTES_SETTING_MAX = 64 * MIB


class InvalidLimits(FixRequest):
    """Limits that contradict each other or the protocol."""


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """The bounds of one server. Those on bytes and streams are for each connection, unless they say otherwise."""

    # A request's or an answer's message, after decompression.
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    # Of all connections together.
    connections_max: int = 10_000
    calls_max: int = 50_000
    streams_max: int = 4_096
    # Names and values of a call's headers, with 32 bytes for each, as HTTP/2 counts.
    header_list_bytes_max: int = 32 * KIB
    # Parts of large requests that have not come as a whole.
    receive_bytes_max: int = 64 * MIB
    # Answers that the peer does not read. Past it new calls are refused; past twice as much, large answers are too.
    send_bytes_max: int = 64 * MIB
    # A flood is what goes on above the burst, faster than the rate.
    resets_burst_max: int = 5_000
    resets_per_s_max: int = 500
    control_frames_burst_max: int = 2_000
    control_frames_per_s_max: int = 500
    # From the connection, or its TLS handshake, to the first frame; and for a header block to come as a whole.
    preface_s_max: float = 10.0
    # A peer that was silent this long is asked whether it is there, and has the timeout to say anything.
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
