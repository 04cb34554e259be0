"""The client of the history service: calls the owner of a workflow's shard."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from google.protobuf.message import Message

from fairlead.aio.admission import end_turn
from fairlead.aio.backoff import Backoff
from fairlead.api.errors import InvalidArgument, NotActive
from fairlead.api.principals import NOBODY, PrincipalPair, current_principal
from fairlead.core.errors import RetryElsewhere
from fairlead.core.hashing import hash64
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.history.messages.large_calls import PART_BYTES_MAX, get_rest, send_parts
from fairlead.matching.reserved_poll import ReservedPoll, ReserveSticky
from fairlead.membership.ring import RingView
from fairlead.rpc.hosts.caller import Caller, Method

CALL_TIMEOUT_S = 10.0
# Seconds that a call waits after the timeout of its operation for the response to arrive.
MARGIN_S = 1.0
# Minimum seconds that a call gets for its retries at another host.
AGAIN_S_MIN = 1.0
# Seconds before the first retry (doubled for each further retry), and the maximum.
AGAIN_FIRST_S, AGAIN_S_MAX = 0.01, 0.5

_encode = msgspec.msgpack.Encoder().encode


class PollOffer(msgspec.Struct, frozen=True, array_like=True):
    """A waiting poll of a sticky task queue, for the workflow task that the operation may schedule."""

    task_queue: str
    identity: str
    # The worker's description of itself, as in `PollRequest`.
    worker: bytes


class HistoryCall(msgspec.Struct, frozen=True, array_like=True):
    """An operation for the owner of a shard."""

    name: str
    shard_id: int
    namespace_id: str
    request: bytes
    timeout_s: float
    # Key of the parts of a large request, which were sent ahead; `request` is empty then.
    parts_key: str = ""
    # The authenticated caller of the frontend, for the events that the operation writes.
    principal: PrincipalPair = NOBODY
    offer: PollOffer | None = None


class HistoryResponse(msgspec.Struct, frozen=True, array_like=True):
    """The encoded response; of a large response only the first part, and the key of the rest."""

    answer: bytes
    rest_key: str = ""
    # The response to the offered poll; empty if no task was started for it.
    task: bytes = b""


CALL = Method("history.Call", HistoryCall, HistoryResponse)

Local = Callable[[str, int, str, Any, float], Awaitable[bytes]]


def shard_of(namespace_id: str, workflow_id: str, shards: int) -> int:
    """The shard of a workflow id; it never changes."""
    return hash64(f"{namespace_id}_{workflow_id}") % shards


def partition_of(shard_id: int) -> Partition:
    """The key by which the ring routes a shard."""
    return Partition(TaskQueueId("history", str(shard_id), TaskType.WORKFLOW), 0)


def encode_request(request: Message | msgspec.Struct) -> bytes:
    """Encode a request, a protobuf message or a msgspec struct."""
    return request.SerializeToString() if isinstance(request, Message) else _encode(request)


class HistoryClient:
    """Calls the owner of a shard, on this host or another; retries if the shard has moved."""

    def __init__(
        self,
        host: str,
        caller: Caller,
        ring: RingView,
        *,
        shards: int,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`uniform` makes random numbers in [0, 1), which vary the pauses between attempts."""
        self._host = host
        self._caller = caller
        self._ring = ring
        self._shards = shards
        self._uniform = uniform
        self._partitions = [partition_of(shard_id) for shard_id in range(shards)]
        self._local: Local | None = None
        self._reserve: ReserveSticky | None = None
        # Hosts and task queues of the calls with an offered poll: a host that hangs holds one poll of each queue.
        self._offering: set[tuple[str, TaskQueueId]] = set()

    def serve_locally(self, local: Local) -> None:
        """Set the function for calls to shards of this host, which need no encoding."""
        self._local = local

    def offer_polls(self, reserve: ReserveSticky) -> None:
        """Set the function that reserves the polls which calls to other hosts offer."""
        self._reserve = reserve

    async def call(
        self,
        name: str,
        namespace_id: str,
        workflow_id: str,
        request: Message | msgspec.Struct,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        sticky_task_queue: str = "",
    ) -> bytes:
        """Call the operation `name`, and return its encoded response.

        After `CallLost` the operation may have been carried out. A call to another host offers a poll that waits for
        `sticky_task_queue` at this host. If a response with a task is lost, the task times out, and another attempt
        follows.
        """
        shard_id = shard_of(namespace_id, workflow_id, self._shards)
        began_s = asyncio.get_running_loop().time()
        try:
            return await self._attempt(
                name, shard_id, namespace_id, request, timeout_s, sticky_task_queue=sticky_task_queue
            )
        except NotActive:
            # Every host of this cluster would return the same error.
            raise
        except RetryElsewhere:
            return await self._again(name, shard_id, namespace_id, request, _left_s(began_s, timeout_s))

    async def call_shard(self, name: str, shard_id: int, request: msgspec.Struct, *, timeout_s: float) -> bytes:
        """Call an operation on a shard, not on a workflow."""
        if not 0 <= shard_id < self._shards:
            raise InvalidArgument(f"shard {shard_id} does not exist: there are {self._shards} shards")
        began_s = asyncio.get_running_loop().time()
        try:
            return await self._attempt(name, shard_id, "", request, timeout_s)
        except NotActive:
            raise
        except RetryElsewhere:
            return await self._again(name, shard_id, "", request, _left_s(began_s, timeout_s))

    def _attempt(
        self,
        name: str,
        shard_id: int,
        namespace_id: str,
        request: Message | msgspec.Struct,
        timeout_s: float,
        *,
        sticky_task_queue: str = "",
    ) -> Awaitable[bytes]:
        """Call the shard's owner, without encoding if it is this host."""
        owner = self._ring.route(self._partitions[shard_id])
        if owner == self._host and self._local is not None:
            return self._local(name, shard_id, namespace_id, request, timeout_s)
        call = HistoryCall(
            name, shard_id, namespace_id, encode_request(request), timeout_s, principal=current_principal()
        )
        if sticky_task_queue and self._reserve is not None:
            task_queue = TaskQueueId(namespace_id, sticky_task_queue, TaskType.WORKFLOW)
            poll = None if (owner, task_queue) in self._offering else self._reserve(task_queue)
            if poll is not None:
                self._offering.add((owner, task_queue))
                return self._call_with_offer(owner, call, task_queue, poll)
        return self._call_host(owner, call)

    async def _call_with_offer(
        self, owner: str, call: HistoryCall, task_queue: TaskQueueId, poll: ReservedPoll
    ) -> bytes:
        offer = PollOffer(task_queue.name, poll.identity, poll.worker)
        try:
            return await self._call_host(owner, msgspec.structs.replace(call, offer=offer), poll)
        finally:
            self._offering.discard((owner, task_queue))
            # Without effect if the poll got a task.
            poll.release()

    async def _call_host(self, owner: str, call: HistoryCall, poll: ReservedPoll | None = None) -> bytes:
        timeout_s = call.timeout_s
        # The work is the other host's now.
        end_turn()
        if len(call.request) > PART_BYTES_MAX:
            parts_key = await send_parts(self._caller, owner, call.request, timeout_s=timeout_s)
            call = msgspec.structs.replace(call, request=b"", parts_key=parts_key)
        answer = await self._caller.call(owner, CALL, call, timeout_s=timeout_s + MARGIN_S)
        if poll is not None and answer.task:
            poll.give(answer.task)
        if not answer.rest_key:
            return answer.answer
        return answer.answer + await get_rest(self._caller, owner, answer.rest_key, timeout_s=timeout_s)

    async def _again(
        self, name: str, shard_id: int, namespace_id: str, request: Message | msgspec.Struct, timeout_s: float
    ) -> bytes:
        """Refresh the ring and call the new owner, until the timeout is over."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        backoff = Backoff(AGAIN_FIRST_S, AGAIN_S_MAX, random=self._uniform)
        wait_s = backoff.next_s()
        while True:
            await asyncio.sleep(wait_s)
            await self._ring.refresh()
            left_s = end_s - loop.time()
            try:
                return await self._attempt(name, shard_id, namespace_id, request, max(left_s, wait_s))
            except NotActive:
                raise
            except RetryElsewhere:
                wait_s = backoff.next_s()
                if left_s <= wait_s:
                    raise


def _left_s(began_s: float, timeout_s: float) -> float:
    """Seconds left for retries: at least `AGAIN_S_MIN`, or the whole timeout if that is shorter."""
    return max(began_s + timeout_s - asyncio.get_running_loop().time(), min(timeout_s, AGAIN_S_MIN))
