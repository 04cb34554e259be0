"""Reads the zstd frames of a segment and verifies each checksum."""

from collections.abc import Iterator
from enum import StrEnum
from typing import BinaryIO, NamedTuple

import zstandard

READ_BYTES = 1 << 18
# Bytes of one decompressed frame.
FRAME_BYTES_MAX = 512 << 20
_HEADER_BYTES_MAX = 18


class FrameFault(StrEnum):
    """Reasons why a frame can't be read."""

    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNCHECKED = "unchecked"
    TOO_LARGE = "too_large"


FRAME_REASONS = {
    FrameFault.TRUNCATED: "the segment ends within a frame",
    FrameFault.DAMAGED: "a frame is damaged",
    FrameFault.UNCHECKED: "a frame has no checksum",
    FrameFault.TOO_LARGE: f"a frame is larger than {FRAME_BYTES_MAX >> 20} MB",
}


class BadFrame(Exception):
    """A frame can't be read, nor can the frames after it."""

    def __init__(self, fault: FrameFault) -> None:
        super().__init__(FRAME_REASONS[fault])
        self.fault = fault


class Frame(NamedTuple):
    """The decompressed content of a frame, and the position in the file after the frame."""

    content: bytes
    end: int


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """Yield each frame of a file; raise `BadFrame` at the first one that can't be read."""
    left = file.read(READ_BYTES)
    end = len(left)
    while left:
        if len(left) < _HEADER_BYTES_MAX:
            more = file.read(READ_BYTES)
            end += len(more)
            left += more
        content, left, read_bytes = _read_frame(file, left)
        end += read_bytes
        yield Frame(content, end - len(left))
        if not left:
            left = file.read(READ_BYTES)
            end += len(left)


def _read_frame(file: BinaryIO, chunk: bytes) -> tuple[bytes, bytes, int]:
    """Read the frame that begins with the chunk.

    Returns its content, the bytes that were read beyond it, and the number of bytes that were read after the chunk.
    """
    try:
        has_checksum = zstandard.get_frame_parameters(chunk).has_checksum
    except zstandard.ZstdError:
        raise BadFrame(FrameFault.TRUNCATED if len(chunk) < _HEADER_BYTES_MAX else FrameFault.DAMAGED) from None
    if not has_checksum:
        raise BadFrame(FrameFault.UNCHECKED)
    frame = zstandard.ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    size_bytes = read_bytes = 0
    while True:
        try:
            parts.append(frame.decompress(chunk))
        except zstandard.ZstdError:
            raise BadFrame(FrameFault.DAMAGED) from None
        size_bytes += len(parts[-1])
        if size_bytes > FRAME_BYTES_MAX:
            raise BadFrame(FrameFault.TOO_LARGE)
        if frame.eof:
            return b"".join(parts), frame.unused_data, read_bytes
        chunk = file.read(READ_BYTES)
        read_bytes += len(chunk)
        if not chunk:
            raise BadFrame(FrameFault.TRUNCATED)
