"""The matching service of one host: handles the requests of clients and other hosts to the partitions that it owns."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.aio.deadlines import new_wakes
from fairlead.core.errors import FixRequest
from fairlead.core.namespaces import NamespaceNames
from fairlead.core.partitions import Partition, TaskType
from fairlead.core.routing import NoHosts
from fairlead.journal import TaskJournal
from fairlead.matching.backlog_journal import BacklogSnapshots
from fairlead.matching.clock import Clock
from fairlead.matching.engine import Engine, EngineTimes
from fairlead.matching.forwarding.peers import Peers
from fairlead.matching.gauges import partition_gauges
from fairlead.matching.handlers.add_task import add_task, offer_query_task
from fairlead.matching.handlers.free_slot import note_free_slot
from fairlead.matching.handlers.poll_task import lean_request, poll_task
from fairlead.matching.handlers.reserve_poll import reserve_poll
from fairlead.matching.handlers.review_tasks import review_tasks
from fairlead.matching.handlers.sticky_worker import (
    add_sticky_task,
    poll_sticky_task,
    shut_down_worker,
    sticky_worker_gone,
)
from fairlead.matching.load_limits import LoadLimits
from fairlead.matching.messages import (
    ADD,
    CONFIGURE,
    DESCRIBE,
    EXPLAIN,
    FREE_SLOT,
    LIST,
    POLL,
    PUSH,
    RECALL,
    REPORT,
    REVIEW,
    SHUTDOWN,
    UPDATE,
    AddRequest,
    AddResponse,
    ConfigureRequest,
    ConfigureResponse,
    DescribeRequest,
    DescribeResponse,
    ExplainRequest,
    ExplainResponse,
    ListRequest,
    ListResponse,
    PollRequest,
    PollResponse,
    PushRequest,
    PushResponse,
    QueueKind,
    RecallRequest,
    RecallResponse,
    ReportRequest,
    ReportResponse,
    ReviewRequest,
    ReviewResponse,
    ShutdownRequest,
    ShutdownResponse,
    UpdateRequest,
    UpdateResponse,
)
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.reserved_poll import Reserve
from fairlead.matching.setting_changes import follow_settings
from fairlead.matching.task_starter import Starter, start_plainly
from fairlead.membership.ring import RING, RingRequest, RingResponse, RingView
from fairlead.rpc.hosts.caller import Caller, Handlers
from fairlead.settings import EVERYWHERE, DynamicSettings
from fairlead.settings.dynamic import matching
from fairlead.storage.tasks import QueueId, TaskStore
from fairlead.telemetry import Metrics, PartitionGauges

Request = TypeVar("Request")
Response = TypeVar("Response")

LIST_MAX = 1000
KEYS_LISTED_MAX = 1000
IDENTITY_CHARACTERS_MAX = 1000
# Maximum bytes of a worker's description; a partition keeps the descriptions of all recent pollers.
WORKER_BYTES_MAX = 4096


class InvalidRequest(FixRequest):
    """A field of a request is invalid; the message begins with the field's name."""


class MatchingService:
    """The matching role of a host. The caller injects the clock, the store, the transport and the ring."""

    def __init__(
        self,
        host: str,
        *,
        store: TaskStore,
        caller: Caller,
        ring: RingView,
        settings: DynamicSettings,
        clock: Clock,
        metrics: Metrics,
        start: Starter = start_plainly,
        times: EngineTimes | None = None,
        log: FilteringBoundLogger | None = None,
        journal: TaskJournal | None = None,
        names: NamespaceNames | None = None,
    ) -> None:
        """`names` maps namespace ids to names in the log; without it, the log shows the ids."""
        self.host = host
        self._journal = journal
        self._store = store
        self._peers = Peers(caller, ring)
        self._ring = ring
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._start = start
        self._log = (log or structlog.get_logger()).bind(host=host)
        self._names = names or NamespaceNames()
        self.engine = Engine(
            host,
            open_manager=self._open_manager,
            close_manager=self._manager_closed,
            route=self._owner,
            clock=clock,
            limits=LoadLimits.of(settings),
            times=times or EngineTimes(idle_s=settings.get(matching.MAX_TASK_QUEUE_IDLE_TIME)),
        )
        self._wakes = new_wakes()
        self._log_of = partial(_partition_log, self._log, self._names)
        self._unfollow = follow_settings(settings, self.engine.all_managers)
        self._snapshots = None if journal is None else BacklogSnapshots(self.engine, settings=settings, clock=clock)
        self._reconsidering: asyncio.TimerHandle | None = None
        ring.on_change(self._ring_changed)
        metrics.watch(self.gauges)

    def handlers(self) -> Handlers:
        """Return the handlers of all methods of the service."""
        handlers = Handlers()
        handlers.add(ADD, self.add)
        handlers.add(POLL, self.poll)
        handlers.add(RECALL, self.recall)
        handlers.add(REPORT, self.report)
        handlers.add(PUSH, self.push)
        handlers.add(DESCRIBE, self.describe)
        handlers.add(UPDATE, self.update)
        handlers.add(CONFIGURE, self.configure)
        handlers.add(FREE_SLOT, partial(note_free_slot, self.engine))
        handlers.add(SHUTDOWN, self.shut_down_worker)
        handlers.add(REVIEW, self.review)
        handlers.add(EXPLAIN, self.explain)
        handlers.add(LIST, self.list)
        handlers.add(RING, self.ring)
        return handlers

    def start(self) -> None:
        """Begin to check for idle partitions, and to record backlogs in the journal."""
        self.engine.start()
        if self._snapshots is not None:
            self._snapshots.start()

    async def close(self) -> None:
        """Unload all partitions: end their polls, and store the tasks that were accepted."""
        if self._reconsidering is not None:
            self._reconsidering.cancel()
        if self._snapshots is not None:
            await self._snapshots.close()
        await self.engine.close()
        self._unfollow()
        self._wakes.close()

    def add(self, request: AddRequest) -> Awaitable[AddResponse]:
        """Add a task."""
        if request.kind is QueueKind.STICKY:
            _check_sticky(request.partition)
            # Only a poll of the worker loads its sticky queue.
            if not self.engine.is_loaded(request.partition):
                raise sticky_worker_gone(request.partition)
            return self.engine.use(request.partition, request.kind, add_sticky_task, request)
        if request.is_transient:
            return self.engine.use(request.partition, request.kind, offer_query_task, request)
        return self.engine.use(request.partition, request.kind, add_task, request)

    def poll(self, request: PollRequest) -> Awaitable[PollResponse]:
        """Wait for a task."""
        if len(request.identity) > IDENTITY_CHARACTERS_MAX:
            raise InvalidRequest(
                f"identity has {len(request.identity)} characters, more than {IDENTITY_CHARACTERS_MAX}: shorten it"
            )
        if len(request.worker) > WORKER_BYTES_MAX:
            raise InvalidRequest(f"worker has {len(request.worker)} bytes, more than {WORKER_BYTES_MAX}: shorten it")
        self.engine.check_poll()
        if request.kind is QueueKind.STICKY:
            return self.engine.use(request.partition, request.kind, poll_sticky_task, request)
        if (manager := self.engine.ready(request.partition)) is not None:
            request = lean_request(manager, request)
        return self.engine.use(request.partition, request.kind, poll_task, request)

    @property
    def reserve(self) -> Reserve:
        """The function with which history reserves a waiting poll of this host, before it writes the poll's task."""
        return partial(reserve_poll, self.engine)

    async def recall(self, request: RecallRequest) -> RecallResponse:
        """Send a poll that was forwarded here back to its partition."""

        async def recall(manager: PartitionManager, request: RecallRequest) -> RecallResponse:
            return RecallResponse(manager.idle_polls.recall(request.poll_id))

        return await self._ask_quietly(request.partition, recall, request)

    async def report(self, request: ReportRequest) -> ReportResponse:
        """Record the report of a partition that has a backlog and no polls."""

        async def note(manager: PartitionManager, request: ReportRequest) -> ReportResponse:
            manager.idle_polls.note_report(request.report)
            if manager.is_root and request.report.partition >= manager.configs.config.read:
                manager.require_root().note_outside(request.report.partition)
            return ReportResponse(manager.configs.config)

        return await self._ask_quietly(request.partition, note, request)

    async def push(self, request: PushRequest) -> PushResponse:
        """Use a configuration and rules that the root pushes."""

        async def push(manager: PartitionManager, request: PushRequest) -> PushResponse:
            versions = manager.configs.push(request.config, request.rules)
            return PushResponse(versions.config, versions.rules)

        return await self._ask_quietly(request.partition, push, request)

    async def describe(self, request: DescribeRequest) -> DescribeResponse:
        """Describe a partition."""
        if request.keys_max > KEYS_LISTED_MAX:
            raise InvalidRequest(f"keys_max is {request.keys_max}: ask for {KEYS_LISTED_MAX} at most")

        async def describe(manager: PartitionManager, request: DescribeRequest) -> DescribeResponse:
            return await manager.describer.describe(request)

        return await self._ask_quietly(request.partition, describe, request, kind=request.kind)

    async def update(self, request: UpdateRequest) -> UpdateResponse:
        """Change the number of partitions by hand."""

        async def update(manager: PartitionManager, request: UpdateRequest) -> UpdateResponse:
            return await manager.require_root().update(read=request.read, write=request.write, force=request.force)

        return await self._ask_quietly(request.partition, update, request)

    async def configure(self, request: ConfigureRequest) -> ConfigureResponse:
        """Change the dispatch rules."""

        async def configure(manager: PartitionManager, request: ConfigureRequest) -> ConfigureResponse:
            return await manager.require_root().configure(request)

        return await self._ask_quietly(request.partition, configure, request)

    async def shut_down_worker(self, request: ShutdownRequest) -> ShutdownResponse:
        """Shut down the worker of a sticky task queue.

        If its partition is not loaded, the worker has not polled recently, and there is nothing to do.
        """
        if not self.engine.is_loaded(request.partition):
            return ShutdownResponse([])
        return await self._ask_quietly(request.partition, shut_down_worker, request, kind=QueueKind.STICKY)

    async def review(self, request: ReviewRequest) -> ReviewResponse:
        """Review the tasks of a partition."""
        return await self._ask_quietly(request.partition, review_tasks, request)

    async def explain(self, request: ExplainRequest) -> ExplainResponse:
        """Return the scaler's latest decisions and their reasons."""

        async def explain(manager: PartitionManager, _request: ExplainRequest) -> ExplainResponse:
            return manager.require_root().explain()

        return await self._ask_quietly(request.partition, explain, request)

    async def _ask_quietly(
        self,
        partition: Partition,
        handle: Callable[[PartitionManager, Request], Awaitable[Response]],
        request: Request,
        kind: QueueKind = QueueKind.NORMAL,
    ) -> Response:
        """Call `handle` with a partition's manager, without keeping the partition loaded."""
        return await self.engine.use(partition, kind, handle, request, is_use=False)

    async def list(self, request: ListRequest) -> ListResponse:
        """List the queues in the store, in order."""
        if not 1 <= request.limit <= LIST_MAX:
            raise InvalidRequest(f"limit is {request.limit}: ask for 1 to {LIST_MAX}")
        after = None
        if request.after is not None:
            namespace_id, name, number = request.after
            try:
                after = QueueId(namespace_id, name, TaskType(number))
            except ValueError as unknown:
                raise InvalidRequest(f"after has task type {number}, which does not exist") from unknown
        queues = await self._store.list_queues(request.namespace_id, after=after, limit=request.limit)
        return ListResponse([(queue.namespace_id, queue.name, int(queue.type)) for queue in queues])

    async def ring(self, _request: RingRequest) -> RingResponse:
        """Return the hosts of the cluster as this host sees them."""
        return RingResponse(
            host=self.host,
            hosts=list(self._ring.hosts),
            loaded=len(self.engine.loaded),
            spread_batch_size=self._settings.get(matching.SPREAD_ROUTING_BATCH_SIZE, EVERYWHERE),
        )

    def gauges(self) -> Iterable[PartitionGauges]:
        """Return the gauges of every loaded partition, for the metrics."""
        return map(partition_gauges, self.engine.managers())

    def _owner(self, partition: Partition) -> str:
        try:
            return self._ring.route(partition)
        except NoHosts:
            # A host without a ring owns no partition.
            return ""

    def _open_manager(self, partition: Partition, kind: QueueKind) -> PartitionManager:
        task_queue, number = partition
        if kind is QueueKind.STICKY:
            _check_sticky(partition)
        # Reading the name raises an error if it is invalid.
        _ = partition.name
        self._log_of(partition).debug("partition loaded")
        is_sticky = kind is QueueKind.STICKY
        return PartitionManager(
            partition,
            kind,
            host=self.host,
            store=self._store,
            peers=self._peers,
            settings=self._settings,
            clock=self._clock,
            start=self._start,
            counts=self._metrics.partition(
                task_queue.namespace_id, task_queue.name, task_queue.type, number, is_sticky=is_sticky
            ),
            log_of=self._log_of,
            wakes=self._wakes,
            journal=None if self._journal is None else self._journal.partition(task_queue, number, is_sticky=is_sticky),
        )

    def _manager_closed(self, manager: PartitionManager) -> None:
        self._metrics.forget(manager.counts)
        self._log_of(manager.partition_id).debug("partition unloaded")

    def _ring_changed(self) -> None:
        """Unload the partitions that moved, after a delay: the next change of the ring often follows at once."""
        self.engine.ring_changed()
        if self._reconsidering is None:
            delay_s = self._settings.get(matching.MEMBERSHIP_UNLOAD_DELAY)
            self._reconsidering = asyncio.get_running_loop().call_later(delay_s, self._reconsider)

    def _reconsider(self) -> None:
        self._reconsidering = None
        self.engine.reconsider()


def _check_sticky(partition: Partition) -> None:
    if partition.number:
        raise InvalidRequest(f"partition is {partition.number}: a sticky task queue has only partition 0")


def _partition_log(log: FilteringBoundLogger, names: NamespaceNames, partition: Partition) -> FilteringBoundLogger:
    task_queue, number = partition
    return log.bind(namespace=names.shown(task_queue.namespace_id), task_queue=task_queue.name, partition=number)
