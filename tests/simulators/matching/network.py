"""A network that delays, loses, repeats and reorders messages, and hosts that die during a call; the seed decides."""

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from fairlead.core.errors import FairleadError, GiveUp
from fairlead.rpc.hosts.caller import CallLost, Handlers, Method, Unreachable
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.rpc.hosts.wire import Codec, Errors
from fairlead.simulations.virtual_loop import NOBODY, Process, VirtualLoop
from tests.simulators.matching.transcript import Transcript

Request = TypeVar("Request")
Response = TypeVar("Response")
Watch = Callable[["Call"], None]

DELAY_S_MIN, DELAY_S_MAX = 0.0005, 0.005
# Seconds after a crash at which the callers of the crashed process get an error.
RESET_S = 0.01


@dataclass(frozen=True, slots=True)
class Weather:
    """The share of messages with each fault, from 0 (never) to 1 (always)."""

    slow: float = 0.0
    slow_s_max: float = 2.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    repeated: float = 0.0


CALM = Weather()


@dataclass(slots=True, eq=False)
class Call:
    """One call: the request and its response."""

    number: int
    caller: Process
    host: str
    method: Method[Any, Any]
    request: Any
    body: bytes
    deadline_s: float
    answer: "asyncio.Future[bytes]"
    # Handlers at the called host: one, or two if the request was repeated.
    running: "list[asyncio.Task[None]]" = field(default_factory=list)
    is_over: bool = False

    @property
    def is_local(self) -> bool:
        """Whether a host calls itself: such a call has no network faults."""
        return self.caller.name == self.host

    def __str__(self) -> str:
        return f"#{self.number} {self.method.name.removeprefix('matching.')} {self.caller.name}>{self.host}"


class SimNetwork:
    """Transports calls between processes.

    `watch_sent` and `watch_ended` inform the checks about each call of a caller.
    """

    def __init__(self, random: Random, transcript: Transcript, errors: Errors) -> None:
        self._random = random
        self._transcript = transcript
        self._errors = errors
        self._codecs: dict[str, Codec[Any, Any]] = {}
        # Transports the calls of a host to itself, as outside of the simulation.
        self._local = LocalNetwork()
        self._hosts: dict[str, tuple[Process, Handlers]] = {}
        self._cuts: dict[frozenset[str], None] = {}
        self._calls: dict[Call, None] = {}
        self._calls_ever = 0
        self._is_over = False
        self._outside = NOBODY.context()
        self.weather = CALM
        self.watch_sent: Watch = lambda _: None
        self.watch_ended: Watch = lambda _: None

    def attach(self, process: Process, handlers: Handlers) -> None:
        """Register `process` as the handler of calls to its name."""
        self._hosts[process.name] = (process, handlers)
        self._local.register(process.name, handlers)

    def detach(self, process: Process) -> None:
        """Remove a stopped or killed process: calls to it fail, and its own calls are cancelled at the called hosts."""
        if self._hosts.get(process.name, (None,))[0] is process:
            del self._hosts[process.name]
            self._local.unregister(process.name)
        for call in list(self._calls):
            if call.host == process.name and call.running:
                self._later(RESET_S, self._deliver, call, CallLost(f"{call}: the connection was reset"))
            if call.caller is process:
                self._end(call)

    def cut(self, one: str, other: str) -> None:
        """Drop all messages between the two hosts, in both directions."""
        self._cuts[frozenset((one, other))] = None

    def mend(self, one: str, other: str) -> None:
        """Deliver messages between the two hosts again."""
        self._cuts.pop(frozenset((one, other)), None)

    def mend_all(self) -> None:
        """Deliver messages between all hosts again."""
        self._cuts.clear()

    def caller(self, process: Process) -> "SimCaller":
        """The `Caller` that `process` uses."""
        return SimCaller(self, process)

    def stop(self) -> None:
        """End the run: all calls fail at once."""
        self._is_over = True

    async def call(self, caller: Process, host: str, method: Method[Any, Any], request: Any, timeout_s: float) -> Any:
        """See `Caller.call`."""
        if self._is_over:
            raise Unreachable("the simulation is over")
        loop = asyncio.get_running_loop()
        self._calls_ever += 1
        call = Call(
            number=self._calls_ever,
            caller=caller,
            host=host,
            method=method,
            request=request,
            body=self._codec(method).encode(request),
            deadline_s=loop.time() + timeout_s,
            answer=loop.create_future(),
        )
        self._calls[call] = None
        self.watch_sent(call)
        try:
            if call.is_local:
                return await self._local.caller().call(host, method, request, timeout_s=timeout_s)
            self._send(call)
            async with asyncio.timeout(timeout_s):
                return self._codec(method).decode_answer(await call.answer)
        except TimeoutError:
            raise CallLost(f"{call}: no response within {timeout_s:.3f} s") from None
        finally:
            self._end(call)

    def _end(self, call: Call) -> None:
        """The caller no longer waits for the response."""
        if call.is_over:
            return
        call.is_over = True
        del self._calls[call]
        self.watch_ended(call)
        if any(not task.done() for task in call.running):
            self._travel(call, self._cancel, call)

    def _send(self, call: Call) -> None:
        self._travel(call, self._arrive, call, lost=self.weather.request_lost)
        if self._happens(self.weather.repeated):
            self._transcript.note("network", f"{call} is repeated")
            self._travel(call, self._arrive, call)

    def _travel(self, call: Call, arrive: Callable[..., None], *arguments: Any, lost: float = 0.0) -> None:
        """Deliver a message of `call` after a delay, or lose it."""
        if self._happens(lost):
            self._transcript.note("network", f"{call}: a message is lost before {arrive.__name__.strip('_')}")
            return
        delay_s = self._random.uniform(DELAY_S_MIN, DELAY_S_MAX)
        if self._happens(self.weather.slow):
            delay_s += self._random.uniform(0.0, self.weather.slow_s_max)
        self._later(delay_s, self._cross, call, arrive, arguments)

    def _cross(self, call: Call, arrive: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if frozenset((call.caller.name, call.host)) not in self._cuts:
            arrive(*arguments)

    def _arrive(self, call: Call) -> None:
        target = self._hosts.get(call.host)
        if target is None:
            self._travel(call, self._deliver, call, Unreachable(f"{call}: nobody is there"))
        elif not call.is_over or self._happens(0.5):
            # If the caller has given up, its cancellation may arrive before the request or after it.
            process, handlers = target
            loop = running_loop()
            # The called host knows the caller's timeout.
            deadline = self._later(max(0.0, call.deadline_s - loop.time()), self._cancel, call)
            call.running.append(loop.spawn(process, self._handle(call, handlers, deadline), f"handle {call}"))

    async def _handle(self, call: Call, handlers: Handlers, deadline: asyncio.TimerHandle) -> None:
        """Handle a call inside the called host."""
        answer = await self._carry_out(call, handlers)
        deadline.cancel()
        self._travel(call, self._deliver, call, answer, lost=self.weather.answer_lost)

    async def _carry_out(self, call: Call, handlers: Handlers) -> bytes | FairleadError:
        """The response, encoded and decoded as in a real call, or the error."""
        try:
            method, handle = handlers.find(call.method.name)
            codec = self._codec(method)
            return codec.encode(await handle(codec.decode_request(call.body)))
        except FairleadError as error:
            return self._errors.decode(self._errors.encode(error))
        except Exception as bug:  # noqa: BLE001 - any exception here is a bug, and reported
            self._transcript.violate(call.host, f"{call} raised {''.join(traceback.format_exception(bug))}")
            return GiveUp(f"{call}: {bug!r}")

    def _codec(self, method: Method[Any, Any]) -> Codec[Any, Any]:
        if method.name not in self._codecs:
            self._codecs[method.name] = Codec(method)
        return self._codecs[method.name]

    def _deliver(self, call: Call, answer: bytes | FairleadError) -> None:
        if call.answer.done():
            return
        if isinstance(answer, FairleadError):
            call.answer.set_exception(answer)
        else:
            call.answer.set_result(answer)

    def _cancel(self, call: Call) -> None:
        for task in call.running:
            task.cancel()

    def _happens(self, share: float) -> bool:
        return share > 0.0 and self._random.random() < share

    def _later(self, delay_s: float, do: Callable[..., None], *arguments: Any) -> asyncio.TimerHandle:
        return running_loop().call_later(delay_s, do, *arguments, context=self._outside)


class SimCaller:
    """A `Caller` for one process of the simulation."""

    def __init__(self, network: SimNetwork, process: Process) -> None:
        self._network = network
        self._process = process

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        """Call `host` through the network, even if it is the caller itself."""
        answer: Response = await self._network.call(self._process, host, method, request, timeout_s)
        return answer


def running_loop() -> VirtualLoop:
    """The running loop, which is a virtual one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop
