"""gRPC messages on the wire: a compression flag and a length before each."""

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from struct import Struct

from fairlead.rpc.head import IDENTITY
from fairlead.rpc.status import Code, RpcStatus

PREFIX = Struct(">BI")
PREFIX_BYTES = 5
# The header of a DATA frame and the prefix of the message that begins with the frame.
MESSAGE_FRONT = Struct(">HBBBIBI")
# zlib's `wbits` for a gzip header and trailer with the largest window.
_GZIP_WINDOW_BITS = 31
# Bytes of the shortest gzip stream; its last four are the size of what it contains.
_GZIP_BYTES_MIN = 18
_SIZE_BYTES = 4
# Bytes, compressed and decompressed, up to which the event loop decompresses a message: about 50 µs.
LOOP_BYTES_MAX = 16 * 1024
# Threads that decompress the larger messages of all connections; more would compete with the event loop for the cores.
THREADS_MAX = 1


def framed(message: bytes) -> bytes:
    """Encode a message for the wire, uncompressed."""
    return PREFIX.pack(0, len(message)) + message


class Packed:
    """A compressed message that is too large to be decompressed in the event loop."""

    __slots__ = ("_bytes_max", "_message", "size")

    def __init__(self, message: bytes, *, bytes_max: int) -> None:
        """Raises RpcStatus if the message is too short for gzip."""
        if len(message) < _GZIP_BYTES_MIN:
            raise RpcStatus(Code.INVALID_ARGUMENT, f"the message is not gzip: it has {len(message)} bytes")
        self._message = message
        self._bytes_max = bytes_max
        # Bytes after decompression, as the message says; more are never produced.
        self.size = min(int.from_bytes(message[-_SIZE_BYTES:], "little"), bytes_max)

    @property
    def packed_bytes(self) -> int:
        """Bytes before decompression."""
        return len(self._message)

    def unpacked(self) -> bytes:
        """Decompress the message; raises RpcStatus if it is not valid, or too large."""
        inflater = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            message = inflater.decompress(self._message, self.size + 1)
        except zlib.error as error:
            raise RpcStatus(Code.INVALID_ARGUMENT, f"the message is not gzip: {error}") from None
        if len(message) > self._bytes_max:
            raise RpcStatus(
                Code.RESOURCE_EXHAUSTED, f"the decompressed message is above the limit of {self._bytes_max} bytes"
            )
        if not inflater.eof or inflater.unused_data:
            raise RpcStatus(Code.INVALID_ARGUMENT, "the message is not one whole gzip stream")
        return message

    async def unpacked_aside(self) -> bytes:
        """Decompress the message in a thread; raises RpcStatus."""
        return await asyncio.get_running_loop().run_in_executor(_threads(), self.unpacked)


def plain(flag: int, message: bytes, *, encoding: str, bytes_max: int) -> bytes | Packed:
    """Decompress a message as its flag says, if that is little work; raises RpcStatus if it is invalid or too large."""
    if flag == 0:
        return message
    if flag != 1 or encoding == IDENTITY:
        raise RpcStatus(Code.INTERNAL, f"compression flag {flag} with grpc-encoding {encoding}: the two contradict")
    packed = Packed(message, bytes_max=bytes_max)
    return packed.unpacked() if max(len(message), packed.size) <= LOOP_BYTES_MAX else packed


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

    def take(self) -> bytes | Packed | None:
        """Take the next message; None if it is not complete."""
        if self.needed_bytes() > 0:
            return None
        flag, length = PREFIX.unpack_from(self.buffer)
        end = PREFIX_BYTES + length
        with memoryview(self.buffer) as view:
            message = bytes(view[PREFIX_BYTES:end])
        del self.buffer[:end]
        return plain(flag, message, encoding=self._encoding, bytes_max=self._bytes_max)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=THREADS_MAX, thread_name_prefix="rpc-gzip")
