"""A host's side of calls by gRPC."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc

from fairlead.cluster.calls import (
    Answer,
    CallLost,
    Exhausted,
    Handlers,
    Method,
    Request,
    Unreachable,
    is_cancelled,
    unexpected,
)
from fairlead.cluster.health import Health
from fairlead.cluster.wire import ERROR_KEY, MESSAGE_BYTES_MAX, SERVICE, Codec, Errors, status_code
from fairlead.core.errors import FairleadError, FixRequest

# Of all callers together; most of them are polls that wait.
CALLS_MAX = 50_000
# What a handler may take to end when it was cancelled because the host stops.
CANCELLED_S_MAX = 5.0
# For the last answers to be read before their connection is closed.
LINGER_S = 0.1
# The status text is for people with a network trace: callers of ours read the whole error from the metadata.
STATUS_TEXT_CHARACTERS_MAX = 200

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Two servers on one port would share its connections between them.
    ("grpc.so_reuseport", 0),
    # Callers make sure every few seconds that the host is there, see CHANNEL_OPTIONS: that is no flood.
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
)

_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class CannotListen(FixRequest):
    """A host could not be bound to the address that it was given."""


class GrpcServer:
    """Answers by gRPC what `handlers` answer, until it is stopped.

    A call whose caller has gone, or whose deadline has passed, has its handler cancelled.
    """

    def __init__(
        self, handlers: Handlers, *, listen: str = "127.0.0.1:0", errors: Errors, calls_max: int = CALLS_MAX
    ) -> None:
        self._handlers = handlers
        self._listen = listen
        self._errors = errors
        self._calls_max = calls_max
        self._calls: set[asyncio.Task[Any]] = set()
        self._health = Health(SERVICE)
        self._is_stopping = False
        self._server: grpc.aio.Server | None = None
        self._address = ""

    def bind(self) -> str:
        """Take the address, and say which it is, so that the host can be named before it answers anything."""
        self._bound()
        return self._address

    async def start(self) -> str:
        """Answer from now on; returns the address, with the port that was chosen if none was given."""
        server = self._bound()
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    SERVICE, {method.name: self._rpc_handler(method, handle) for method, handle in self._handlers}
                ),
                self._health.rpc_handler(),
            ]
        )
        await server.start()
        return self._address

    def set_able(self, *, is_able: bool) -> None:
        """Tell those who ask for this host's health whether it is able to serve; everybody is answered as before."""
        self._health.set_able(is_able=is_able)

    def drain(self) -> None:
        """Tell those who ask for this host's health to go elsewhere, and answer everybody as before."""
        self._health.drain()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls; those already taken have `grace_s` to end, then they are cancelled.

        gRPC's own way to stop is kept for the end: it closes connections with the last answers still on their way, and
        leaves callers in doubt whether a call that came too late was carried out.
        """
        self._health.stop()
        self._is_stopping = True
        if self._server is None:
            return
        if grace_s > 0:
            await _ended(self._calls, within_s=grace_s)
            await asyncio.sleep(min(grace_s, LINGER_S))
        await self._server.stop(None)
        # gRPC does not wait for what a handler that was cancelled still does, such as to give a task back.
        await _ended(self._calls, within_s=CANCELLED_S_MAX)

    def _bound(self) -> grpc.aio.Server:
        if self._server is not None:
            return self._server
        server = grpc.aio.server(options=SERVER_OPTIONS)
        try:
            port = server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise CannotListen(
                f"can't listen on {self._listen!r} ({error}): give a free address of this machine, say 127.0.0.1:7240"
            ) from None
        self._server = server
        self._address = f"{self._listen.rpartition(':')[0]}:{port}"
        return server

    def _rpc_handler(
        self, method: Method[Request, Answer], handle: Callable[[Request], Awaitable[Answer]]
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        codec = Codec(method)

        async def answer(data: bytes, context: _Context) -> bytes:
            if self._is_stopping:
                await self._fail(context, Unreachable(f"{self._address!r} is stopping: ask for the owner again"))
            if len(self._calls) >= self._calls_max:
                await self._fail(context, Exhausted(f"{len(self._calls)} calls are under way: send fewer at once"))
            call = asyncio.current_task()
            assert call is not None  # noqa: S101 - a coroutine that awaits runs in a task
            self._calls.add(call)
            failure: FairleadError
            try:
                return codec.encode(await handle(codec.decode_request(data)))
            except FairleadError as error:
                failure = error
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                failure = CallLost(f"{method.name} was cancelled by its own host: it is closing")
            except Exception as error:  # noqa: BLE001 - a fault of one handler is no reason to lose the others
                failure = unexpected(method, error)
            finally:
                self._calls.discard(call)
            return await self._fail(context, failure)

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _fail(self, context: _Context, error: FairleadError) -> NoReturn:
        text = str(error)[:STATUS_TEXT_CHARACTERS_MAX]
        await context.abort(status_code(error), text, ((ERROR_KEY, self._errors.encode(error)),))


async def _ended(calls: set[asyncio.Task[Any]], *, within_s: float) -> None:
    if calls:
        await asyncio.wait(calls, timeout=within_s)
