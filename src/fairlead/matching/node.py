"""A partition in its tree: goes by the configuration, and shares tasks and polls with the other partitions.

A task that finds no poll here is offered to the parent, and kept here where nobody takes it (`unserved`). A poll that
finds no task here is offered to the parent; at the root, it is sent down to the partition with the oldest backlog,
takes what is there, or comes back, and goes nowhere else (`idle_polls`). Numbers only decrease on the way up, and a
poll that was sent down is not forwarded: so nothing wanders.
"""

import asyncio
import math
from typing import Any

from structlog.typing import FilteringBoundLogger

from fairlead.core.partitions import INITIAL_CONFIG, DrainReport, Partition, PartitionConfig, parent
from fairlead.core.scaling import RateWindow
from fairlead.journal import PartitionJournal
from fairlead.matching.background import Background
from fairlead.matching.backlog import AppendQueueFull, Clock
from fairlead.matching.configs import scope_of
from fairlead.matching.forwarder import Forwarder
from fairlead.matching.idle_polls import SENT_DOWN_WAIT_S, IdlePolls
from fairlead.matching.limits import BACKLOG_SETTINGS, DispatchLimits, backlog_limits
from fairlead.matching.messages import (
    ADD,
    DESCRIBE,
    PUSH,
    AddAnswer,
    AddRequest,
    BacklogReport,
    DescribeAnswer,
    DescribeRequest,
    DispatchRules,
    NewTask,
    NotARoot,
    PollAnswer,
    PollRequest,
    PriorityStats,
    PushRequest,
    ReviewAnswer,
    ReviewRequest,
    ShutdownAnswer,
    ShutdownRequest,
    StaleConfig,
    StickyWorkerGone,
    TaskListKind,
)
from fairlead.matching.partition import (
    Given,
    InvalidPoll,
    InvalidTask,
    WaitingPoll,
    check_task,
)
from fairlead.matching.partition import Partition as LocalPartition
from fairlead.matching.peers import Peers
from fairlead.matching.priority_rates import PriorityRates
from fairlead.matching.root import RootCoordinator
from fairlead.matching.rules import decode_rules, encode_rules
from fairlead.matching.starting import NotStarted, Starter
from fairlead.matching.sticky import StickyWorker
from fairlead.matching.surroundings import CALL_S_MAX, Surroundings
from fairlead.matching.unserved import FORWARDED_TASK_WAIT_S, UnservedTasks, backlog_report
from fairlead.settings import DynamicSettings, Setting, limits, matching, partition_config
from fairlead.storage.contract import QueueId, TaskStore
from fairlead.telemetry import PartitionMetrics

# What a partition is made by, and goes by while it is loaded: when one of these changes, it is loaded anew.
FIXED_SETTINGS: tuple[Setting[Any], ...] = (
    matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE,
    matching.FAIRNESS_KEY_WEIGHTS,
    matching.FORWARDER_MAX_CHILDREN_PER_NODE,
    matching.QPS_TRACKER_INTERVAL,
    *BACKLOG_SETTINGS,
)
# What a partition says of its backlog with every answer is made anew no more often than this.
REPORT_FRESH_S = 0.1
# A review that takes longer is asked for again.
REVIEW_S_MAX = 5.0
# A task that is not kept waits for a poll no longer than this, whatever its caller says.
TRANSIENT_WAIT_S_MAX = 60.0


class Node:
    """One partition as others see it. `engine` loads and unloads it; only its owner has it."""

    def __init__(
        self,
        partition_id: Partition,
        kind: TaskListKind,
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
        task_list, number = partition_id
        scope = scope_of(task_list)
        is_normal = kind is TaskListKind.NORMAL
        up = None
        if is_normal and number:
            degree = settings.get(matching.FORWARDER_MAX_CHILDREN_PER_NODE, scope)
            up = Partition(task_list, parent(number, degree=degree))
        dispatch_limits = DispatchLimits(settings, scope, clock=clock)
        self.partition_id = partition_id
        self.kind = kind
        self.counts = counts
        self.config = INITIAL_CONFIG
        self.journal = journal
        self.partition = LocalPartition(
            store,
            _queue_of(partition_id),
            clock=clock,
            start=start,
            counts=counts,
            overrides=dispatch_limits.weights(),
            limits=backlog_limits(settings, scope),
            on_unserved=self._see_to_unserved,
            journal=journal,
        )
        self.forwarder = Forwarder(settings, scope, clock=clock)
        self._log = log.bind(namespace=task_list.namespace_id, task_list=task_list.name, partition=number)
        self._around = Surroundings(
            partition_id=partition_id,
            parent=up,
            local=self.partition,
            forwarder=self.forwarder,
            peers=peers,
            settings=settings,
            scope=scope,
            clock=clock,
            counts=counts,
            background=Background(self._log),
        )
        self._number = number
        self._host = host
        self._store = store
        self._clock = clock
        self._is_normal = is_normal
        self._parent = up
        self._unserved = UnservedTasks(self._around)
        self.idle_polls = IdlePolls(self._around)
        self._limits = dispatch_limits
        self._worker = StickyWorker(clock)
        self._root: RootCoordinator | None = None
        self._adds = PriorityRates(started_s=clock())
        window_s = settings.get(matching.QPS_TRACKER_INTERVAL, scope)
        # In halves: what the scaler sees is then never older than one and a half times the interval.
        self._scaler_adds = RateWindow(bucket_s=window_s / 2, buckets=2, started_s=clock())
        self._adds_in_flight = 0
        self._report = backlog_report(self._around)
        self._report_until_s = -math.inf
        self._has_other_settings = False
        self._subscriptions = [
            *(settings.subscribe(setting, self._note_other_settings, scope) for setting in FIXED_SETTINGS),
            settings.subscribe(matching.OVERRIDE_TASK_LIST_RPS, lambda _: self._limit_rates(), scope),
            settings.subscribe(matching.FAIRNESS_KEY_RPS, lambda _: self._limit_rates(), scope),
            settings.subscribe(matching.NUM_READ_PARTITIONS, lambda _: self._use_settings(), scope),
            settings.subscribe(matching.NUM_WRITE_PARTITIONS, lambda _: self._use_settings(), scope),
        ]

    # --- life

    @property
    def is_outdated(self) -> bool:
        """Whether it is to be loaded anew: its lease is lost, or it was made by settings that have changed."""
        return self._has_other_settings or self.partition.backlog.lease.lost.is_set()

    def _note_other_settings(self, _value: object) -> None:
        self._has_other_settings = True

    async def open(self) -> None:
        """Take the lease, learn the configuration, begin to load; a root begins to look after its task list."""
        lease = await self.partition.open()
        if self._is_normal and self._is_config_stored:
            if self._number:
                await self._reload_config()
            else:
                await self._open_root(lease.config)
        self._use_settings()
        self._limit_rates()
        if self.partition.backlog.tasks:
            self._see_to_unserved()

    def stop_waiting(self) -> None:
        """Let nothing wait here any more: those who ask are answered, and find the next owner."""
        if self._around.is_closing:
            return
        self._around.is_closing = True
        for unsubscribe in self._subscriptions:
            unsubscribe()
        self.partition.stop_waiting()
        self.idle_polls.stop()
        self._unserved.stop()
        if self._root is not None:
            # The next owner's root may be at work already.
            self._root.stop()

    async def close(self) -> None:
        """Answer the polls, here and where they were forwarded to; store what was taken, and stop."""
        self.stop_waiting()
        self._around.background.end()
        await self._around.background.ended()
        if self._root is not None:
            await self._root.close()
        await self.partition.close()

    async def _open_root(self, stored: PartitionConfig | None) -> None:
        backlog, around = self.partition.backlog, self._around
        if stored is None:
            counts = partition_config(around.settings, around.scope)
            stored = PartitionConfig(version=1, read=counts.read, write=counts.write)
            # Before anybody is told: from here on the database is where the counts live.
            await backlog.save_config(stored)
        self._note_config(stored)
        self.config = stored

        async def save_rules(config: PartitionConfig, rules: DispatchRules) -> None:
            await backlog.save_rules(config, encode_rules(rules))

        rules = await self._load_rules()
        self._use_rules(rules)
        self._root = RootCoordinator(
            config=stored,
            rules=rules,
            save=backlog.save_config,
            load=backlog.load_config,
            save_rules=save_rules,
            load_rules=self._load_rules,
            ask=self._ask,
            push=self._push,
            on_change=self._use_rules_and_config,
            settings=around.settings,
            scope=around.scope,
            clock=self._clock,
            counts=self.counts,
            log=self._log,
        )
        self._root.start()

    # --- configuration

    @property
    def root(self) -> RootCoordinator:
        """What only the root of a normal task list has."""
        if self._root is None:
            raise NotARoot(
                f"partition {self._number} of {self.partition_id.task_list.name!r} has no configuration to look after: "
                "ask partition 0 of a normal task list, with matching.enableGetNumberOfPartitionsFromCache on"
            )
        return self._root

    @property
    def root_or_none(self) -> RootCoordinator | None:
        """Likewise, where there may be none."""
        return self._root

    def push(self, config: PartitionConfig, rules: DispatchRules) -> int:
        """The root tells the configuration and the rules; the version that is gone by from now on."""
        if rules.version > self._limits.rules.version:
            self._use_rules(rules)
        if config.version > self.config.version:
            self._use_config(config)
        return self.config.version

    @property
    def _is_config_stored(self) -> bool:
        return self._around.get(matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE)

    async def _reload_config(self) -> None:
        stored = await self._store.load_config(_queue_of(self._around.sibling(0)))
        if stored is not None:
            # In this order: the rules are then not older than the configuration that tells of them.
            self.push(stored, await self._load_rules())

    async def _load_rules(self) -> DispatchRules:
        return decode_rules(await self._store.load_rules(_queue_of(self._around.sibling(0))))

    def _use_settings(self) -> None:
        """Where the database is not asked for the counts, go by those of the settings."""
        if self._is_normal and not self._is_config_stored:
            self._use_config(partition_config(self._around.settings, self._around.scope))

    def _note_config(self, config: PartitionConfig) -> None:
        if self.journal is not None and config != self.config:
            self.journal.config(self._clock(), config)

    def _use_config(self, config: PartitionConfig) -> None:
        self._note_config(config)
        self.config = config
        self._limit_rates()

    def _use_rules(self, rules: DispatchRules) -> None:
        self._limits.rules = rules
        self.partition.override_weights(self._limits.weights())
        self._limit_rates()

    def _use_rules_and_config(self, config: PartitionConfig, rules: DispatchRules) -> None:
        if rules != self._limits.rules:
            self._use_rules(rules)
        self._use_config(config)

    def _stale(self, what: str) -> StaleConfig:
        self.counts.stale_configs += 1
        config = self.config
        return StaleConfig(
            f"partition {self._number} of {self.partition_id.task_list.name!r} is not {what} at version "
            f"{config.version}, which has {config.read} read and {config.write} write partitions: choose again",
            config,
        )

    def _is_behind(self, config: PartitionConfig | None) -> bool:
        """Whether a caller knows a newer configuration; the root has the newest there is."""
        return config is not None and config.version > self.config.version and self._parent is not None

    # --- tasks

    async def add(self, request: AddRequest) -> AddAnswer:
        """Take a task; it has been started when this returns, or is durable, or, where it was forwarded, refused."""
        task = request.task
        self._check(task)
        if request.forwarded_from is not None:
            return await self._add_forwarded(request)
        if self._is_behind(request.config):
            await self._reload_config()
        # From this check on the task is in flight, for the drain rule: nothing waits between the two.
        if self._number >= self.config.write:
            raise self._stale("writable")
        self._adds_in_flight += 1
        try:
            now_s = self._clock()
            if not task.created_s:
                task = NewTask(task.priority, task.fairness_key, task.weight, task.payload, now_s)
            self.counts.tasks_added += 1
            if self.journal is not None:
                weight = self.partition.weight_of(task.fairness_key, task.weight)
                self.journal.added(now_s, task.fairness_key, weight, task.priority)
            self._adds[task.priority].add(1, now_s)
            self._scaler_adds.add(1, now_s)
            if await self.partition.offer(task):
                return AddAnswer(is_started=True, config=self.config)
            if self._parent is not None and await self._unserved.offer_up(task):
                return AddAnswer(is_started=True, config=self.config, was_forwarded=True)
            if not self.partition.has_pollers:
                self.counts.no_poller_tasks += 1
            await self._keep(task, now_s)
            return AddAnswer(is_started=False, config=self.config)
        finally:
            self._adds_in_flight -= 1

    def _check(self, task: NewTask) -> None:
        check_task(task)
        size_bytes, size_bytes_max = len(task.payload), self._around.get(limits.BLOB_SIZE_ERROR)
        if size_bytes > size_bytes_max:
            raise InvalidTask(
                f"payload has {size_bytes} bytes, more than limit.blobSize.error allows ({size_bytes_max}): "
                "send less, or a reference to it"
            )

    async def _keep(self, task: NewTask, began_s: float) -> None:
        try:
            await self.partition.keep(task)
        except AppendQueueFull:
            self.counts.appends_refused += 1
            raise
        self.counts.task_write_latency.observe(self._clock() - began_s)
        self.idle_polls.call_back_one()

    async def _add_forwarded(self, request: AddRequest) -> AddAnswer:
        """A child offers a task: it is matched here, or further up, and never kept."""
        self.counts.forwarded += 1
        if self._parent is None:
            wait_s = min(request.wait_s, FORWARDED_TASK_WAIT_S)
            is_started = await self.partition.offer(
                request.task, wait_s=wait_s, is_limited=False, is_backlog=request.wait_s > 0
            )
            return AddAnswer(is_started, self.config)
        if await self.partition.offer(request.task, is_limited=False, is_backlog=request.wait_s > 0):
            return AddAnswer(is_started=True, config=self.config)
        further = await self._unserved.pass_on(self._parent, request)
        return AddAnswer(further is not None and further.is_started, self.config, was_forwarded=True)

    async def offer(self, request: AddRequest) -> AddAnswer:
        """Match a task with a poll within its time, ahead of all that waits, or give it up; it is never kept."""
        self._check(request.task)
        wait_s = min(request.wait_s, TRANSIENT_WAIT_S_MAX)
        if self._parent is None:
            return AddAnswer(await self.partition.offer_urgently(request.task, wait_s=wait_s), self.config)
        if await self.partition.offer_urgently(request.task, wait_s=0.0):
            return AddAnswer(is_started=True, config=self.config)
        # Idle polls of all partitions come to the root by and by.
        root = self._around.sibling(0)
        further = AddRequest(root, request.task, wait_s=wait_s, is_transient=True)
        answer = await self._around.peers.ask(root, ADD, further, timeout_s=wait_s + CALL_S_MAX)
        return AddAnswer(answer.is_started, self.config, was_forwarded=True)

    # --- one worker's own tasks

    async def add_sticky(self, request: AddRequest) -> AddAnswer:
        """Take a task for one worker, if that is there."""
        if not self._worker.is_there(within_s=self._around.get(matching.STICKY_POLLER_UNAVAILABLE_WINDOW)):
            raise sticky_worker_gone(self.partition_id)
        if request.is_transient:
            return await self.offer(request)
        answer = await self.add(request)
        if not answer.is_started and self._worker.has_left:
            # It left while the task was being stored: all who wait for that are told so, and the tasks let go.
            self._let_go_all()
            raise sticky_worker_gone(self.partition_id)
        return answer

    async def poll_sticky(self, request: PollRequest) -> PollAnswer:
        """Wait for a task of one worker's own."""
        self._worker.begin_poll()
        is_answered = False
        try:
            answer = await self.poll(request)
            is_answered = True
            return answer
        finally:
            self._worker.end_poll(is_answered=is_answered)

    async def shut_down_worker(self, _request: ShutdownRequest) -> ShutdownAnswer:
        """The worker goes: its polls are answered, nothing more is taken for it, and what waits is given back."""
        self._worker.leave()
        self.partition.answer_polls()
        return ShutdownAnswer(self._let_go_all())

    def _let_go_all(self) -> list[bytes]:
        """Keep what waits here no longer, as far as it is loaded."""
        payloads = []
        while (given := self.partition.take_held()) is not None:
            self.partition.finish(given, NotStarted.GONE)
            payloads.append(given.payload)
        return payloads

    def _see_to_unserved(self) -> None:
        self._unserved.begin()

    # --- polls

    async def poll(self, request: PollRequest) -> PollAnswer:
        """Wait for a task; one that is returned has been started for this poll."""
        if self._is_behind(request.config):
            await self._reload_config()
        began_s = self._around.polled_s = asyncio.get_running_loop().time()
        deadline_s = began_s + self._enter(request)
        may_redirect = self._is_normal and not request.is_sent_down
        is_from_child = request.forwarded_from is not None
        answer: PollAnswer | None = None
        try:
            while answer is None and not self._around.is_closing:
                poll = WaitingPoll(request.identity, request.poll_id, may_redirect=may_redirect)
                if may_redirect and not self.idle_polls.begin(poll, is_from_child=is_from_child):
                    break
                try:
                    got = await self.partition.wait(poll, deadline_s)
                finally:
                    if is_from_child:
                        self.idle_polls.end(poll)
                if got is None:
                    break
                if isinstance(got, Given):
                    started = await self.partition.start(got, request.identity, request.worker)
                    if started is not None:
                        answer = self._started(request, got, started)
                else:
                    answer = await self.idle_polls.look(got, request, deadline_s)
        except asyncio.CancelledError:
            self.counts.poll_cancelled += 1
            raise
        return self._leave(request, answer, began_s)

    def _enter(self, request: PollRequest) -> float:
        """Check a poll and take note of it; for how long it may wait here."""
        if not request.timeout_s > 0:
            raise InvalidPoll(f"poll of {request.identity!r} has {request.timeout_s} s left: its deadline is over")
        timeout_s = min(request.timeout_s, self._around.get(matching.LONG_POLL_EXPIRATION_INTERVAL))
        has_news = request.rate_per_s is not None and self._limits.note_worker(request.identity, request.rate_per_s)
        if has_news or self._limits.has_expired:
            self._limit_rates()
        if request.is_sent_down or request.forwarded_from is not None:
            self.counts.forwarded += 1
            if request.is_sent_down:
                timeout_s = min(timeout_s, SENT_DOWN_WAIT_S if self.partition.backlog.tasks else 0.0)
            return timeout_s
        if self._number >= self.config.read:
            raise self._stale("read")
        self.partition.note_poller(request.identity, request.rate_per_s, request.worker)
        return timeout_s

    def _leave(self, request: PollRequest, answer: PollAnswer | None, began_s: float) -> PollAnswer:
        """Take note of how a poll has ended, and answer it."""
        waited_s = asyncio.get_running_loop().time() - began_s
        self.counts.poll_latency.observe(waited_s)
        if answer is None:
            self.counts.poll_timeouts += 1
            # One that came from another partition is told of there.
            if self.journal is not None and not request.is_sent_down and request.forwarded_from is None:
                self.journal.poll_empty(self._clock(), waited_s)
            return PollAnswer(None, self.config, self.report())
        self.counts.poll_success += 1
        if answer.report.partition != self._number:
            # It comes from elsewhere, and what is said with it is said of here.
            return PollAnswer(answer.task, self.config, self.report(), answer.was_backlog, was_forwarded=True)
        return answer

    def _started(self, request: PollRequest, given: Given, answer: bytes) -> PollAnswer:
        counts = self.counts
        is_backlog, is_remote_task = given.is_backlog, not given.is_charged and not given.is_urgent
        is_remote_poll = request.is_sent_down or request.forwarded_from is not None
        now_s = self._clock()
        waited_s = max(0.0, now_s - given.created_s)
        # An urgent task was not counted as added either.
        if self.journal is not None and not given.is_urgent:
            self.journal.matched(
                now_s,
                given.fairness_key,
                given.weight,
                given.priority,
                None if given.held is None else given.held.place.level.pass_number,
                not is_backlog,
                is_remote_task or is_remote_poll,
                waited_s,
            )
        if is_backlog:
            counts.backlog_matches += 1
            counts.asyncmatch_latency.observe(waited_s)
        else:
            counts.sync_matches += 1
            counts.poll_success_sync += 1
            counts.syncmatch_latency.observe(waited_s)
        if is_remote_task:
            counts.remote_to_remote_matches += is_remote_poll
            counts.remote_to_local_matches += not is_remote_poll
        else:
            counts.local_to_remote_matches += is_remote_poll
            counts.local_to_local_matches += not is_remote_poll
        return PollAnswer(answer, self.config, self.report(), is_backlog, is_remote_task or is_remote_poll)

    async def review(self, request: ReviewRequest) -> ReviewAnswer:
        """Ask of all tasks that wait here whether they belong here."""
        until_s = asyncio.get_running_loop().time() + REVIEW_S_MAX
        is_done = await self.partition.review(request.worker, until_s)
        return ReviewAnswer(is_done, self.config.read)

    # --- what it says of itself

    def report(self) -> BacklogReport:
        """What is said with every answer: not older than a moment."""
        now_s = self._clock()
        if not 0 <= self._report_until_s - now_s <= REPORT_FRESH_S:
            self._report = backlog_report(self._around, self._adds.rate(now_s))
            self._report_until_s = now_s + REPORT_FRESH_S
        return self._report

    async def describe(self, request: DescribeRequest) -> DescribeAnswer:
        """How this partition is doing; with a drain report if it is asked for."""
        now_s, backlog = self._clock(), self.partition.backlog
        whole_rate_per_s, rate_source = self._limits.of_all()
        return DescribeAnswer(
            partition=self._number,
            host=self._host,
            config=self.config,
            report=backlog_report(self._around, self._adds.rate(now_s)),
            dispatches_per_s=self.partition.dispatches_per_s,
            polls_waiting=self.partition.polls_waiting,
            tasks_loaded=self.partition.tasks_loaded,
            range_id=backlog.lease.range_id,
            pollers=self.partition.pollers(),
            priorities=backlog.priorities,
            scaler_adds_per_s=self._scaler_adds.rate(now_s),
            rate_limit_per_s=self.partition.rate_per_s,
            drain=await self._drain_report() if request.with_drain else None,
            keys=self.partition.keys(request.keys_max) if request.keys_max > 0 else [],
            by_priority=self._by_priority(now_s),
            whole_rate_per_s=whole_rate_per_s,
            rate_source=rate_source,
            rules=self._limits.rules,
        )

    def _by_priority(self, now_s: float) -> list[PriorityStats]:
        tasks, oldest = self.partition.backlog.tasks_by_priority(), self.partition.oldest_by_priority()
        adds, dispatches = self._adds.rates(now_s), self.partition.dispatches.rates(now_s)
        return [
            PriorityStats(
                priority=priority,
                tasks=tasks.get(priority, 0),
                age_s=max(0.0, now_s - oldest.get(priority, now_s)),
                adds_per_s=adds.get(priority, 0.0),
                dispatches_per_s=dispatches.get(priority, 0.0),
            )
            for priority in sorted(tasks.keys() | adds.keys() | dispatches.keys())
        ]

    async def _drain_report(self) -> DrainReport:
        """In the order that makes it true: see `core.partitions.drain`."""
        version = self.config.version
        in_flight = self._adds_in_flight + self.partition.backlog.appends_in_flight
        await self.partition.backlog.delete_acked()
        stored = await self.partition.backlog.count()
        return DrainReport(self._number, version, in_flight, stored)

    async def _ask(self, number: int, with_drain: bool) -> DescribeAnswer:  # noqa: FBT001 - the coordinator's shape
        partition = self._around.sibling(number)
        request = DescribeRequest(partition, with_drain=with_drain)
        if number == self._number:
            return await self.describe(request)
        return await self._around.peers.ask(partition, DESCRIBE, request, timeout_s=CALL_S_MAX)

    async def _push(self, number: int, config: PartitionConfig) -> int:
        partition = self._around.sibling(number)
        request = PushRequest(partition, config, self._limits.rules)
        return (await self._around.peers.ask(partition, PUSH, request, timeout_s=CALL_S_MAX)).version

    def _limit_rates(self) -> None:
        rate_per_s, key_rate_per_s = self._limits.of_each(self.config.read)
        self.partition.change_rates(rate_per_s=rate_per_s, key_rate_per_s=key_rate_per_s)


def sticky_worker_gone(partition: Partition) -> StickyWorkerGone:
    """The refusal of a task for a worker that is not there."""
    return StickyWorkerGone(
        f"nobody has polled sticky task list {partition.task_list.name!r} of late: add the task to the normal one"
    )


def _queue_of(partition: Partition) -> QueueId:
    namespace_id, _, task_type = partition.task_list
    return QueueId(namespace_id, partition.name, task_type)
