"""Requests of operators to the task queues of one host: figures, waiting tasks, and the removal of clients' tasks."""

from collections.abc import Callable, Iterable
from functools import partial

from fairlead.core.errors import FixRequest
from fairlead.core.namespaces import split_version
from fairlead.matching.engine import Engine
from fairlead.matching.handlers.inspect_tasks import IsOwned, peek_tasks, purge_tasks
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
)
from fairlead.rpc.hosts.caller import Handlers
from fairlead.telemetry import PartitionGauges


class InvalidPeek(FixRequest):
    """A peek asks for too many tasks, or for none."""


class Inspection:
    """Handles the requests of operators to the loaded partitions of a host.

    `is_owned` returns whether the history service owns the task with a payload.
    """

    def __init__(self, engine: Engine, gauges: Callable[[], Iterable[PartitionGauges]], *, is_owned: IsOwned) -> None:
        self._engine = engine
        self._gauges = gauges
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
        found: dict[tuple[str, str, int], list[PartitionGauges]] = {}
        for gauges in self._gauges():
            if request.namespace_id in {None, split_version(gauges.namespace)[0]}:
                key = (gauges.namespace, gauges.task_queue, int(gauges.task_type))
                found.setdefault(key, []).append(gauges)
        return FiguresResponse([_sums(*key, partitions) for key, partitions in found.items()])


def _sums(namespace_id: str, name: str, task_type: int, partitions: list[PartitionGauges]) -> LoadedQueue:
    return LoadedQueue(
        namespace_id,
        name,
        task_type,
        partitions=len(partitions),
        backlog=int(sum(one.approximate_backlog_count or 0 for one in partitions)),
        age_s=max(one.approximate_backlog_age_seconds or 0.0 for one in partitions),
        adds_per_s=sum(one.task_add_rate or 0.0 for one in partitions),
        dispatches_per_s=sum(one.task_dispatch_rate or 0.0 for one in partitions),
        polls=int(sum(one.pending_polls or 0 for one in partitions)),
        is_sticky=any(one.is_sticky for one in partitions),
    )
