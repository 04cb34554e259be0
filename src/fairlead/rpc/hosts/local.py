"""Calls between the services of one process: plain function calls with a timeout."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from math import inf
from types import CoroutineType, coroutine
from typing import Any

from fairlead.aio.cancellation import is_cancelled
from fairlead.core.errors import FairleadError
from fairlead.rpc.hosts.caller import (
    Caller,
    CallLost,
    Handlers,
    Method,
    Request,
    Response,
    Unreachable,
    unexpected,
)


class LocalNetwork:
    """The hosts of one process, which call each other without encoding messages."""

    def __init__(self) -> None:
        self._hosts: dict[str, Handlers] = {}

    def register(self, host: str, handlers: Handlers) -> None:
        """Make `host` reachable."""
        self._hosts[host] = handlers

    def unregister(self, host: str) -> None:
        """Make `host` unreachable; its open calls continue."""
        self._hosts.pop(host, None)

    def caller(self) -> Caller:
        """Caller for every host that is registered when it is called."""
        return _LocalCaller(self._hosts)


class _LocalCaller:
    """Runs the handler in the caller's task, so that cancelling the caller cancels the handler.

    A timer would cost more than the rest of the call. Most calls need none: their handler never waits, or their
    request bounds the handler's time itself (`timeout_s`, as in polls).
    """

    def __init__(self, hosts: dict[str, Handlers]) -> None:
        self._hosts = hosts

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        handlers = self._hosts.get(host)
        if handlers is None:
            raise Unreachable(f"host {host!r} is not in this process: ask for the owner again")
        if not timeout_s > 0:
            raise CallLost(f"{method.name} was called with a timeout of {timeout_s} s: give more than 0")
        handle = handlers.find(method.name)[1]
        try:
            handling = handle(request)
            if not isinstance(handling, CoroutineType):
                handling = _awaiting(handling)
            try:
                waits_for = handling.send(None)
            except StopIteration as answered:
                answer: Response = answered.value
                return answer
            if getattr(request, "timeout_s", inf) <= timeout_s:
                return await _rest(handling, waits_for)
            return await _rest_within(timeout_s, handling, waits_for, method.name)
        except FairleadError:
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise CallLost(f"{method.name} was cancelled by its host {host!r}, which is closing") from None
        except Exception as error:
            raise unexpected(method, error) from error


async def _awaiting(awaitable: Awaitable[Response]) -> Response:
    return await awaitable


@coroutine
def _rest(handling: Coroutine[Any, Any, Response], waits_for: Any) -> Generator[Any, Any, Response]:
    """Continue a coroutine that was started with `send(None)` and now waits for `waits_for`."""
    answer: Response
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - the coroutine gets every error
            try:
                waits_for = handling.throw(error)
            except StopIteration as answered:
                answer = answered.value
                return answer
        else:
            answer = yield from handling
            return answer


async def _rest_within(
    timeout_s: float, handling: Coroutine[Any, Any, Response], waits_for: Any, method_name: str
) -> Response:
    """Like `asyncio.timeout`, but cheaper: every stored task goes through here."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine that awaits runs in a task
    cancelling_before = task.cancelling()
    is_late = False

    def expire() -> None:
        nonlocal is_late
        is_late = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(timeout_s, expire)
    try:
        return await _rest(handling, waits_for)
    except asyncio.CancelledError:
        if not is_late or task.cancelling() - 1 > cancelling_before:
            raise
        raise CallLost(f"{method_name} was not answered within {timeout_s} s: it may still be carried out") from None
    finally:
        timer.cancel()
        if is_late:
            task.uncancel()
