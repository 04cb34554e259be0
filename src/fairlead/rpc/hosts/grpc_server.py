"""Server side of calls between hosts over gRPC."""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fairlead.aio.cancellation import is_cancelled
from fairlead.aio.condition import until
from fairlead.core.errors import FairleadError
from fairlead.rpc import Call, Code, Health, RpcLimits, RpcServer, RpcStatus, UnaryHandler
from fairlead.rpc.hosts.caller import (
    CallLost,
    Handlers,
    Method,
    Overloaded,
    Request,
    Response,
    Unreachable,
    unexpected,
)
from fairlead.rpc.hosts.wire import ERROR_KEY, MESSAGE_BYTES_MAX, SERVICE, Codec, Errors
from fairlead.telemetry import Metrics

# Open calls of all callers together; most are waiting polls.
CALLS_MAX = 50_000
# Seconds for cancelled handlers to end when the host stops.
CANCELLED_S_MAX = 5.0
# Seconds for callers to read the last responses before their connections are closed.
LINGER_S = 0.1
# Characters of the status text; it is for people who read a network trace: callers get the error from the metadata.
STATUS_TEXT_CHARACTERS_MAX = 200

# Bytes of large messages of all identified callers together, and of all others together.
MEMORY_BYTES_MAX = 1024 * 1024 * 1024
STRANGER_MEMORY_BYTES_MAX = 64 * 1024 * 1024


class Admission(Protocol):
    """Decides who may call the methods of a host."""

    async def identify(self, call: Call, name: str) -> Any:
        """The caller's claims; raises for callers that may not call the method `name` with any request."""
        ...

    async def check(self, call: Call, claims: Any, name: str, request: Any) -> None:
        """Raise unless the caller may call the method with this request."""
        ...

    def watched(self, call: Call, claims: Any, name: str, request: Any, answer: Awaitable[Any]) -> Awaitable[Any]:
        """The answer, or an awaitable that also ends when the caller's credential does."""
        ...


# A host has one connection to each other host, and most calls on it are waiting polls. If the clients of the calling
# host disconnect, all their polls are reset at the same time.
LIMITS = RpcLimits(
    message_bytes_max=MESSAGE_BYTES_MAX,
    memory_bytes_max=MEMORY_BYTES_MAX,
    calls_max=2 * CALLS_MAX,
    streams_max=CALLS_MAX,
    resets_burst_max=2 * CALLS_MAX,
    resets_per_s_max=CALLS_MAX,
)
# Until its first identified call, a connection has just enough for one host that begins to call.
STRANGER_LIMITS = RpcLimits(
    message_bytes_max=MESSAGE_BYTES_MAX,
    receive_bytes_max=2 * MESSAGE_BYTES_MAX,
    memory_bytes_max=STRANGER_MEMORY_BYTES_MAX,
    calls_max=2 * CALLS_MAX,
    streams_max=256,
    resets_burst_max=1_000,
    resets_per_s_max=100,
)


class GrpcServer:
    """Serves `handlers` over gRPC until it is stopped.

    The server cancels a handler when its caller disconnects or its deadline passes.
    """

    def __init__(
        self,
        handlers: Handlers,
        *,
        listen: str = "127.0.0.1:0",
        errors: Errors,
        code_of: Callable[[FairleadError], Code],
        calls_max: int = CALLS_MAX,
        tls: ssl.SSLContext | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`code_of` returns the gRPC code of an error; `tls` is a server-side context, None for clear text.

        `metrics` counts the calls of each method, their latency and their errors.
        """
        self._handlers = handlers
        self._listen = listen
        self._errors = errors
        self._code_of = code_of
        self._calls_max = calls_max
        self._metrics = metrics or Metrics()
        self._calls = 0
        self._health = Health([SERVICE])
        self._is_able = True
        self._is_draining = False
        self._is_stopping = False
        self._is_started = False
        self._rpc = RpcServer(listen, limits=LIMITS, stranger_limits=STRANGER_LIMITS, tls=tls)
        self._admission: Admission | None = None
        self._address = ""

    def bind(self) -> str:
        """Bind the socket and return the address, so that the host's name is known before it answers calls."""
        if not self._address:
            # Keep the host as configured, which may be a name; take the port from the socket.
            self._address = f"{self._listen.rpartition(':')[0]}:{self._rpc.bind().rpartition(':')[2]}"
        return self._address

    async def start(self) -> str:
        """Start serving; return the address, with the chosen port if the configured one was 0."""
        self.bind()
        for method, handle in self._handlers:
            self._rpc.add(f"/{SERVICE}/{method.name}", self._answerer(method, handle))
        self._health.add_to(self._rpc)
        await self._rpc.start()
        self._is_started = True
        return self._address

    def use_gate(self, admission: Admission) -> None:
        """Identify the caller of each call before its request is decoded, and check it before it is handled."""
        self._admission = admission

    def set_able(self, *, is_able: bool) -> None:
        """Report to health checks whether this host can serve; calls are still answered."""
        if is_able is not self._is_able and not self._is_draining:
            self._is_able = is_able
            for service in ("", SERVICE):
                self._health.set_serving(service, is_serving=is_able)

    def drain(self) -> None:
        """Report to health checks that calls should go to another host; calls are still answered."""
        self._is_draining = True
        self._health.drain()

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, wait up to `grace_s` seconds for open calls to end, then cancel them.

        Until the end, new calls get an error response: if the connections were closed at once, callers could not know
        whether their calls were carried out.
        """
        self._is_draining = True
        self._health.close()
        self._is_stopping = True
        if self._is_started and grace_s > 0:
            await until(lambda: not self._calls, within_s=grace_s)
            await asyncio.sleep(min(grace_s, LINGER_S))
        await self._rpc.stop(0)
        # A cancelled handler may still have to clean up, for example return a task.
        await until(lambda: not self._calls, within_s=CANCELLED_S_MAX)

    def _answerer(
        self, method: Method[Request, Response], handle: Callable[[Request], Awaitable[Response]]
    ) -> UnaryHandler:
        codec = Codec(method)
        service, _, name = method.name.partition(".")
        counts = self._metrics.calls(service, name)

        async def answer(data: bytes, call: Call) -> bytes:
            if self._is_stopping:
                raise self._failed(call, Unreachable(f"{self._address!r} is stopping: ask for the owner again"))
            if self._calls >= self._calls_max:
                raise self._failed(call, Overloaded(f"{self._calls} calls are under way: send fewer at once"))
            self._calls += 1
            failure: FairleadError
            # The time at which the handler began; 0 while none runs.
            began_s = 0.0
            try:
                admission, claims = self._admission, None
                if admission is not None:
                    claims = await admission.identify(call, method.name)
                call.trust()
                request = codec.decode_request(data)
                # A call may wait for a minute: don't keep its bytes meanwhile.
                del data
                if admission is not None:
                    await admission.check(call, claims, method.name, request)
                began_s = time.perf_counter()
                answering = self._watched(call, claims, method.name, request, handle(request))
                del request
                answer = await answering
                counts.answered(time.perf_counter() - began_s)
                began_s = 0.0
                return codec.encode(answer)
            except FairleadError as error:
                failure = error
                if began_s:
                    counts.failed(type(error).__name__, time.perf_counter() - began_s)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                failure = CallLost(f"{method.name} was cancelled by its host, which is closing")
            except Exception as error:  # noqa: BLE001 - a fault of one handler is no reason to lose the others
                if began_s:
                    counts.failed(type(error).__name__, time.perf_counter() - began_s)
                failure = unexpected(method, error)
            finally:
                self._calls -= 1
            raise self._failed(call, failure)

        return answer

    def _watched(
        self, call: Call, claims: Any, name: str, request: Any, answering: Awaitable[Response]
    ) -> Awaitable[Response]:
        admission = self._admission
        return answering if admission is None else admission.watched(call, claims, name, request, answering)

    def _failed(self, call: Call, error: FairleadError) -> RpcStatus:
        call.set_trailer(ERROR_KEY, self._errors.encode(error))
        return RpcStatus(self._code_of(error), str(error)[:STATUS_TEXT_CHARACTERS_MAX])
