"""Small steps of one run in one commit: steps that arrive while the run is locked are committed together."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.api.namespaces import Namespace
from fairlead.core.errors import FixRequest
from fairlead.history.events import Transaction
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.storage.history import RunKey

if TYPE_CHECKING:
    from fairlead.history.shard.shard import Shard

# Maximum number and bytes of the steps in one commit; a single step may be larger.
GROUP_STEPS_MAX = 200
GROUP_BYTES_MAX = 256 * 1024

T = TypeVar("T")
# A step. Its third argument is the number of steps before it in the same commit. To reject its request, it must raise
# `FixRequest` before it changes anything.
GroupedStep = Callable[[Transaction, LoadedRun, int], T]


class _Member:
    __slots__ = ("answer", "rejection", "result", "size_bytes", "step")

    def __init__(self, step: GroupedStep[Any], size_bytes: int, answer: "asyncio.Future[Any]") -> None:
        self.step = step
        self.size_bytes = size_bytes
        self.answer = answer
        self.result: Any = None
        self.rejection: FixRequest | None = None


class GroupedSteps:
    """Takes steps of open runs, in order of arrival. A rejected step does not affect the other steps of its commit."""

    def __init__(self, shard: "Shard") -> None:
        self._shard = shard
        self._waiting: dict[RunKey, list[_Member]] = {}
        self._going: set[asyncio.Task[None]] = set()

    async def change(self, namespace: Namespace, key: RunKey, step: GroupedStep[T], *, size_bytes: int) -> T:
        """Take a step of a run, like `Shard.change`, and return its result when it is durable."""
        if not self._shard.is_locked(key.namespace_id, key.workflow_id):
            return await self._shard.change(
                namespace, key.workflow_id, key.run_id, lambda transaction, run: step(transaction, run, 0)
            )
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        members = self._waiting.get(key)
        if members is None:
            members = self._waiting[key] = []
            # A separate task, so that the group continues if one of its callers is cancelled.
            task = asyncio.get_running_loop().create_task(self._take_all(namespace, key))
            self._going.add(task)
            task.add_done_callback(self._going.discard)
        members.append(_Member(step, size_bytes, answer))
        return await answer

    async def _take_all(self, namespace: Namespace, key: RunKey) -> None:
        """Take the waiting steps when the lock is free."""
        members: list[_Member] = []
        try:
            async with self._shard.lock(key.namespace_id, key.workflow_id):
                while key in self._waiting:
                    members = self._next_group(key)
                    await self._take(namespace, key, members)
        except BaseException as failure:
            members += self._waiting.pop(key, [])
            if not isinstance(failure, Exception):
                for member in members:
                    member.answer.cancel()
                raise
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(failure)

    def _next_group(self, key: RunKey) -> list[_Member]:
        waiting = self._waiting[key]
        count = size_bytes = 0
        while count < min(len(waiting), GROUP_STEPS_MAX) and size_bytes < GROUP_BYTES_MAX:
            size_bytes += waiting[count].size_bytes
            count += 1
        group, rest = waiting[:count], waiting[count:]
        if rest:
            self._waiting[key] = rest
        else:
            del self._waiting[key]
        # Leave out steps whose callers were cancelled while they waited.
        return [member for member in group if not member.answer.done()]

    async def _take(self, namespace: Namespace, key: RunKey, members: list[_Member]) -> None:
        if not members:
            return

        def steps(transaction: Transaction, run: LoadedRun) -> None:
            taken = 0
            for member in members:
                try:
                    member.result = member.step(transaction, run, taken)
                    taken += 1
                except FixRequest as rejection:
                    member.rejection = rejection
            if not taken and members[-1].rejection is not None:
                # All steps were rejected, so there is nothing to write: raise the last rejection.
                raise members[-1].rejection

        try:
            await self._shard.change_locked(namespace, key.workflow_id, key.run_id, steps)
        except FixRequest:
            if any(member.rejection is None for member in members):
                raise
        for member in members:
            if member.answer.done():
                continue
            if member.rejection is None:
                member.answer.set_result(member.result)
            else:
                member.answer.set_exception(member.rejection)
