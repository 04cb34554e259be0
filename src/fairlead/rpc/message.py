"""gRPC messages on the wire: a compression flag and a length before each."""

import zlib
from struct import Struct

from fairlead.rpc.head import IDENTITY
from fairlead.rpc.status import Code, RpcStatus

PREFIX = Struct(">BI")
PREFIX_BYTES = 5
# The header of a DATA frame and the prefix of the message that begins with the frame.
MESSAGE_FRONT = Struct(">HBBBIBI")
# zlib's `wbits` for a gzip header and trailer with the largest window.
_GZIP_WINDOW_BITS = 31


def framed(message: bytes) -> bytes:
    """Encode a message for the wire, uncompressed."""
    return PREFIX.pack(0, len(message)) + message


def plain(flag: int, message: bytes, *, encoding: str, bytes_max: int) -> bytes:
    """Decompress a message as its flag says; raises RpcStatus if it is not valid, or too large."""
    if flag == 0:
        return message
    if flag != 1 or encoding == IDENTITY:
        raise RpcStatus(Code.INTERNAL, f"compression flag {flag} with grpc-encoding {encoding}: the two contradict")
    inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        decompressed = inflater.decompress(message, bytes_max + 1)
    except zlib.error as error:
        raise RpcStatus(Code.INVALID_ARGUMENT, f"the message is not gzip: {error}") from None
    if len(decompressed) > bytes_max:
        raise RpcStatus(Code.RESOURCE_EXHAUSTED, f"the decompressed message is above the limit of {bytes_max} bytes")
    if not inflater.eof or inflater.unused_data:
        raise RpcStatus(Code.INVALID_ARGUMENT, "the message is not one whole gzip stream")
    return decompressed


class MessageReader:
    """Reassembles the messages of one stream from pieces that the caller appends to `buffer`."""

    __slots__ = ("_bytes_max", "_encoding", "buffer")

    def __init__(self, *, encoding: str, bytes_max: int) -> None:
        self._encoding = encoding
        self._bytes_max = bytes_max
        self.buffer = bytearray()

    def needed_bytes(self) -> int:
        """Missing bytes of the current message, or of its prefix; raises RpcStatus if the message is too large."""
        if len(self.buffer) < PREFIX_BYTES:
            return PREFIX_BYTES - len(self.buffer)
        length: int = PREFIX.unpack_from(self.buffer)[1]
        if length > self._bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED, f"a message of {length} bytes is above the limit of {self._bytes_max}"
            )
        return max(0, PREFIX_BYTES + length - len(self.buffer))

    def take(self) -> bytes | None:
        """Take the next message; None if it is not complete."""
        if self.needed_bytes() > 0:
            return None
        flag, length = PREFIX.unpack_from(self.buffer)
        end = PREFIX_BYTES + length
        with memoryview(self.buffer) as view:
            message = bytes(view[PREFIX_BYTES:end])
        del self.buffer[:end]
        return plain(flag, message, encoding=self._encoding, bytes_max=self._bytes_max)
