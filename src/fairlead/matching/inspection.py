"""Requests of operators to the task queues of one host: figures, waiting tasks, and the removal of clients' tasks."""

from functools import partial

from fairlead.core.errors import FixRequest
from fairlead.core.namespaces import VERSION_MARK
from fairlead.core.partitions import TaskQueueId
from fairlead.matching.engine import Engine
from fairlead.matching.handlers.inspect_tasks import IsOwned, peek_tasks, purge_tasks
from fairlead.matching.messages import QueueKind
from fairlead.matching.messages.inspection import (
    FIGURES,
    PEEK,
    PEEKED_MAX,
    PURGE,
    FiguresRequest,
    FiguresResponse,
    LoadedQueue,
    PeekRequest,
    PeekResponse,
    PurgeRequest,
    PurgeResponse,
    together,
)
from fairlead.matching.partition.manager import PartitionManager
from fairlead.rpc.hosts.caller import Handlers


class InvalidPeek(FixRequest):
    """A peek asks for too many tasks, or for none."""


class Inspection:
    """Handles the requests of operators to the loaded partitions of a host.

    `is_owned` returns whether the history service owns the task with a payload.
    """

    def __init__(self, engine: Engine, *, is_owned: IsOwned) -> None:
        self._engine = engine
        self._is_owned = is_owned

    def add_to(self, handlers: Handlers) -> None:
        """Register the methods."""
        handlers.add(PEEK, self.peek)
        handlers.add(PURGE, self.purge)
        handlers.add(FIGURES, self.figures)

    async def peek(self, request: PeekRequest) -> PeekResponse:
        """Return the first tasks that wait in a partition."""
        if not 1 <= request.limit <= PEEKED_MAX:
            raise InvalidPeek(f"limit is {request.limit}: ask for 1 to {PEEKED_MAX} tasks")
        return await self._engine.use(request.partition, request.kind, peek_tasks, request, is_use=False)

    async def purge(self, request: PurgeRequest) -> PurgeResponse:
        """Remove the tasks of clients from a partition."""
        handle = partial(purge_tasks, is_owned=self._is_owned)
        return await self._engine.use(request.partition, request.kind, handle, request, is_use=False)

    async def figures(self, request: FiguresRequest) -> FiguresResponse:
        """Return the figures of the task queues that this host has loaded."""
        wanted = request.namespace_id
        versions = f"{wanted}{VERSION_MARK}"
        found: dict[TaskQueueId, LoadedQueue] = {}
        for manager in self._engine.managers():
            task_queue = manager.partition_id.task_queue
            namespace_id = task_queue.namespace_id
            if wanted is not None and namespace_id != wanted and not namespace_id.startswith(versions):
                continue
            one, known = _figures(manager), found.get(task_queue)
            found[task_queue] = one if known is None else together(known, one)
        return FiguresResponse(list(found.values()))


def _figures(manager: PartitionManager) -> LoadedQueue:
    """The figures of a partition. A console reads them of thousands of partitions every few seconds."""
    task_queue, queue = manager.partition_id.task_queue, manager.queue
    now_s = manager.clock()
    return LoadedQueue(
        task_queue.namespace_id,
        task_queue.name,
        int(task_queue.type),
        partitions=1,
        backlog=queue.backlog.priorities.tasks,
        age_s=max(0.0, now_s - queue.oldest_s()) if queue.tasks_loaded else 0.0,
        adds_per_s=manager.adds.by_priority.rate(now_s),
        dispatches_per_s=queue.dispatches.rate(now_s),
        polls=queue.polls_waiting,
        is_sticky=manager.kind is QueueKind.STICKY,
        is_polled=queue.pollers.has_recent,
    )
