"""Locks of workflow ids: one caller at a time reads or changes the runs of a workflow id."""

import asyncio
from collections import deque

_Key = tuple[str, str]
_Waiters = deque[asyncio.Future[None]]


class WorkflowLocks:
    """The locked workflow ids, each with its waiting callers in order of arrival."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        # None while no caller waits: most locks are released before another caller needs them.
        self._held: dict[_Key, _Waiters | None] = {}

    def __call__(self, namespace_id: str, workflow_id: str) -> "WorkflowLock":
        """The lock of a workflow id, for `async with`."""
        return WorkflowLock(self._held, (namespace_id, workflow_id))

    def is_held(self, namespace_id: str, workflow_id: str) -> bool:
        """Whether a caller has the lock of a workflow id."""
        return (namespace_id, workflow_id) in self._held


class WorkflowLock:
    """The lock of one workflow id. When it is released, it passes to the caller that has waited longest."""

    __slots__ = ("_held", "_key")

    def __init__(self, held: dict[_Key, _Waiters | None], key: _Key) -> None:
        self._held = held
        self._key = key

    async def __aenter__(self) -> None:
        held, key = self._held, self._key
        if key not in held:
            held[key] = None
            return
        waiters = held[key]
        if waiters is None:
            waiters = held[key] = deque()
        waiter = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.cancelled():
                if waiter in waiters:
                    waiters.remove(waiter)
            else:
                # The lock was passed to this caller at the moment of its cancellation: pass it on.
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        waiters = self._held[self._key]
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        del self._held[self._key]
