"""Loads task queues that are only in the store, so that views have their backlog.

A host loads a task queue at its first request, and unloads an idle one after five minutes. Without this, tasks that no
worker polls for would be in no view.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType

if TYPE_CHECKING:
    from fairlead.aio.background import Background
    from fairlead.console.directory import Directory, Loaded
    from fairlead.matching.operator_client import OperatorClient

# Seconds between two loads of a namespace's stored task queues: less than a host keeps an unused one.
LOAD_S: Final = 240.0
# Seconds that the view that begins a load waits for its end.
WAIT_S_MAX: Final = 1.0
# Maximum number of task queues of one load, and number that are loaded concurrently.
LOADED_MAX: Final = 300
LOADED_AT_ONCE: Final = 4
# Task queues that each load keeps loaded.
KEPT_MAX: Final = 100
# Namespaces and task queues whose last load is remembered.
REMEMBERED_MAX: Final = 10_000
_ENDS_WITH_UUID: Final = re.compile(r"[-:][0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")


class StoredQueues:
    """Loads the stored task queues of the namespaces on viewed pages, in the background."""

    def __init__(self, background: "Background") -> None:
        self._background = background
        # When a namespace or a task queue was last loaded.
        self._loaded_at_s: dict[str, float] = {}
        # By namespace: the last task queue of the last load. The next load begins after it.
        self._last: dict[str, TaskQueueId] = {}

    def end(self) -> None:
        """End the loads, when the server stops."""
        self._background.end()

    async def load(
        self, client: "OperatorClient", directory: "Directory", namespace_id: str, loaded: "Loaded", *, now_s: float
    ) -> bool:
        """Load a part of a namespace's stored task queues if that is due; return whether it was done in time."""
        if not self._is_due(namespace_id, now_s):
            return False
        work = self._background.begin(self._load_due(client, directory, namespace_id, loaded))
        done, _ = await asyncio.wait({work}, timeout=WAIT_S_MAX)
        return bool(done) and not work.cancelled() and work.exception() is None

    def load_each(self, client: "OperatorClient", queues: Iterable[TaskQueueId], *, now_s: float) -> None:
        """Begin to load these task queues."""
        due = [one for one in queues if self._is_due(f"{one.namespace_id}/{int(one.type)}/{one.name}", now_s)]
        if due:
            self._background.begin(_load(client, due[:LOADED_MAX]))

    async def _load_due(
        self, client: "OperatorClient", directory: "Directory", namespace_id: str, loaded: "Loaded"
    ) -> None:
        # A request keeps the longest of the ones that wait without a worker loaded.
        unserved = (one for one in loaded.queues.values() if one.backlog and not one.polls and not one.is_sticky)
        longest = nlargest(KEPT_MAX, unserved, key=attrgetter("backlog"))
        kept = [TaskQueueId(one.namespace_id, one.name, TaskType(one.type)) for one in longest]
        stored = await directory.stored(client, namespace_id)
        unloaded = [
            queue
            for queue in stored
            if (queue.namespace_id, queue.name, int(queue.type)) not in loaded.queues and not is_sticky_name(queue.name)
        ]
        await _load(client, [*kept, *self._following(namespace_id, unloaded)])

    def _following(self, namespace_id: str, unloaded: list[TaskQueueId]) -> list[TaskQueueId]:
        """The next part of the task queues, which are in the order of their ids."""
        last = self._last.get(namespace_id)
        later = [one for one in unloaded if last is None or one > last]
        found = [*later, *(one for one in unloaded if last is not None and one <= last)][:LOADED_MAX]
        if found:
            self._last[namespace_id] = found[-1]
        return found

    def _is_due(self, what: str, now_s: float) -> bool:
        """Whether a namespace or a task queue should be loaded now; if so, not again for `LOAD_S`."""
        if self._background.is_ended or now_s - self._loaded_at_s.get(what, 0.0) < LOAD_S:
            return False
        if len(self._loaded_at_s) >= REMEMBERED_MAX:
            self._loaded_at_s.clear()
            self._last.clear()
        self._loaded_at_s[what] = now_s
        return True


def is_sticky_name(name: str) -> bool:
    """Whether a name looks like that of a worker's sticky task queue: SDKs end it with a UUID."""
    return _ENDS_WITH_UUID.search(name) is not None


async def _load(client: "OperatorClient", queues: Iterable[TaskQueueId]) -> None:
    waiting: Iterator[TaskQueueId] = iter(queues)

    async def describe() -> None:
        for queue in waiting:
            with suppress(FairleadError):
                await client.describe(queue)

    await asyncio.gather(*(describe() for _ in range(LOADED_AT_ONCE)))
