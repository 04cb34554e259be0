"""A proxy between two clusters that reads the stream and may change it before the receiver gets it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc.aio import AioRpcError, ServicerContext
from msgspec.structs import replace

from fairlead.history.messages.stream import PullRequest, PullResponse, ReplicationTask
from fairlead.replication.cursors import BEGINNING
from fairlead.replication.wire import NAMESPACES, PART_BYTES_MAX, PULL, READ_BRANCH, decode, encode, parts_of

_STREAMS = frozenset(call.path for call in (PULL, READ_BRANCH, NAMESPACES))
# Prefixes of metadata that gRPC adds.
_OWN_METADATA = ("user-agent", "te", "content-type", "grpc-", ":")

# A foreign client and server, with the sizes of ours.
_OPTIONS = (
    ("grpc.max_receive_message_length", 2 * PART_BYTES_MAX),
    ("grpc.max_send_message_length", 2 * PART_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
)

WAIT_S_MAX = 0.5
_CHECK_S = 0.02

Change = Callable[[PullResponse], PullResponse | bytes]


class Meddler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Responds like the cluster at `to`, except that its streams go through `change`."""

    def __init__(self) -> None:
        self.to = ""
        self.address = ""
        self.change: Change = lambda answer: answer
        # By shard: the number of forwarded tasks that were not in the original response.
        self._more: dict[int, int] = {}
        self._server: Any = None
        self._channel: Any = None

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        if path in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(self._stream_of(path))
        return grpc.unary_unary_rpc_method_handler(self._call_of(path))

    def _call_of(self, path: str) -> Any:
        async def answer(data: bytes, context: "ServicerContext[bytes, bytes]") -> bytes:
            call = self._channel.unary_unary(path)(data, metadata=_passed_on(context), timeout=context.time_remaining())
            try:
                answered: bytes = await call
            except AioRpcError as failure:
                await _refuse(context, failure)
                raise
            return answered

        return answer

    def _stream_of(self, path: str) -> Any:
        async def answer(data: bytes, context: "ServicerContext[bytes, bytes]") -> AsyncIterator[bytes]:
            asked = decode(data, PullRequest) if path == PULL.path else None
            if asked is not None:
                data = encode(self._asked(asked))
            call = self._channel.unary_stream(path)(
                data, metadata=_passed_on(context), timeout=context.time_remaining()
            )
            try:
                whole = b"".join([part async for part in call])
            except AioRpcError as failure:
                await _refuse(context, failure)
                raise
            if asked is not None:
                whole = self._answered(asked.shard_id, decode(whole, PullResponse))
            for part in parts_of(whole):
                yield part

        return answer

    def _asked(self, asked: PullRequest) -> PullRequest:
        more = self._more.get(asked.shard_id, 0)
        return replace(
            asked,
            after_id=max(BEGINNING, asked.after_id - more),
            ack_id=max(BEGINNING, asked.ack_id - more),
            # Wait only briefly, so that held tasks are sent on soon after their release.
            wait_s=min(asked.wait_s, WAIT_S_MAX),
        )

    def _answered(self, shard_id: int, answer: PullResponse) -> bytes:
        """The response after `change`, with task ids as if the cluster had written the tasks in that order."""
        changed = self.change(answer)
        if isinstance(changed, bytes):
            return changed
        more = self._more.get(shard_id, 0)
        own_ids = {task.task_id for task in answer.tasks}
        through_id = changed.through_id + more
        tasks = []
        for task in changed.tasks:
            if task.task_id in own_ids:
                tasks.append(replace(task, task_id=task.task_id + more))
            else:
                through_id += 1
                tasks.append(replace(task, task_id=through_id))
        self._more[shard_id] = through_id - changed.through_id
        return encode(replace(changed, tasks=tuple(tasks), through_id=through_id))

    async def open(self) -> "Meddler":
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    def stand_before(self, to: str) -> None:
        """The address that it serves in place of the cluster."""
        self.to = to
        self._channel = grpc.aio.insecure_channel(to, options=_OPTIONS)

    async def close(self) -> None:
        await self._server.stop(0)
        if self._channel is not None:
            await self._channel.close(None)


@asynccontextmanager
async def meddler() -> AsyncIterator[Meddler]:
    """A proxy that changes nothing until the test sets a change."""
    standing = await Meddler().open()
    try:
        yield standing
    finally:
        await standing.close()


class Detained:
    """Tasks that are held back, and sent after later ones."""

    def __init__(self, standing: Meddler, is_held: Callable[[ReplicationTask], bool]) -> None:
        self.held: list[ReplicationTask] = []
        self._let_go: list[ReplicationTask] = []
        self._is_held = is_held
        self._standing = standing
        standing.change = self._change

    def end(self) -> None:
        """Stop holding back."""
        self._standing.change = lambda answer: answer

    def _change(self, answer: PullResponse) -> PullResponse:
        mine = [task for task in answer.tasks if self._is_held(task)]
        others = [task for task in answer.tasks if not self._is_held(task)]
        self.held += mine
        late, self._let_go = self._let_go, []
        return replace(answer, tasks=(*others, *late))

    async def until_held(self, count: int) -> None:
        """Wait until `count` tasks are held."""
        while len(self.held) < count:  # noqa: ASYNC110 - a test that waits too long is ended by its own time
            await asyncio.sleep(_CHECK_S)

    def let_go(self, task: ReplicationTask) -> None:
        """Release a held task: it is sent with the next response."""
        self.held.remove(task)
        self._let_go.append(task)


def _passed_on(context: "ServicerContext[bytes, bytes]") -> list[tuple[str, str | bytes]]:
    return [(key, value) for key, value in context.invocation_metadata() or () if not key.startswith(_OWN_METADATA)]


async def _refuse(context: "ServicerContext[bytes, bytes]", failure: AioRpcError) -> None:
    trailing: Any = failure.trailing_metadata() or ()
    await context.abort(failure.code(), failure.details() or "", tuple(trailing))
