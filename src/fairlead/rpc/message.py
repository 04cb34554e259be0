"""Messages of gRPC: each with a flag for compression and its length before it."""

import zlib
from struct import Struct

from fairlead.rpc.head import IDENTITY
from fairlead.rpc.status import Code, RpcStatus

PREFIX = Struct(">BI")
PREFIX_BYTES = 5
# zlib's number for: a gzip header and trailer, with the largest window.
_GZIP_WINDOW_BITS = 31


def framed(message: bytes) -> bytes:
    """A message as it goes over the wire, not compressed."""
    return PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Puts the messages of one stream together from the pieces in which they come, which are added to `buffer`."""

    __slots__ = ("_bytes_max", "_encoding", "buffer")

    def __init__(self, *, encoding: str, bytes_max: int) -> None:
        self._encoding = encoding
        self._bytes_max = bytes_max
        self.buffer = bytearray()

    def needed_bytes(self) -> int:
        """What the message that has begun still lacks, as far as is known; raises RpcStatus if it is too large."""
        if len(self.buffer) < PREFIX_BYTES:
            return PREFIX_BYTES - len(self.buffer)
        length: int = PREFIX.unpack_from(self.buffer)[1]
        if length > self._bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED, f"a message of {length} bytes is larger than the {self._bytes_max} taken here"
            )
        return max(0, PREFIX_BYTES + length - len(self.buffer))

    def take(self) -> bytes | None:
        """The next message, if it is here as a whole."""
        if self.needed_bytes() > 0:
            return None
        flag, length = PREFIX.unpack_from(self.buffer)
        end = PREFIX_BYTES + length
        with memoryview(self.buffer) as view:
            message = bytes(view[PREFIX_BYTES:end])
        del self.buffer[:end]
        return self._plain(flag, message)

    def _plain(self, flag: int, message: bytes) -> bytes:
        if flag == 0:
            return message
        if flag != 1 or self._encoding == IDENTITY:
            raise RpcStatus(
                Code.INTERNAL, f"compression flag {flag} with grpc-encoding {self._encoding}: the two contradict"
            )
        inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            plain = inflater.decompress(message, self._bytes_max + 1)
        except zlib.error as error:
            raise RpcStatus(Code.INVALID_ARGUMENT, f"the message is not gzip: {error}") from None
        if len(plain) > self._bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED, f"the message inflates to more than the {self._bytes_max} bytes taken here"
            )
        if not inflater.eof or inflater.unused_data:
            raise RpcStatus(Code.INVALID_ARGUMENT, "the message is not one whole gzip stream")
        return plain
