"""The manager of one loaded partition: its physical queue, its configuration, and its place in the partition tree.

A task that finds no poll here is offered to the parent, and stored here if no poll takes it there
(`forwarding.backlogged_tasks`). A poll that finds no task here is forwarded to the parent. From the root, it is sent
down to the partition with the oldest backlog, where it takes a task or returns at once (`forwarding.idle_polls`).
Partition numbers decrease on the way up, and a poll that was sent down is not forwarded again, so no task or poll
returns to a partition.
"""

from collections.abc import Mapping
from typing import Any

from fairlead.aio.deadlines import Deadlines, Wakeable
from fairlead.core.partitions import Partition, PartitionConfig, parent
from fairlead.journal import PartitionJournal
from fairlead.matching.client_configs import new_scope
from fairlead.matching.clock import Clock
from fairlead.matching.forwarding.backlogged_tasks import BackloggedTasks
from fairlead.matching.forwarding.idle_polls import IdlePolls
from fairlead.matching.forwarding.peers import Peers
from fairlead.matching.messages import NotARoot, QueueKind
from fairlead.matching.partition.add_rates import AddRates
from fairlead.matching.partition.backlog_reports import BacklogReports
from fairlead.matching.partition.config_manager import ConfigManager, queue_id
from fairlead.matching.partition.dependencies import Dependencies, LogOf
from fairlead.matching.partition.describer import Describer
from fairlead.matching.partition.limits import BACKLOG_SETTINGS, DispatchLimits, backlog_limits
from fairlead.matching.partition.queue import PhysicalQueue
from fairlead.matching.partition.sticky import StickyWorker
from fairlead.matching.root.coordinator import COUNTS_SETTINGS, RootCoordinator
from fairlead.matching.root.loader import NOTHING_OUTSIDE, has_work, load_root, new_coordinator
from fairlead.matching.root.state import RootState
from fairlead.matching.task_starter import Starter
from fairlead.settings import DynamicSettings, Scope, Setting
from fairlead.settings.dynamic import matching
from fairlead.storage.tasks import TaskStore
from fairlead.telemetry import PartitionMetrics

# Settings that a partition reads only when it is loaded. When one of them changes, the partition is loaded again.
FIXED_SETTINGS: tuple[Setting[Any], ...] = (
    matching.FAIRNESS_KEY_WEIGHTS,
    matching.FORWARDER_MAX_CHILDREN_PER_NODE,
    matching.QPS_TRACKER_INTERVAL,
    *BACKLOG_SETTINGS,
)
# Settings whose changes take effect at once.
RATE_SETTINGS: tuple[Setting[Any], ...] = (matching.OVERRIDE_TASK_QUEUE_RPS, matching.FAIRNESS_KEY_RPS)
# Settings whose changes may make a root start its periodic work.
ROOT_SETTINGS: tuple[Setting[Any], ...] = (*COUNTS_SETTINGS, matching.ENABLE_ADAPTIVE_SCALER)


class PartitionManager:
    """Owns, opens and closes the parts of one loaded partition. The handlers use the parts.

    `engine` loads and unloads it, only on the host that owns the partition. Most task queues are idle most of the time,
    so rarely needed parts are created at their first use.
    """

    __slots__ = (
        "_backlogged_tasks",
        "_has_changed_settings",
        "_host",
        "_idle_polls",
        "_outside",
        "_root_state",
        "_sticky_worker",
        "_store",
        "adds",
        "clock",
        "configs",
        "counts",
        "dependencies",
        "is_normal",
        "journal",
        "kind",
        "number",
        "parent",
        "partition_id",
        "queue",
        "reports",
        "root",
    )

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
        log_of: LogOf,
        wakes: Deadlines[Wakeable] | None = None,
        journal: PartitionJournal | None = None,
    ) -> None:
        task_queue, number = partition_id
        scope = new_scope(task_queue)
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
        self._host = host
        limits = DispatchLimits(settings, scope, clock=clock)
        self.queue = PhysicalQueue(
            store,
            queue_id(partition_id),
            clock=clock,
            start=start,
            counts=counts,
            overrides=limits.weights(),
            limits=backlog_limits(settings, scope),
            on_backlogged=self._backlogged,
            journal=journal,
            wakes=wakes,
        )
        self.dependencies = Dependencies(
            partition_id=partition_id,
            parent=self.parent,
            queue=self.queue,
            peers=peers,
            settings=settings,
            scope=scope,
            clock=clock,
            counts=counts,
            log_of=log_of,
        )
        self._backlogged_tasks: BackloggedTasks | None = None
        self._idle_polls: IdlePolls | None = None
        self.configs = ConfigManager(
            partition_id, store=store, queue=self.queue, limits=limits, clock=clock, counts=counts, journal=journal
        )
        self._sticky_worker: StickyWorker | None = None
        # Created when it is needed, and holds the root's state from then on.
        self.root: RootCoordinator | None = None
        self._root_state: RootState | None = None
        self._outside: Mapping[int, bool] = NOTHING_OUTSIDE
        self.adds = AddRates(scaler_s=settings.get(matching.QPS_TRACKER_INTERVAL, scope), started_s=clock())
        self.reports = BacklogReports(self.dependencies, self.adds)
        self._has_changed_settings = False

    @property
    def describer(self) -> Describer:
        """Describes the partition."""
        return Describer(
            self.dependencies,
            self.configs,
            self.adds,
            host=self._host,
            counts_info=lambda: None if not self.is_root else self.require_root().counts_info(),
        )

    @property
    def backlogged_tasks(self) -> BackloggedTasks:
        """Offers tasks without a poll to the parent."""
        if self._backlogged_tasks is None:
            self._backlogged_tasks = BackloggedTasks(self.dependencies)
        return self._backlogged_tasks

    @property
    def idle_polls(self) -> IdlePolls:
        """Redirects polls without a task."""
        if self._idle_polls is None:
            self._idle_polls = IdlePolls(self.dependencies)
        return self._idle_polls

    @property
    def redirects_polls(self) -> bool:
        """Whether polls may be redirected to another partition: to the parent, or to children that have reported."""
        return self._idle_polls is not None or self.parent is not None

    @property
    def sticky_worker(self) -> StickyWorker:
        """The worker of a sticky task queue."""
        if self._sticky_worker is None:
            self._sticky_worker = StickyWorker(self.clock)
        return self._sticky_worker

    @property
    def is_root(self) -> bool:
        """Whether this is the open root of a normal task queue."""
        return self.root is not None or self._root_state is not None

    @property
    def scope(self) -> Scope:
        """The scope of the task queue's settings."""
        return self.dependencies.scope

    @property
    def is_outdated(self) -> bool:
        """Whether the partition must be loaded again: its lease is lost, or a fixed setting has changed."""
        return self._has_changed_settings or self.queue.backlog.lease.lost.is_set()

    def fixed_setting_changed(self, _value: object) -> None:
        """Handle a new value of one of `FIXED_SETTINGS`."""
        self._has_changed_settings = True

    def rate_setting_changed(self, _value: object) -> None:
        """Handle a new value of one of `RATE_SETTINGS`."""
        self.configs.limit_rates()

    def root_setting_changed(self, _value: object) -> None:
        """Handle a new value of one of `ROOT_SETTINGS`; a running coordinator has its own subscription."""
        if self._root_state is not None and not self.dependencies.is_closing:
            self._begin_root_work(self._root_state)

    async def open(self) -> None:
        """Take the lease, load the configuration, begin to load tasks; at the root, start the coordinator."""
        lease = await self.queue.backlog.open()
        if self.is_normal:
            if self.number:
                await self.configs.reload()
            else:
                self._root_state, self._outside = await load_root(
                    lease.config, store=self._store, dependencies=self.dependencies, configs=self.configs
                )
                self._begin_root_work(self._root_state)
        self.configs.limit_rates()
        if self.queue.backlog.priorities.tasks:
            self._backlogged()

    def stop_waiting(self) -> None:
        """End all waits, so that callers look for the next owner."""
        if self.dependencies.is_closing:
            return
        self.dependencies.is_closing = True
        self.queue.dispatcher.stop_waiting()
        if self._idle_polls is not None:
            self._idle_polls.stop()
        if self._backlogged_tasks is not None:
            self._backlogged_tasks.stop()
        if self.root is not None:
            # The root of the next owner may have begun its work.
            self.root.stop()

    async def close(self) -> None:
        """End all polls, including polls forwarded to the parent; store the tasks that were accepted, and stop."""
        self.stop_waiting()
        self.dependencies.background.end()
        await self.dependencies.background.ended()
        if self.root is not None:
            await self.root.close()
        await self.queue.close()

    def require_root(self) -> RootCoordinator:
        """Return the coordinator of a root; other partitions raise `NotARoot`."""
        if self.root is None and self._root_state is not None:
            return self._employ_root(self._root_state)
        if self.root is None:
            raise NotARoot(
                f"partition {self.number} of {self.partition_id.task_queue.name!r} is not a root: "
                "send the request to partition 0 of a normal task queue"
            )
        return self.root

    async def catch_up(self, config: PartitionConfig) -> None:
        """Handle a caller's newer configuration: reload it; a root continues above the caller's version instead."""
        if self.is_root:
            self.require_root().note_newer(config.version)
        elif self.is_normal:
            await self.configs.reload()

    def _backlogged(self) -> None:
        if self.parent is not None:
            self.backlogged_tasks.begin()

    def _begin_root_work(self, state: RootState) -> None:
        """Create the root's coordinator if it has work; most roots have one partition and no work."""
        if has_work(state, self._outside, self.dependencies):
            self._employ_root(state)

    def _employ_root(self, state: RootState) -> RootCoordinator:
        root = self.root = new_coordinator(
            state,
            outside=self._outside,
            store=self._store,
            dependencies=self.dependencies,
            configs=self.configs,
            describer=self.describer,
            log=self.dependencies.log_of(self.partition_id),
        )
        self._root_state, self._outside = None, NOTHING_OUTSIDE
        if self.dependencies.is_closing:
            root.stop()
        else:
            root.start()
        return root
