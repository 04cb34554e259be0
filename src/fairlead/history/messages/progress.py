"""Progress of a run's activities on its way to other clusters."""

import msgspec

from fairlead.core.errors import GiveUp
from fairlead.history.state.pending import ActivityProgress

# The `first_event_id` of a stream row that holds activity progress instead of a batch.
PROGRESS = 0

# Activity progress on the wire: for each activity its scheduled event id, that event's version, and the progress.
Activities = tuple[tuple[int, int, ActivityProgress], ...]
encode_progress = msgspec.msgpack.Encoder().encode
_decode_progress = msgspec.msgpack.Decoder(Activities).decode
NO_PROGRESS = encode_progress(())


class UnreadableProgress(GiveUp):
    """The progress of activities can't be decoded."""


def decode_progress(data: bytes) -> Activities:
    """The progress that `encode_progress` encoded."""
    try:
        return _decode_progress(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UnreadableProgress(f"activity progress of {len(data)} bytes can't be decoded ({wrong})") from None
