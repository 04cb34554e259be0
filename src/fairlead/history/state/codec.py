"""Encoding of a run's state."""

import msgspec

from fairlead.history.state.errors import UnreadableState
from fairlead.history.state.run import LiveState, RunState

# First byte of a stored state, which identifies the layout.
_LAYOUT = b"\x01"
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RunState)


def encode(state: RunState) -> bytes:
    """Encode the whole state: the part that follows from events, and the live part."""
    return _LAYOUT + _encoder.encode(state)


def decode(stored: bytes) -> RunState:
    """Decode a state that `encode` has encoded."""
    if stored[:1] != _LAYOUT:
        raise UnreadableState(
            f"a run's state begins with {stored[:1]!r}, not with {_LAYOUT!r}: another version wrote it"
        )
    try:
        return _decoder.decode(memoryview(stored)[1:])
    except msgspec.DecodeError as wrong:
        raise UnreadableState(f"a run's state of {len(stored)} bytes can't be read: {wrong}") from wrong


def without_live(state: RunState) -> RunState:
    """A copy without the live part, for comparison with a rebuilt state."""
    copy = decode(encode(state))
    copy.live = LiveState()
    return copy
