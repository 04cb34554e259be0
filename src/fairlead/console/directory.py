"""The task queues of each namespace, loaded and stored, kept for a moment for all viewers.

Reading them costs time in proportion to their number, and every page, order and search of the list needs all of them.
Callers check the viewer's rights first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from fairlead.core.errors import FairleadError
    from fairlead.core.partitions import TaskQueueId
    from fairlead.matching.messages.inspection import LoadedQueue
    from fairlead.matching.operator_client import OperatorClient

# Seconds for which figures are kept: less than the time between two samples of a live view.
FIGURES_FRESH_S: Final = 1.5
# Seconds for which the list of the store is kept. A new task queue is loaded, and is seen at once.
STORED_FRESH_S: Final = 60.0
# Number of namespaces, of each kind of list, that are kept.
NAMESPACES_MAX: Final = 50

T = TypeVar("T")
# Namespace id, name and type of a task queue.
QueueKey = tuple[str, str, int]


class Loaded(NamedTuple):
    """The loaded task queues by name, with sticky ones, and the hosts that did not answer."""

    queues: "dict[QueueKey, LoadedQueue]"
    missing: "dict[str, FairleadError]"


class Kept(Generic[T]):
    """Keeps the result of a read for some seconds; callers that come while it is being read share the read."""

    def __init__(
        self, fresh_s: float, *, entries_max: int = NAMESPACES_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fresh_s = fresh_s
        self._entries_max = entries_max
        self._clock = clock
        # By key: when the read began, and the read.
        self._reads: dict[str, tuple[float, asyncio.Task[T]]] = {}

    async def get(self, key: str, read: Callable[[], Awaitable[T]], *, is_new: bool = False) -> T:
        """The result for a key; it is read again if it is too old, has failed, or must be new."""
        known = self._reads.get(key)
        now_s = self._clock()
        if known is None or is_new or now_s - known[0] > self._fresh_s or _has_failed(known[1]):
            if len(self._reads) >= self._entries_max:
                self._reads.clear()

            async def result() -> T:
                return await read()

            known = self._reads[key] = (now_s, asyncio.create_task(result()))
        # A viewer that goes away does not end the read for the others.
        return await asyncio.shield(known[1])


def _has_failed(read: "asyncio.Task[T]") -> bool:
    return read.done() and (read.cancelled() or read.exception() is not None)


class Directory:
    """The task queues of all namespaces on viewed pages."""

    def __init__(self) -> None:
        self._loaded: Kept[Loaded] = Kept(FIGURES_FRESH_S)
        self._stored: Kept[dict[TaskQueueId, list[int]]] = Kept(STORED_FRESH_S)

    async def loaded(self, client: "OperatorClient", namespace_id: str, *, is_new: bool = False) -> Loaded:
        """The loaded task queues of a namespace over all hosts."""

        async def read() -> Loaded:
            found, missing = await client.figures(namespace_id)
            found.sort(key=attrgetter("name", "type"))
            return Loaded({(one.namespace_id, one.name, one.type): one for one in found}, missing)

        return await self._loaded.get(namespace_id, read, is_new=is_new)

    async def stored(
        self, client: "OperatorClient", namespace_id: str, *, is_new: bool = False
    ) -> "dict[TaskQueueId, list[int]]":
        """The stored task queues of a namespace by name, with the numbers of their partitions."""
        return await self._stored.get(namespace_id, lambda: client.list_task_queues(namespace_id), is_new=is_new)
