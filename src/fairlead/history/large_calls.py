"""Requests and answers that are larger than one message between hosts, such as a batch of many large signals: in parts.

The host that is asked keeps the parts until they are whole, or were not asked for in time.
"""

import time
import uuid
from collections.abc import Callable

import msgspec

from fairlead.cluster.calls import Caller, CallLost, Method
from fairlead.core.errors import RetryElsewhere, RetryLater

# Below what a message between hosts may be, with what goes around it.
PART_BYTES_MAX = 2 << 20
# What a host keeps of others' requests, and of answers that they have not got yet.
KEPT_BYTES_MAX = 256 << 20
KEPT_S_MAX = 30.0


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of a request that is to come: they come in order."""

    key: str
    data: bytes


class PartKept(msgspec.Struct, frozen=True, array_like=True):
    """The part is there."""


class NextPart(msgspec.Struct, frozen=True, array_like=True):
    """Ask for the part of an answer that begins at `offset`."""

    key: str
    offset: int


class AnswerPart(msgspec.Struct, frozen=True, array_like=True):
    """It, and whether it is the last."""

    data: bytes
    is_last: bool


SEND_PART = Method("history.SendPart", Part, PartKept)
NEXT_PART = Method("history.NextPart", NextPart, AnswerPart)


class NoRoom(RetryLater):
    """As many parts of large requests and answers are kept here as may be."""


class PartsGone(RetryElsewhere):
    """The parts of a large request were not used in time, or their host was started again: nothing was done."""


class KeptParts:
    """What a host keeps of large requests and answers, each for a while."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # In the order in which they were begun: the first is the oldest.
        self._kept: dict[str, tuple[float, bytearray]] = {}
        self._bytes = 0

    async def add(self, part: Part) -> PartKept:
        """One more part of a request."""
        self.keep(part.key, part.data)
        return PartKept()

    async def next(self, request: NextPart) -> AnswerPart:
        """A part of an answer; with the last it is gone."""
        self._forget_old()
        found = self._kept.get(request.key)
        if found is None:
            raise CallLost(f"the answer {request.key} was not asked for in time: what it answers was carried out")
        data = bytes(found[1][request.offset : request.offset + PART_BYTES_MAX])
        is_last = request.offset + len(data) >= len(found[1])
        if is_last:
            self.take(request.key)
        return AnswerPart(data, is_last)

    def keep(self, key: str, data: bytes) -> None:
        """Keep it, after what there is of the same key."""
        self._forget_old()
        if self._bytes + len(data) > KEPT_BYTES_MAX:
            raise NoRoom(f"{self._bytes} bytes of large requests and answers are kept here: try again in a while")
        _, kept = self._kept.setdefault(key, (self._clock(), bytearray()))
        kept += data
        self._bytes += len(data)

    def take(self, key: str) -> bytes:
        """All of it, which is gone then."""
        found = self._kept.pop(key, None)
        if found is None:
            raise PartsGone(f"the parts {key} of a large request are not here any more: send it again")
        self._bytes -= len(found[1])
        return bytes(found[1])

    def _forget_old(self) -> None:
        oldest_s = self._clock() - KEPT_S_MAX
        while self._kept and next(iter(self._kept.values()))[0] < oldest_s:
            self.take(next(iter(self._kept)))


def new_key() -> str:
    """What the parts of one request or answer are known by."""
    return uuid.uuid4().hex


async def send_parts(caller: Caller, host: str, data: bytes, *, timeout_s: float) -> str:
    """Send a large request ahead; what it is known by there."""
    key = new_key()
    for begin in range(0, len(data), PART_BYTES_MAX):
        part = Part(key, data[begin : begin + PART_BYTES_MAX])
        await caller.call(host, SEND_PART, part, timeout_s=timeout_s)
    return key


async def get_rest(caller: Caller, host: str, key: str, *, timeout_s: float) -> bytes:
    """Get the rest of a large answer."""
    parts: list[bytes] = []
    offset = 0
    while True:
        part = await caller.call(host, NEXT_PART, NextPart(key, offset), timeout_s=timeout_s)
        parts.append(part.data)
        offset += len(part.data)
        if part.is_last:
            return b"".join(parts)
