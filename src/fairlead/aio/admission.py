"""Admission of calls on a busy host: namespaces take turns."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from fairlead.core.fairness import FairTurns

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Seconds after which a call no longer counts as running, so that a call that waits long (say, for a failover) does not
# delay others.
TURN_S_MAX = 0.1
# Seconds for which the number of running calls stays bounded after calls of two namespaces alternated.
SHARED_S = 10.0


class Admission:
    """Bounds the number of calls or tasks that run at once; further ones wait, and their namespaces take turns.

    A namespace without a running call begins one at once, even beside a namespace with hundreds of calls in flight.
    Such extra calls have as many places of their own as the bound, so that they keep no waiting call from its turn.
    While only one namespace has calls, there is no bound, and its calls can share commits. Calls without a namespace,
    such as the first call of every client, take turns like those of a namespace, but set no bound.
    """

    def __init__(self, at_once_max: Callable[[], int]) -> None:
        self._at_once_max = at_once_max
        # The running calls, oldest first: number of the call, its namespace and the time at which it began.
        self._begun: dict[int, tuple[str, float]] = {}
        # The running extra calls.
        self._extra: set[int] = set()
        # Number of running calls of each namespace that has any.
        self._running: dict[str, int] = {}
        self._waiting = FairTurns[tuple[str, asyncio.Future[int]]]()
        self._calls = 0
        self._last_namespace: str | None = None
        self._shared_until_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of calls that wait for their turn; may include cancelled ones."""
        return len(self._waiting)

    def try_begin(self, namespace: str) -> int:
        """Begin a call at once and return its number; return 0 if the call has to wait."""
        now_s = asyncio.get_running_loop().time()
        if namespace and namespace != self._last_namespace:
            if self._last_namespace is not None:
                self._shared_until_s = now_s + SHARED_S
            self._last_namespace = namespace
        is_shared = now_s < self._shared_until_s
        if not len(self._waiting) and (not is_shared or self._has_place()):
            return self._begin(namespace, now_s)
        if namespace in self._running or len(self._extra) >= self._at_once_max():
            return 0
        call = self._begin(namespace, now_s)
        self._extra.add(call)
        return call

    async def begin(self, namespace: str) -> int:
        """Wait for the namespace's turn; return the call's number."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[int] = loop.create_future()
        self._waiting.add(namespace, (namespace, turn))
        self._watch(loop)
        try:
            return await turn
        except asyncio.CancelledError:
            # The caller was cancelled after its turn had come: end its call.
            if turn.done() and not turn.cancelled():
                self.end(turn.result())
            raise

    async def answer(self, namespace: str, call: Callable[[], Awaitable[Answer]], *, may_wait: bool) -> Answer:
        """Make a call when the namespace's turn comes; if it `may_wait`, `end_turn` ends its turn before it returns."""
        turn = self.try_begin(namespace) or await self.begin(namespace)
        before = _TURN.set((self, turn) if may_wait else None)
        try:
            return await call()
        finally:
            _TURN.reset(before)
            self.end(turn)

    async def carry_out(self, namespace: str, run: Callable[[Item], Awaitable[None]], item: Item) -> None:
        """Call `run` with the item when the namespace's turn comes."""
        turn = self.try_begin(namespace) or await self.begin(namespace)
        try:
            await run(item)
        finally:
            self.end(turn)

    def end(self, call: int) -> None:
        """End a call and begin waiting calls; does nothing if the call has ended."""
        if call in self._begun:
            self._forget(call)
            if len(self._waiting):
                self._admit()

    def _has_place(self) -> bool:
        return len(self._begun) - len(self._extra) < self._at_once_max()

    def _begin(self, namespace: str, now_s: float) -> int:
        self._calls += 1
        self._begun[self._calls] = (namespace, now_s)
        self._running[namespace] = self._running.get(namespace, 0) + 1
        return self._calls

    def _forget(self, call: int) -> None:
        namespace, _ = self._begun.pop(call)
        self._extra.discard(call)
        self._running[namespace] -= 1
        if not self._running[namespace]:
            del self._running[namespace]

    def _admit(self) -> None:
        """Begin waiting calls in the namespaces' turns, until the bound is reached."""
        now_s = asyncio.get_running_loop().time()
        while len(self._waiting) and self._has_place():
            namespace, turn = self._waiting.next()
            # Skip cancelled calls.
            if not turn.done():
                turn.set_result(self._begin(namespace, now_s))

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """While calls wait, set a timer that stops counting a running call after `TURN_S_MAX`."""
        if self._timer is None and len(self._waiting):
            _, oldest_s = next(iter(self._begun.values()), ("", loop.time()))
            self._timer = loop.call_at(oldest_s + TURN_S_MAX, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        begun_by_s = loop.time() - TURN_S_MAX
        for call in [call for call, (_, begun_s) in self._begun.items() if begun_s <= begun_by_s]:
            self._forget(call)
        self._admit()
        self._watch(loop)


# The turn of the call that runs, if it is one that may wait for long.
_TURN: ContextVar[tuple[Admission, int] | None] = ContextVar("turn", default=None)


def end_turn() -> None:
    """Let other calls run: the present call begins to wait for an event, such as a worker's response."""
    turn = _TURN.get()
    if turn is not None:
        admission, call = turn
        admission.end(call)
