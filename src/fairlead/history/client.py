"""How everybody asks the history service: finds the owner of a workflow's shard, and asks there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from google.protobuf.message import Message

from fairlead.cluster.calls import Caller, Method
from fairlead.cluster.ring import RingView
from fairlead.core.errors import RetryElsewhere
from fairlead.core.hashing import hash64
from fairlead.core.partitions import Partition, TaskList, TaskType
from fairlead.history.large_calls import PART_BYTES_MAX, get_rest, send_parts
from fairlead.history.refusals import invalid

CALL_TIMEOUT_S = 10.0
# An answer comes a little after the time that its operation may take.
MARGIN_S = 1.0
# Those who are sent on to another host have at least so much time there.
AGAIN_S_MIN = 1.0

_encode = msgspec.msgpack.Encoder().encode


class HistoryCall(msgspec.Struct, frozen=True, array_like=True):
    """An operation for the owner of a shard."""

    name: str
    shard_id: int
    namespace_id: str
    request: bytes
    timeout_s: float
    # Of a large request, which was sent ahead in parts.
    parts_key: str = ""


class HistoryAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What came of it, as bytes; of a large one the beginning, and by what the rest is known."""

    answer: bytes
    rest_key: str = ""


CALL = Method("history.Call", HistoryCall, HistoryAnswer)

Local = Callable[[str, int, str, Any, float], Awaitable[bytes]]


def shard_of(namespace_id: str, workflow_id: str, shards: int) -> int:
    """The shard that a workflow id is of, for ever."""
    return hash64(f"{namespace_id}_{workflow_id}") % shards


def place_of(shard_id: int) -> Partition:
    """What the ring routes a shard by."""
    return Partition(TaskList("history", str(shard_id), TaskType.WORKFLOW), 0)


def encode_request(request: Message | msgspec.Struct) -> bytes:
    """A request as it crosses: a message of Temporal's, or a struct of ours."""
    return request.SerializeToString() if isinstance(request, Message) else _encode(request)


class HistoryClient:
    """Asks the owner of a shard, here or at another host; where it has moved, again."""

    def __init__(self, host: str, caller: Caller, ring: RingView, *, shards: int) -> None:
        self._host = host
        self._caller = caller
        self._ring = ring
        self._shards = shards
        self._places = [place_of(shard_id) for shard_id in range(shards)]
        self._local: Local | None = None

    def serve_locally(self, local: Local) -> None:
        """Whom to ask where this host is the owner itself: nothing is encoded then."""
        self._local = local

    async def call(
        self,
        name: str,
        namespace_id: str,
        workflow_id: str,
        request: Message | msgspec.Struct,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> bytes:
        """Have the operation `name` carried out; the answer is a serialized message.

        After `CallLost` it may have been carried out all the same.
        """
        shard_id = shard_of(namespace_id, workflow_id, self._shards)
        return await self._call(name, shard_id, namespace_id, request, timeout_s)

    async def call_shard(self, name: str, shard_id: int, request: msgspec.Struct, *, timeout_s: float) -> bytes:
        """The same of an operation that is about a shard, and no workflow."""
        if not 0 <= shard_id < self._shards:
            raise invalid(f"shard {shard_id} is not one of {self._shards}")
        return await self._call(name, shard_id, "", request, timeout_s)

    async def _call(
        self, name: str, shard_id: int, namespace_id: str, request: Message | msgspec.Struct, timeout_s: float
    ) -> bytes:
        end_s = asyncio.get_running_loop().time() + timeout_s
        try:
            return await self._ask(name, shard_id, namespace_id, request, timeout_s)
        except RetryElsewhere:
            # Who has waited for long may have little time left, but one more attempt is worth it.
            left_s = max(end_s - asyncio.get_running_loop().time(), min(timeout_s, AGAIN_S_MIN))
            return await self._again(name, shard_id, namespace_id, request, left_s)

    async def _ask(
        self, name: str, shard_id: int, namespace_id: str, request: Message | msgspec.Struct, timeout_s: float
    ) -> bytes:
        owner = self._ring.route(self._places[shard_id])
        if owner == self._host and self._local is not None:
            return await self._local(name, shard_id, namespace_id, request, timeout_s)
        data = encode_request(request)
        parts_key = ""
        if len(data) > PART_BYTES_MAX:
            parts_key = await send_parts(self._caller, owner, data, timeout_s=timeout_s)
            data = b""
        call = HistoryCall(name, shard_id, namespace_id, data, timeout_s, parts_key)
        answer = await self._caller.call(owner, CALL, call, timeout_s=timeout_s + MARGIN_S)
        if not answer.rest_key:
            return answer.answer
        return answer.answer + await get_rest(self._caller, owner, answer.rest_key, timeout_s=timeout_s)

    async def _again(
        self, name: str, shard_id: int, namespace_id: str, request: Message | msgspec.Struct, timeout_s: float
    ) -> bytes:
        """The shard was not there: look again who has it, for as long as there is time."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        wait_s = 0.01
        while True:
            await asyncio.sleep(wait_s)
            await self._ring.refresh()
            left_s = end_s - loop.time()
            try:
                return await self._ask(name, shard_id, namespace_id, request, max(left_s, wait_s))
            except RetryElsewhere:
                wait_s = min(wait_s * 2, 0.5)
                if left_s <= wait_s:
                    raise
