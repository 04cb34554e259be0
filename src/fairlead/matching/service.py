"""The matching service of one host: answers what clients and other hosts ask of the partitions that it owns."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from fairlead.cluster.calls import Caller, Handlers
from fairlead.cluster.ring import RING, RingAnswer, RingRequest, RingView
from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition, TaskType
from fairlead.core.routing import NoHosts
from fairlead.journal import TaskJournal
from fairlead.matching.backlog import Clock
from fairlead.matching.engine import Engine, EngineTimes
from fairlead.matching.journaling import BacklogSnapshots
from fairlead.matching.messages import (
    ADD,
    CONFIGURE,
    DESCRIBE,
    EXPLAIN,
    LIST,
    POLL,
    PUSH,
    RECALL,
    REPORT,
    REVIEW,
    SHUTDOWN,
    UPDATE,
    AddAnswer,
    AddRequest,
    ConfigureAnswer,
    ConfigureRequest,
    DescribeAnswer,
    DescribeRequest,
    ExplainAnswer,
    ExplainRequest,
    ListAnswer,
    ListRequest,
    PollAnswer,
    PollRequest,
    PushAnswer,
    PushRequest,
    RecallAnswer,
    RecallRequest,
    ReportAnswer,
    ReportRequest,
    ReviewAnswer,
    ReviewRequest,
    ShutdownAnswer,
    ShutdownRequest,
    TaskListKind,
    UpdateAnswer,
    UpdateRequest,
)
from fairlead.matching.node import Node, sticky_worker_gone
from fairlead.matching.peers import Peers
from fairlead.matching.starting import Starter, start_plainly
from fairlead.settings import EVERYWHERE, DynamicSettings, matching
from fairlead.storage.contract import QueueId, TaskStore
from fairlead.telemetry import Metrics, PartitionGauges, ScalerGauges

Request = TypeVar("Request")
Answer = TypeVar("Answer")

LIST_MAX = 1000
KEYS_LISTED_MAX = 1000
IDENTITY_CHARACTERS_MAX = 1000
# A description of a worker is remembered for each of those that polled a partition of late.
WORKER_BYTES_MAX = 4096


class InvalidRequest(FixRequest):
    """A request has a value that makes no sense; the message begins with the field's name."""


class MatchingService:
    """Everything that a host of the matching role does. Time, chance, stores and peers are given to it."""

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
    ) -> None:
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
        self.engine = Engine(
            host,
            open_node=self._open_node,
            close_node=self._node_closed,
            route=self._owner,
            clock=clock,
            times=times or EngineTimes(idle_s=settings.get(matching.MAX_TASK_QUEUE_IDLE_TIME)),
        )
        self._snapshots = None if journal is None else BacklogSnapshots(self.engine, settings=settings, clock=clock)
        self._reconsidering: asyncio.TimerHandle | None = None
        ring.on_change(self._ring_changed)
        metrics.watch(self.gauges)

    def handlers(self) -> Handlers:
        """What this host answers."""
        handlers = Handlers()
        handlers.add(ADD, self.add)
        handlers.add(POLL, self.poll)
        handlers.add(RECALL, self.recall)
        handlers.add(REPORT, self.report)
        handlers.add(PUSH, self.push)
        handlers.add(DESCRIBE, self.describe)
        handlers.add(UPDATE, self.update)
        handlers.add(CONFIGURE, self.configure)
        handlers.add(SHUTDOWN, self.shut_down_worker)
        handlers.add(REVIEW, self.review)
        handlers.add(EXPLAIN, self.explain)
        handlers.add(LIST, self.list)
        handlers.add(RING, self.ring)
        return handlers

    def start(self) -> None:
        """Begin to look after the partitions."""
        self.engine.start()
        if self._snapshots is not None:
            self._snapshots.start()

    async def close(self) -> None:
        """Unload everything: polls are answered, what was taken is stored."""
        if self._reconsidering is not None:
            self._reconsidering.cancel()
        if self._snapshots is not None:
            await self._snapshots.close()
        await self.engine.close()

    def add(self, request: AddRequest) -> Awaitable[AddAnswer]:
        """Take a task."""
        if request.kind is TaskListKind.STICKY:
            _check_sticky(request.partition)
            # Its worker loads it: for one that does not poll, nothing is loaded.
            if not self.engine.is_loaded(request.partition):
                raise sticky_worker_gone(request.partition)
            return self.engine.use(request.partition, request.kind, Node.add_sticky, request)
        if request.is_transient:
            return self.engine.use(request.partition, request.kind, Node.offer, request)
        return self.engine.use(request.partition, request.kind, Node.add, request)

    def poll(self, request: PollRequest) -> Awaitable[PollAnswer]:
        """Wait for a task."""
        if len(request.identity) > IDENTITY_CHARACTERS_MAX:
            raise InvalidRequest(
                f"identity has {len(request.identity)} characters, more than {IDENTITY_CHARACTERS_MAX}: shorten it"
            )
        if len(request.worker) > WORKER_BYTES_MAX:
            raise InvalidRequest(f"worker has {len(request.worker)} bytes, more than {WORKER_BYTES_MAX}: shorten it")
        if request.kind is TaskListKind.STICKY:
            return self.engine.use(request.partition, request.kind, Node.poll_sticky, request)
        return self.engine.use(request.partition, request.kind, Node.poll, request)

    async def recall(self, request: RecallRequest) -> RecallAnswer:
        """Let a poll that was forwarded here go home."""

        async def recall(node: Node, request: RecallRequest) -> RecallAnswer:
            return RecallAnswer(node.idle_polls.recall(request.poll_id))

        return await self._ask_quietly(request.partition, recall, request)

    async def report(self, request: ReportRequest) -> ReportAnswer:
        """Hear of a backlog without polls."""

        async def note(node: Node, request: ReportRequest) -> ReportAnswer:
            node.idle_polls.note_report(request.report)
            return ReportAnswer(node.config)

        return await self._ask_quietly(request.partition, note, request)

    async def push(self, request: PushRequest) -> PushAnswer:
        """Hear of a configuration."""

        async def push(node: Node, request: PushRequest) -> PushAnswer:
            return PushAnswer(node.push(request.config, request.rules))

        return await self._ask_quietly(request.partition, push, request)

    async def describe(self, request: DescribeRequest) -> DescribeAnswer:
        """Say how a partition is doing."""
        if request.keys_max > KEYS_LISTED_MAX:
            raise InvalidRequest(f"keys_max is {request.keys_max}: ask for {KEYS_LISTED_MAX} at most")
        return await self._ask_quietly(request.partition, Node.describe, request, kind=request.kind)

    async def update(self, request: UpdateRequest) -> UpdateAnswer:
        """Change the number of partitions by hand."""

        async def update(node: Node, request: UpdateRequest) -> UpdateAnswer:
            return await node.root.update(read=request.read, write=request.write, force=request.force)

        return await self._ask_quietly(request.partition, update, request)

    async def configure(self, request: ConfigureRequest) -> ConfigureAnswer:
        """Change the rules of dispatch."""

        async def configure(node: Node, request: ConfigureRequest) -> ConfigureAnswer:
            return await node.root.configure(request)

        return await self._ask_quietly(request.partition, configure, request)

    async def shut_down_worker(self, request: ShutdownRequest) -> ShutdownAnswer:
        """The worker of a sticky task list goes; one that has not polled of late has nothing loaded to see to."""
        if not self.engine.is_loaded(request.partition):
            return ShutdownAnswer([])
        return await self._ask_quietly(request.partition, Node.shut_down_worker, request, kind=TaskListKind.STICKY)

    async def review(self, request: ReviewRequest) -> ReviewAnswer:
        """Ask of the tasks of a partition whether they belong there."""
        return await self._ask_quietly(request.partition, Node.review, request)

    async def explain(self, request: ExplainRequest) -> ExplainAnswer:
        """Say what the scaler decided, and why."""

        async def explain(node: Node, _request: ExplainRequest) -> ExplainAnswer:
            return node.root.explain()

        return await self._ask_quietly(request.partition, explain, request)

    async def _ask_quietly(
        self,
        partition: Partition,
        handle: Callable[[Node, Request], Awaitable[Answer]],
        request: Request,
        kind: TaskListKind = TaskListKind.NORMAL,
    ) -> Answer:
        """Have a partition answer; it is not kept loaded by that."""
        return await self.engine.use(partition, kind, handle, request, is_use=False)

    async def list(self, request: ListRequest) -> ListAnswer:
        """The queues that the store knows, in order."""
        if not 1 <= request.limit <= LIST_MAX:
            raise InvalidRequest(f"limit is {request.limit}: ask for 1 to {LIST_MAX}")
        after = None
        if request.after is not None:
            namespace_id, name, number = request.after
            try:
                after = QueueId(namespace_id, name, TaskType(number))
            except ValueError as unknown:
                raise InvalidRequest(f"after has task type {number}, which there is not") from unknown
        queues = await self._store.list_queues(request.namespace_id, after=after, limit=request.limit)
        return ListAnswer([(queue.namespace_id, queue.name, int(queue.type)) for queue in queues])

    async def ring(self, _request: RingRequest) -> RingAnswer:
        """Say who is in the cluster."""
        return RingAnswer(
            host=self.host,
            hosts=list(self._ring.hosts),
            loaded=len(self.engine.loaded),
            spread_batch_size=self._settings.get(matching.SPREAD_ROUTING_BATCH_SIZE, EVERYWHERE),
        )

    def gauges(self) -> Iterable[PartitionGauges]:
        """How every loaded partition is doing, for the metrics."""
        for node in self.engine.nodes():
            task_list, number = node.partition_id
            report = node.report()
            root = node.root_or_none
            decision = None if root is None else root.latest
            levels = node.partition.backlog.priorities
            yield PartitionGauges(
                namespace=task_list.namespace_id,
                task_list=task_list.name,
                task_type=task_list.type,
                partition=number,
                is_sticky=node.kind is TaskListKind.STICKY,
                config=node.config,
                scaler=None
                if decision is None
                else ScalerGauges(
                    qps=decision.qps,
                    upscale_threshold_qps=decision.upscale_threshold_qps,
                    downscale_threshold_qps=decision.downscale_threshold_qps,
                    target=decision.after.write,
                ),
                approximate_backlog_count=report.tasks,
                approximate_backlog_age_seconds=report.age_s,
                task_lag_per_tl=max((max(0, one.max_level[1] - one.ack_level[1]) for one in levels), default=0),
                loaded_tasks=node.partition.tasks_loaded,
                pending_polls=node.partition.polls_waiting,
                task_add_rate=report.adds_per_s,
                task_dispatch_rate=node.partition.dispatches_per_s,
            )

    def _owner(self, partition: Partition) -> str:
        try:
            return self._ring.route(partition)
        except NoHosts:
            # While this host is in no ring, it owns nothing.
            return ""

    def _open_node(self, partition: Partition, kind: TaskListKind) -> Node:
        task_list, number = partition
        if kind is TaskListKind.STICKY:
            _check_sticky(partition)
        # Refuses a name that nobody may use, before anything is made for it.
        _ = partition.name
        self._log.debug("partition loaded", task_list=task_list.name, partition=number)
        is_sticky = kind is TaskListKind.STICKY
        return Node(
            partition,
            kind,
            host=self.host,
            store=self._store,
            peers=self._peers,
            settings=self._settings,
            clock=self._clock,
            start=self._start,
            counts=self._metrics.partition(
                task_list.namespace_id, task_list.name, task_list.type, number, is_sticky=is_sticky
            ),
            log=self._log,
            journal=None if self._journal is None else self._journal.partition(task_list, number, is_sticky=is_sticky),
        )

    def _node_closed(self, node: Node) -> None:
        self._metrics.forget(node.counts)
        self._log.debug(
            "partition unloaded", task_list=node.partition_id.task_list.name, partition=node.partition_id[1]
        )

    def _ring_changed(self) -> None:
        """Wait a moment before partitions are let go: the next change often follows at once."""
        self.engine.ring_changed()
        if self._reconsidering is None:
            delay_s = self._settings.get(matching.MEMBERSHIP_UNLOAD_DELAY)
            self._reconsidering = asyncio.get_running_loop().call_later(delay_s, self._reconsider)

    def _reconsider(self) -> None:
        self._reconsidering = None
        self.engine.reconsider()


def _check_sticky(partition: Partition) -> None:
    if partition.number:
        raise InvalidRequest(f"partition is {partition.number} of a sticky task list: these have partition 0 only")
