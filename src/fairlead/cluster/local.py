"""Calls between the services of one process: a plain function call, bounded in time."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from math import inf
from types import CoroutineType, coroutine
from typing import Any

from fairlead.cluster.calls import (
    Answer,
    Caller,
    CallLost,
    Handlers,
    Method,
    Request,
    Unreachable,
    is_cancelled,
    unexpected,
)
from fairlead.core.errors import FairleadError


class LocalNetwork:
    """The hosts of one process, which reach each other without encoding anything."""

    def __init__(self) -> None:
        self._hosts: dict[str, Handlers] = {}

    def register(self, host: str, handlers: Handlers) -> None:
        """Let `host` be reached from now on."""
        self._hosts[host] = handlers

    def unregister(self, host: str) -> None:
        """Let `host` be reached no longer; the calls that it has taken go on."""
        self._hosts.pop(host, None)

    def caller(self) -> Caller:
        """Calls every host that is registered by then."""
        return _LocalCaller(self._hosts)


class _LocalCaller:
    """Runs the handler in the caller's own task, so that whoever cancels the one cancels the other.

    A timer costs more than all else here, and most calls don't need one: those whose handler never waits, and those
    whose request says itself how long the handler may take (`timeout_s`, as polls do).
    """

    def __init__(self, hosts: dict[str, Handlers]) -> None:
        self._hosts = hosts

    async def call(self, host: str, method: Method[Request, Answer], request: Request, *, timeout_s: float) -> Answer:
        handlers = self._hosts.get(host)
        if handlers is None:
            raise Unreachable(f"host {host!r} is not in this process: ask for the owner again")
        if not timeout_s > 0:
            raise CallLost(f"{method.name} was to be answered within {timeout_s} s: allow it some time")
        handle = handlers.find(method.name)[1]
        try:
            handling = handle(request)
            if not isinstance(handling, CoroutineType):
                handling = _awaiting(handling)
            try:
                waits_for = handling.send(None)
            except StopIteration as answered:
                answer: Answer = answered.value
                return answer
            if getattr(request, "timeout_s", inf) <= timeout_s:
                return await _rest(handling, waits_for)
            return await _rest_within(timeout_s, handling, waits_for, method.name)
        except FairleadError:
            raise
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise CallLost(f"{method.name} was cancelled by its own host {host!r}: it is closing") from None
        except Exception as error:
            raise unexpected(method, error) from error


async def _awaiting(awaitable: Awaitable[Answer]) -> Answer:
    return await awaitable


@coroutine
def _rest(handling: Coroutine[Any, Any, Answer], waits_for: Any) -> Generator[Any, Any, Answer]:
    """Go on with a coroutine that was begun by hand and waits for the first time."""
    answer: Answer
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is meant for the coroutine
            try:
                waits_for = handling.throw(error)
            except StopIteration as answered:
                answer = answered.value
                return answer
        else:
            answer = yield from handling
            return answer


async def _rest_within(
    timeout_s: float, handling: Coroutine[Any, Any, Answer], waits_for: Any, method_name: str
) -> Answer:
    """What `asyncio.timeout` does, for less: this is on the way of every task that is stored."""
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
        raise CallLost(f"{method_name} was not answered within {timeout_s} s: it may yet be carried out") from None
    finally:
        timer.cancel()
        if is_late:
            task.uncancel()
