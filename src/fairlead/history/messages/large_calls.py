"""Splits requests and responses that are too large for one message between hosts, such as many large signals.

The called host keeps the parts until they are used, at most for `KEPT_S_MAX`.
"""

import time
import uuid
from collections.abc import Callable

import msgspec

from fairlead.core.errors import RetryElsewhere, RetryLater
from fairlead.rpc.hosts.caller import Caller, CallLost, Method

# Bytes of one part: below the limit for a message between hosts, with room for the message's other fields.
PART_BYTES_MAX = 2 << 20
# Bytes of large requests and responses that a host keeps, and the seconds for which it keeps each of them.
KEPT_BYTES_MAX = 256 << 20
KEPT_S_MAX = 30.0


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of a large request; parts are sent in order, before the call."""

    key: str
    data: bytes


class PartKept(msgspec.Struct, frozen=True, array_like=True):
    """The part was received."""


class NextPart(msgspec.Struct, frozen=True, array_like=True):
    """Request the part of a large response that begins at `offset`."""

    key: str
    offset: int


class ResponsePart(msgspec.Struct, frozen=True, array_like=True):
    """A part of a large response."""

    data: bytes
    is_last: bool


SEND_PART = Method("history.SendPart", Part, PartKept)
NEXT_PART = Method("history.NextPart", NextPart, ResponsePart)


class NoRoom(RetryLater):
    """A host has `KEPT_BYTES_MAX` bytes of large requests and responses, and can't keep more."""


class PartsGone(RetryElsewhere):
    """The parts of a large request have expired, or their host has restarted: nothing was done."""


class KeptParts:
    """The large requests and responses that a host keeps for `KEPT_S_MAX`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By key, with the time of the first part; the oldest entry comes first.
        self._kept: dict[str, tuple[float, bytearray]] = {}
        self._bytes = 0

    async def add(self, part: Part) -> PartKept:
        """Receive one part of a request."""
        self.keep(part.key, part.data)
        return PartKept()

    async def next(self, request: NextPart) -> ResponsePart:
        """Return a part of a response; the last part removes the response."""
        self._forget_old()
        found = self._kept.get(request.key)
        if found is None:
            raise CallLost(f"the response {request.key} was not fetched in time; its request was carried out")
        data = bytes(found[1][request.offset : request.offset + PART_BYTES_MAX])
        is_last = request.offset + len(data) >= len(found[1])
        if is_last:
            self.take(request.key)
        return ResponsePart(data, is_last)

    def keep(self, key: str, data: bytes) -> None:
        """Append data to the parts of the same key."""
        self._forget_old()
        if self._bytes + len(data) > KEPT_BYTES_MAX:
            raise NoRoom(f"the host keeps {self._bytes} bytes of large requests and responses: try again later")
        _, kept = self._kept.setdefault(key, (self._clock(), bytearray()))
        kept += data
        self._bytes += len(data)

    def take(self, key: str) -> bytes:
        """Remove and return all data of a key."""
        found = self._kept.pop(key, None)
        if found is None:
            raise PartsGone(f"the parts {key} of a large request have expired: send the request again")
        self._bytes -= len(found[1])
        return bytes(found[1])

    def _forget_old(self) -> None:
        oldest_s = self._clock() - KEPT_S_MAX
        while self._kept and next(iter(self._kept.values()))[0] < oldest_s:
            self.take(next(iter(self._kept)))


def new_key() -> str:
    """A new key for the parts of one request or response."""
    return uuid.uuid4().hex


async def send_parts(caller: Caller, host: str, data: bytes, *, timeout_s: float) -> str:
    """Send a large request in parts before its call, and return the key of the parts."""
    key = new_key()
    for begin in range(0, len(data), PART_BYTES_MAX):
        part = Part(key, data[begin : begin + PART_BYTES_MAX])
        await caller.call(host, SEND_PART, part, timeout_s=timeout_s)
    return key


async def get_rest(caller: Caller, host: str, key: str, *, timeout_s: float) -> bytes:
    """Get the rest of a large response."""
    parts: list[bytes] = []
    offset = 0
    while True:
        part = await caller.call(host, NEXT_PART, NextPart(key, offset), timeout_s=timeout_s)
        parts.append(part.data)
        offset += len(part.data)
        if part.is_last:
            return b"".join(parts)
