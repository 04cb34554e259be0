"""Requests of one message whose frames have all arrived: they can be read in one step."""

from fairlead.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HEADERS,
)
from fairlead.rpc.message import MESSAGE_FRONT, PREFIX_BYTES

# Stream id; positions of the header block, its end, the message and its end; the message's flag; end of the last frame.
WholeRequest = tuple[int, int, int, int, int, int, int]


def whole_request(data: bytes, position: int, end: int) -> WholeRequest | None:
    """The request that begins at a position; None if other frames begin there.

    A request has one frame of HEADERS and one of DATA. The DATA frame ends the stream, or an empty one follows it, as
    in requests of SDKs.
    """
    length, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
    block_at = position + FRAME_HEADER_BYTES
    data_at = block_at + (length << 8 | low)
    message_at = data_at + MESSAGE_FRONT.size
    if kind != HEADERS or flags != END_HEADERS or message_at > end or data_at - block_at > FRAME_BYTES_MAX:
        return None
    length, low, kind, flags, data_stream_id, packed, message_bytes = MESSAGE_FRONT.unpack_from(data, data_at)
    size: int = length << 8 | low
    message_end: int = message_at + message_bytes
    if (
        kind != DATA
        or data_stream_id != stream_id
        or size != message_bytes + PREFIX_BYTES
        or size > FRAME_BYTES_MAX
        or message_end > end
    ):
        return None
    if flags == END_STREAM:
        return stream_id, block_at, data_at, message_at, message_end, packed, message_end
    request_end = message_end + FRAME_HEADER_BYTES
    if flags or data[message_end:request_end] != FRAME_HEADER.pack(0, 0, DATA, END_STREAM, stream_id):
        return None
    return stream_id, block_at, data_at, message_at, message_end, packed, request_end
