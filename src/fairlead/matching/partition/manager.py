"""The manager of one loaded partition: its physical queue, its configuration, and its place in the partition tree.

A task that finds no poll here is offered to the parent, and stored here if no poll takes it there
(`forwarding.backlogged_tasks`). A poll that finds no task here is forwarded to the parent. From the root, it is sent
down to the partition with the oldest backlog, where it takes a task or returns at once (`forwarding.idle_polls`).
Partition numbers only decrease on the way up, and a poll that was sent down is not forwarded again, so no task or poll
goes in circles.
"""

from typing import Any

from structlog.typing import FilteringBoundLogger

from fairlead.aio.background import Background
from fairlead.core.partitions import Partition, PartitionConfig, parent
from fairlead.core.scaling import RateWindow
from fairlead.journal import PartitionJournal
from fairlead.matching.client_configs import scope_of
from fairlead.matching.clock import Clock
from fairlead.matching.forwarding.backlogged_tasks import BackloggedTasks
from fairlead.matching.forwarding.forwarder import Forwarder
from fairlead.matching.forwarding.idle_polls import IdlePolls
from fairlead.matching.forwarding.peers import Peers
from fairlead.matching.messages import NotARoot, QueueKind
from fairlead.matching.partition.add_rates import AddRates
from fairlead.matching.partition.backlog_reports import BacklogReports
from fairlead.matching.partition.config_manager import ConfigManager, queue_id
from fairlead.matching.partition.dependencies import Dependencies
from fairlead.matching.partition.describer import Describer
from fairlead.matching.partition.limits import BACKLOG_SETTINGS, DispatchLimits, backlog_limits
from fairlead.matching.partition.priority_rates import PriorityRates
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.matching.partition.sticky import StickyWorker
from fairlead.matching.root.coordinator import RootCoordinator
from fairlead.matching.root.loader import load_root
from fairlead.matching.task_starter import Starter
from fairlead.settings import DynamicSettings, Setting
from fairlead.settings.dynamic import matching
from fairlead.storage.tasks import TaskStore
from fairlead.telemetry import PartitionMetrics

# Settings that a partition reads once, when it is loaded; when one of them changes, it is loaded again.
FIXED_SETTINGS: tuple[Setting[Any], ...] = (
    matching.FAIRNESS_KEY_WEIGHTS,
    matching.FORWARDER_MAX_CHILDREN_PER_NODE,
    matching.QPS_TRACKER_INTERVAL,
    *BACKLOG_SETTINGS,
)
# Settings whose changes take effect at once.
RATE_SETTINGS: tuple[Setting[Any], ...] = (matching.OVERRIDE_TASK_QUEUE_RPS, matching.FAIRNESS_KEY_RPS)


class PartitionManager:
    """Owns the parts of one loaded partition, opens and closes them. The handlers work on its parts.

    `engine` loads and unloads it, only on the host that owns the partition.
    """

    def __init__(
        self,
        partition_id: Partition,
        kind: QueueKind,
        *,
        host: str,
        store: TaskStore,
        peers: Peers,
        settings: DynamicSettings,
        clock: Clock,
        start: Starter,
        counts: PartitionMetrics,
        log: FilteringBoundLogger,
        journal: PartitionJournal | None = None,
    ) -> None:
        task_queue, number = partition_id
        scope = scope_of(task_queue)
        self.partition_id = partition_id
        self.number = number
        self.kind = kind
        self.is_normal = kind is QueueKind.NORMAL
        self.parent: Partition | None = None
        if self.is_normal and number:
            degree = settings.get(matching.FORWARDER_MAX_CHILDREN_PER_NODE, scope)
            self.parent = Partition(task_queue, parent(number, degree=degree))
        self.clock = clock
        self.counts = counts
        self.journal = journal
        self._store = store
        self._log = log.bind(task_queue=task_queue.name, partition=number)
        limits = DispatchLimits(settings, scope, clock=clock)
        self.queue = PhysicalQueue(
            store,
            queue_id(partition_id),
            clock=clock,
            start=start,
            counts=counts,
            overrides=limits.weights(),
            limits=backlog_limits(settings, scope),
            on_backlogged=lambda: self.backlogged_tasks.begin(),  # noqa: PLW0108 - it is made below
            journal=journal,
        )
        self.forwarder = Forwarder(settings, scope, clock=clock)
        self.dependencies = Dependencies(
            partition_id=partition_id,
            parent=self.parent,
            queue=self.queue,
            forwarder=self.forwarder,
            peers=peers,
            settings=settings,
            scope=scope,
            clock=clock,
            counts=counts,
            background=Background(self._log),
        )
        self.backlogged_tasks = BackloggedTasks(self.dependencies)
        self.idle_polls = IdlePolls(self.dependencies)
        self.configs = ConfigManager(
            partition_id, store=store, queue=self.queue, limits=limits, clock=clock, counts=counts, journal=journal
        )
        self.sticky_worker = StickyWorker(clock)
        self.root: RootCoordinator | None = None
        window_s = settings.get(matching.QPS_TRACKER_INTERVAL, scope)
        self.adds = AddRates(
            PriorityRates(started_s=clock()),
            # With two buckets, the scaler's rate has no arrivals older than one and a half times the interval.
            RateWindow(bucket_s=window_s / 2, buckets=2, started_s=clock()),
        )
        self.reports = BacklogReports(self.dependencies, self.adds)
        self.describer = Describer(
            self.dependencies,
            self.configs,
            self.adds,
            host=host,
            counts_info=lambda: None if self.root is None else self.root.counts_info(),
        )
        self._has_changed_settings = False
        self._subscriptions = [
            settings.subscribe_all(FIXED_SETTINGS, self._note_changed_setting, scope),
            settings.subscribe_all(RATE_SETTINGS, lambda _: self.configs.limit_rates(), scope),
        ]

    @property
    def is_outdated(self) -> bool:
        """Whether the partition must be loaded again: its lease is lost, or a fixed setting has changed."""
        return self._has_changed_settings or self.queue.backlog.lease.lost.is_set()

    def _note_changed_setting(self, _value: object) -> None:
        self._has_changed_settings = True

    async def open(self) -> None:
        """Take the lease, load the configuration, begin to load tasks; at the root, start the coordinator."""
        lease = await self.queue.backlog.open()
        if self.is_normal:
            if self.number:
                await self.configs.reload()
            else:
                self.root = await load_root(
                    lease.config,
                    store=self._store,
                    dependencies=self.dependencies,
                    configs=self.configs,
                    describer=self.describer,
                    log=self._log,
                )
                self.root.start()
        self.configs.limit_rates()
        if self.queue.backlog.priorities.tasks:
            self.backlogged_tasks.begin()

    def stop_waiting(self) -> None:
        """End all waits, so that callers look for the next owner."""
        if self.dependencies.is_closing:
            return
        self.dependencies.is_closing = True
        for unsubscribe in self._subscriptions:
            unsubscribe()
        self.queue.dispatcher.stop_waiting()
        self.idle_polls.stop()
        self.backlogged_tasks.stop()
        if self.root is not None:
            # The next owner's root may be at work already.
            self.root.stop()

    async def close(self) -> None:
        """End all polls, also those forwarded to the parent; store the tasks that were accepted, and stop."""
        self.stop_waiting()
        self.dependencies.background.end()
        await self.dependencies.background.ended()
        if self.root is not None:
            await self.root.close()
        await self.queue.close()

    def require_root(self) -> RootCoordinator:
        """Return the coordinator of a root; other partitions raise `NotARoot`."""
        if self.root is None:
            raise NotARoot(
                f"partition {self.number} of {self.partition_id.task_queue.name!r} is not a root: "
                "send the request to partition 0 of a normal task queue"
            )
        return self.root

    async def catch_up(self, config: PartitionConfig) -> None:
        """Handle a caller's newer configuration: reload it; a root instead continues above the caller's version."""
        if self.root is not None:
            self.root.note_newer(config.version)
        elif self.is_normal:
            await self.configs.reload()
