"""A partition in its tree: goes by the configuration, and shares tasks and polls with the other partitions.

A task that finds no poll here is offered to the parent, and kept here where nobody takes it. A poll that finds no task
here is offered to the parent. At the root, a poll that finds nothing is sent down to the partition with the oldest
backlog; it takes what is there, or comes back, and goes nowhere else. Numbers only decrease on the way up, and a poll
that was sent down is not forwarded: so nothing wanders.
"""

import asyncio
import math
from contextlib import suppress
from itertools import islice

from structlog.typing import FilteringBoundLogger

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import INITIAL_CONFIG, DrainReport, Partition, PartitionConfig, TaskList, parent
from fairlead.core.scaling import RateWindow
from fairlead.matching.background import Background
from fairlead.matching.backlog import AppendQueueFull, Clock
from fairlead.matching.forwarder import ChildBacklogs, Forwarder
from fairlead.matching.limits import backlog_limits, no_limit_if_zero
from fairlead.matching.messages import (
    ADD,
    DESCRIBE,
    POLL,
    PUSH,
    RECALL,
    REPORT,
    AddAnswer,
    AddRequest,
    BacklogReport,
    DescribeAnswer,
    DescribeRequest,
    NewTask,
    NotARoot,
    PollAnswer,
    PollerInfo,
    PollRequest,
    PushRequest,
    RecallRequest,
    ReportRequest,
    StaleConfig,
    TaskListKind,
)
from fairlead.matching.partition import (
    RATE_BUCKET_S,
    RATE_BUCKETS,
    Given,
    InvalidPoll,
    InvalidTask,
    Redirect,
    WaitingPoll,
    check_task,
)
from fairlead.matching.partition import Partition as LocalPartition
from fairlead.matching.peers import Peers
from fairlead.matching.root import RootCoordinator
from fairlead.matching.starting import Starter
from fairlead.settings import DynamicSettings, Scope, limits, matching, partition_config
from fairlead.storage.contract import QueueId, TaskStore
from fairlead.telemetry import PartitionMetrics

# An answer has to come back over each hop before the caller's own time is over.
HOP_S = 0.05
# A task of the backlog that is offered to the parent waits there for a poll so long at most.
FORWARDED_TASK_WAIT_S = 2.0
# A poll that was sent down waits so long while the backlog is being loaded.
SENT_DOWN_WAIT_S = 0.2
# While polls come here, tasks of the backlog are for them, and not for the parent's.
POLLS_ARE_COMING_S = 0.2
UNSERVED_INTERVAL_S = 0.1
REPORT_INTERVAL_S = 1.0
CALL_S_MAX = 2.0
# After the parent could not be reached, or had nothing, it is left alone for so long.
PAUSE_S = 0.5
# A worker's limit holds for so long after it last told it.
WORKER_RATE_HOLDS_S = 60.0
# What a partition says of its backlog with every answer is made anew no more often than this.
REPORT_FRESH_S = 0.1
REDIRECTED_AT_ONCE_MAX = 100


class _Up(Redirect):
    """To the parent."""

    __slots__ = ()


class _Down(Redirect):
    """To a partition with a backlog."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


_UP = _Up()


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
    ) -> None:
        task_list = partition_id.task_list
        self.partition_id = partition_id
        self.kind = kind
        self.counts = counts
        self._number = partition_id.number
        self._host = host
        self._store = store
        self._peers = peers
        self._settings = settings
        self._scope = scope = Scope(task_list.namespace_id, task_list.name, task_list.type)
        self._clock = clock
        self._log = log.bind(namespace=task_list.namespace_id, task_list=task_list.name, partition=self._number)
        self._config = INITIAL_CONFIG
        self._is_normal = kind is TaskListKind.NORMAL
        self.partition = LocalPartition(
            store,
            _queue_of(partition_id),
            clock=clock,
            start=start,
            overrides=settings.get(matching.FAIRNESS_KEY_WEIGHTS, scope),
            limits=backlog_limits(settings, scope),
            on_unserved=self._begin_serving,
        )
        self._parent: Partition | None = None
        if self._is_normal and self._number:
            degree = settings.get(matching.FORWARDER_MAX_CHILDREN_PER_NODE, scope)
            self._parent = Partition(task_list, parent(self._number, degree=degree))
        self.forwarder = Forwarder(settings, scope, clock=clock)
        self.children = ChildBacklogs(clock=clock)
        self._root: RootCoordinator | None = None
        self._background = Background(self._log)
        self._adds = RateWindow(bucket_s=RATE_BUCKET_S, buckets=RATE_BUCKETS, started_s=clock())
        window_s = settings.get(matching.QPS_TRACKER_INTERVAL, scope)
        # In halves: what the scaler sees is then never older than one and a half times the interval.
        self._scaler_adds = RateWindow(bucket_s=window_s / 2, buckets=2, started_s=clock())
        self._adds_in_flight = 0
        self._forwarded_in: dict[str, WaitingPoll] = {}
        self._forwarded_out: dict[str, None] = {}
        self._worker_rates: dict[str, tuple[float, float]] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._serving: asyncio.Task[None] | None = None
        self._polled_s = -math.inf
        self._report: BacklogReport | None = None
        self._report_until_s = -math.inf
        self._is_closing = False
        self._subscriptions = [
            settings.subscribe(setting, lambda _: self._limit_rates(), scope)
            for setting in (matching.OVERRIDE_TASK_LIST_RPS, matching.FAIRNESS_KEY_RPS)
        ]

    # --- life

    async def open(self) -> None:
        """Take the lease, learn the configuration, begin to load; a root begins to look after its task list."""
        lease = await self.partition.open()
        if self._is_normal and self._is_config_stored:
            if self._number:
                await self._reload_config()
            else:
                await self._open_root(lease.config)
        self._limit_rates()
        if self.partition.backlog.tasks:
            self._begin_serving()

    async def close(self) -> None:
        """Answer the polls, here and where they were forwarded to; store what was taken, and stop."""
        self.stop_waiting()
        await self._background.ended()
        if self._root is not None:
            await self._root.close()
        await self.partition.close()

    def stop_waiting(self) -> None:
        """Let nothing wait here any more: those who ask are answered, and find the next owner."""
        if self._is_closing:
            return
        self._is_closing = True
        for unsubscribe in self._subscriptions:
            unsubscribe()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.partition.answer_polls()
        for poll_id in list(self._forwarded_out):
            self._recall(poll_id)
        if self._serving is not None:
            self._serving.cancel()

    async def _open_root(self, stored: PartitionConfig | None) -> None:
        backlog = self.partition.backlog
        if stored is None:
            counts = partition_config(self._settings, self._scope)
            stored = PartitionConfig(version=1, read=counts.read, write=counts.write)
            # Before anybody is told: from here on the database is where the counts live.
            await backlog.save_config(stored)
        self._config = stored
        self._root = RootCoordinator(
            config=stored,
            save=backlog.save_config,
            load=backlog.load_config,
            ask=self._ask,
            push=self._push,
            on_change=self._use_config,
            settings=self._settings,
            scope=self._scope,
            clock=self._clock,
            log=self._log,
        )
        self._root.start()

    # --- configuration

    @property
    def config(self) -> PartitionConfig:
        """The configuration that this partition goes by."""
        if not self._is_normal or self._is_config_stored:
            return self._config
        return partition_config(self._settings, self._scope)

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

    def push(self, config: PartitionConfig) -> int:
        """The root tells the configuration; the version that is gone by from now on."""
        if config.version > self._config.version:
            self._use_config(config)
        return self._config.version

    @property
    def _is_config_stored(self) -> bool:
        return self._settings.get(matching.ENABLE_GET_NUMBER_OF_PARTITIONS_FROM_CACHE, self._scope)

    async def _reload_config(self) -> None:
        root = Partition(self.partition_id.task_list, 0)
        stored = await self._store.load_config(_queue_of(root))
        if stored is not None:
            self.push(stored)

    def _use_config(self, config: PartitionConfig) -> None:
        self._config = config
        self._limit_rates()

    async def _learn_of(self, config: PartitionConfig | None) -> None:
        """Catch up where a caller knows a newer configuration."""
        if config is not None and config.version > self._config.version and self._parent is not None:
            await self._reload_config()

    def _check_config(self, partitions: int, what: str) -> None:
        if self._is_normal and self._number >= partitions:
            self.counts.stale_configs += 1
            config = self.config
            raise StaleConfig(
                f"partition {self._number} of {self.partition_id.task_list.name!r} is not {what} at version "
                f"{config.version}, which has {config.read} read and {config.write} write partitions: choose again",
                config,
            )

    # --- tasks

    async def add(self, request: AddRequest) -> AddAnswer:
        """Take a task; it has been started when this returns, or is durable, or, where it was forwarded, refused."""
        task = request.task
        check_task(task)
        if len(task.payload) > self._settings.get(limits.BLOB_SIZE_ERROR, self._scope):
            raise InvalidTask(
                f"payload has {len(task.payload)} bytes, more than limit.blobSize.error allows "
                f"({self._settings.get(limits.BLOB_SIZE_ERROR, self._scope)}): send less, or a reference to it"
            )
        if request.forwarded_from is not None:
            return await self._add_forwarded(request)
        await self._learn_of(request.config)
        # From this check on the task is in flight, for the drain rule: nothing waits between the two.
        self._check_config(self.config.write, "writable")
        self._adds_in_flight += 1
        try:
            return await self._take(task)
        finally:
            self._adds_in_flight -= 1

    async def _take(self, task: NewTask) -> AddAnswer:
        now_s = self._clock()
        if not task.created_s:
            task = NewTask(task.priority, task.fairness_key, task.weight, task.payload, now_s)
        self.counts.tasks_added += 1
        self._adds.add(1, now_s)
        self._scaler_adds.add(1, now_s)
        if await self.partition.offer(task):
            return AddAnswer(is_started=True, config=self.config)
        if self._parent is not None and await self._offer_up(task):
            return AddAnswer(is_started=True, config=self.config, was_forwarded=True)
        try:
            await self.partition.keep(task)
        except AppendQueueFull:
            self.counts.appends_refused += 1
            raise
        if self._forwarded_out:
            # A poll of ours waits at the parent while there is something for it here.
            self._recall(next(iter(self._forwarded_out)))
        self.counts.task_write_latency.observe(self._clock() - now_s)
        return AddAnswer(is_started=False, config=self.config)

    async def _offer_up(self, task: NewTask) -> bool:
        """Offer a task that has just come to the polls of the parent; not past those that wait here already."""
        if self.partition.tasks_loaded or self.partition.backlog.tasks:
            return False
        if not self.forwarder.take_task_token():
            self.counts.forwarded_tasks_throttled += 1
            return False
        was_sent = False
        try:
            wait_s = self._settings.get(matching.LOCAL_TASK_WAIT_TIME, self._scope)
            if wait_s and await self.partition.offer(task, wait_s=wait_s):
                return True
            given = self.partition.admit(task)
            if given is None or self._is_closing:
                return False
            was_sent = True
            return await self._forward(given, task, wait_s=0.0)
        finally:
            self.forwarder.end_task(was_sent=was_sent)

    async def _forward(self, given: Given, task: NewTask, *, wait_s: float) -> bool:
        """Offer a task to the parent; it is finished here where that has started it, and given back where not."""
        assert self._parent is not None  # noqa: S101 - only called where there is one
        request = AddRequest(self._parent, task, forwarded_from=self._number, wait_s=wait_s)
        self.counts.forwarded_tasks += 1
        is_started = False
        try:
            answer = await self._peers.ask(self._parent, ADD, request, timeout_s=wait_s + CALL_S_MAX)
            is_started = answer.is_started
        except FairleadError:
            self.forwarder.pause(PAUSE_S)
        finally:
            if is_started:
                self.counts.forwarded_tasks_matched += 1
                self.partition.finish(given, b"")
            else:
                self.counts.forwarded_tasks_failed += 1
                self.partition.give_back(given)
        return is_started

    async def _add_forwarded(self, request: AddRequest) -> AddAnswer:
        """A child offers a task: it is matched here, or further up, and never kept."""
        self.counts.forwarded += 1
        task, wait_s = request.task, min(request.wait_s, FORWARDED_TASK_WAIT_S)
        if self._parent is None:
            return AddAnswer(await self.partition.offer(task, wait_s=wait_s, is_limited=False), self.config)
        if await self.partition.offer(task, is_limited=False):
            return AddAnswer(is_started=True, config=self.config)
        if not self.forwarder.take_task_token():
            return AddAnswer(is_started=False, config=self.config)
        try:
            further = AddRequest(self._parent, task, forwarded_from=self._number, wait_s=wait_s)
            answer = await self._peers.ask(self._parent, ADD, further, timeout_s=wait_s + CALL_S_MAX)
        finally:
            self.forwarder.end_task()
        return AddAnswer(answer.is_started, self.config, was_forwarded=True)

    # --- polls

    async def poll(self, request: PollRequest) -> PollAnswer:
        """Wait for a task; one that is returned has been started for this poll."""
        if not request.timeout_s > 0:
            raise InvalidPoll(f"poll of {request.identity!r} has {request.timeout_s} s left: its deadline is over")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if request.is_sent_down or request.forwarded_from is not None:
            self.counts.forwarded += 1
        else:
            await self._learn_of(request.config)
            self._check_config(self.config.read, "read")
            self.partition.note_poller(request.identity)
            if request.rate_per_s is not None:
                self._note_worker_rate(request.identity, request.rate_per_s)
        self._polled_s = began_s
        timeout_s = min(request.timeout_s, self._settings.get(matching.LONG_POLL_EXPIRATION_INTERVAL, self._scope))
        if request.is_sent_down:
            timeout_s = min(timeout_s, SENT_DOWN_WAIT_S if self.partition.backlog.tasks else 0.0)
        try:
            answer = await self._find_task(request, began_s + timeout_s)
        except asyncio.CancelledError:
            self.counts.poll_cancelled += 1
            raise
        self.counts.poll_latency.observe(loop.time() - began_s)
        if answer.task is None:
            self.counts.poll_timeouts += 1
        else:
            self.counts.poll_success += 1
        return answer

    async def _find_task(self, request: PollRequest, deadline_s: float) -> PollAnswer:
        may_redirect = self._is_normal and not request.is_sent_down
        is_forwarded = request.forwarded_from is not None
        while not self._is_closing:
            poll = WaitingPoll(request.identity, request.poll_id, may_redirect=may_redirect)
            if may_redirect:
                self._look_elsewhere_soon()
            if is_forwarded:
                self._forwarded_in[request.poll_id] = poll
            try:
                got = await self.partition.wait(poll, deadline_s)
            finally:
                if is_forwarded:
                    self._forwarded_in.pop(request.poll_id, None)
            if got is None:
                break
            if isinstance(got, Given):
                answer = await self.partition.start(got, request.identity)
                if answer is not None:
                    return self._started(request, got, answer)
                continue
            found = await self._look_elsewhere(got, request, deadline_s)
            if found is not None:
                return PollAnswer(found.task, self.config, self.report(), found.was_backlog, was_forwarded=True)
        return PollAnswer(None, self.config, self.report())

    def _started(self, request: PollRequest, given: Given, answer: bytes) -> PollAnswer:
        counts = self.counts
        is_backlog, is_remote_task = given.held is not None, not given.is_charged
        is_remote_poll = request.is_sent_down or request.forwarded_from is not None
        if is_backlog:
            counts.backlog_matches += 1
            counts.asyncmatch_latency.observe(max(0.0, self._clock() - given.created_s))
        else:
            counts.sync_matches += 1
            counts.poll_success_sync += 1
            counts.syncmatch_latency.observe(max(0.0, self._clock() - given.created_s))
        if is_remote_task:
            counts.remote_to_remote_matches += is_remote_poll
            counts.remote_to_local_matches += not is_remote_poll
        else:
            counts.local_to_remote_matches += is_remote_poll
            counts.local_to_local_matches += not is_remote_poll
        was_forwarded = is_remote_task or is_remote_poll
        return PollAnswer(answer, self.config, self.report(), is_backlog, was_forwarded)

    def recall(self, poll_id: str) -> bool:
        """Let a poll that a child forwarded go home, if it still waits."""
        poll = self._forwarded_in.get(poll_id)
        if poll is not None:
            return self.partition.withdraw(poll)
        if poll_id in self._forwarded_out:
            # It has gone further up.
            self._recall(poll_id)
            return True
        return False

    def _recall(self, poll_id: str) -> None:
        """Have a poll that was forwarded come back. Not by cancelling the call: it may bring a task that is started."""
        if self._parent is None or self._background.is_ended:
            return
        request = RecallRequest(self._parent, poll_id)
        self._forwarded_out.pop(poll_id, None)
        self._background.begin(self._send_recall(self._parent, request))

    async def _send_recall(self, to: Partition, request: RecallRequest) -> None:
        with suppress(FairleadError):
            await self._peers.ask(to, RECALL, request, timeout_s=CALL_S_MAX)

    # --- polls that find nothing here

    @property
    def _has_elsewhere(self) -> bool:
        if self._parent is not None:
            return self.forwarder.has_poll_token
        return self.children.has_any and self._may_send_down

    @property
    def _may_send_down(self) -> bool:
        most = self._settings.get(matching.FORWARDER_MAX_OUTSTANDING_POLLS_DOWN, self._scope)
        return self.children.polls_out < most

    def _look_elsewhere_soon(self) -> None:
        """When a poll begins to wait: look after it when its time here is over. One timer does for all of them."""
        if self._idle_timer is None and self._has_elsewhere:
            self._arm_idle_timer(self._settings.get(matching.LOCAL_POLL_WAIT_TIME, self._scope))

    def _arm_idle_timer(self, seconds: float) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self._redirect_idle)

    def _redirect_idle(self) -> None:
        """Have the polls that have waited here in vain look where they may find something."""
        self._idle_timer = None
        if self._is_closing or not self._has_elsewhere:
            return
        now_s = asyncio.get_running_loop().time()
        wait_s = self._settings.get(matching.LOCAL_POLL_WAIT_TIME, self._scope)
        for poll in list(islice(self.partition.waiting_polls(), REDIRECTED_AT_ONCE_MAX)):
            if not poll.may_redirect:
                continue
            if poll.since_s + wait_s > now_s:
                self._arm_idle_timer(poll.since_s + wait_s - now_s)
                return
            target = self._take_target()
            if target is None:
                return
            if not self.partition.withdraw(poll, target):
                self._end_target(target)

    def _take_target(self) -> Redirect | None:
        if self._parent is not None:
            return _UP if self.forwarder.take_poll_token() else None
        if not self._may_send_down:
            return None
        number = self.children.take()
        return None if number is None else _Down(number)

    def _end_target(self, target: Redirect) -> None:
        if isinstance(target, _Down):
            self.children.end(target.number)
        else:
            self.forwarder.end_poll()

    async def _look_elsewhere(self, target: Redirect, request: PollRequest, deadline_s: float) -> PollAnswer | None:
        """What a poll finds where it was redirected to; None: nothing, and it waits here again."""
        try:
            if isinstance(target, _Down):
                return await self._look_down(target.number, request)
            return await self._look_up(request, deadline_s)
        finally:
            self._end_target(target)
            # Its place is free for the next.
            self._look_elsewhere_soon()

    async def _look_up(self, request: PollRequest, deadline_s: float) -> PollAnswer | None:
        assert self._parent is not None  # noqa: S101 - only called where there is one
        began_s = asyncio.get_running_loop().time()
        left_s = deadline_s - began_s
        if left_s <= 2 * HOP_S or self._is_closing:
            return None
        forwarded = PollRequest(
            self._parent, request.identity, request.poll_id, left_s - HOP_S, forwarded_from=self._number
        )
        self.counts.forwarded_polls += 1
        self._forwarded_out[request.poll_id] = None
        try:
            answer = await self._peers.ask(self._parent, POLL, forwarded, timeout_s=left_s)
        except FairleadError:
            self.counts.forwarded_polls_failed += 1
            self.forwarder.pause(PAUSE_S)
            return None
        finally:
            was_recalled = self._forwarded_out.pop(request.poll_id, self) is self
        if answer.task is None:
            if not was_recalled:
                # It was answered before its time: the parent is being unloaded.
                self.forwarder.pause(PAUSE_S)
            return None
        self.counts.forwarded_polls_matched += 1
        return answer

    async def _look_down(self, number: int, request: PollRequest) -> PollAnswer | None:
        child = Partition(self.partition_id.task_list, number)
        sent = PollRequest(child, request.identity, request.poll_id, SENT_DOWN_WAIT_S, is_sent_down=True)
        self.counts.polls_sent_down += 1
        try:
            answer = await self._peers.ask(child, POLL, sent, timeout_s=SENT_DOWN_WAIT_S + CALL_S_MAX)
        except FairleadError:
            self.children.forget(number)
            return None
        if answer.task is None:
            # Others have taken what there was; it reports again if more has come.
            self.children.forget(number)
            return None
        self.counts.polls_sent_down_matched += 1
        self.children.note(answer.report)
        return answer

    # --- tasks that find no poll here

    def note_report(self, report: BacklogReport) -> None:
        """A partition of this task list has tasks and no polls."""
        if report.partition != self._number:
            self.children.note(report)
            self._redirect_idle()

    def _begin_serving(self) -> None:
        """Tasks are held here and no poll waits: see to it that polls of other partitions take them."""
        if self._parent is not None and self._serving is None and not self._is_closing:
            self._serving = self._background.begin(self._serve_unserved())

    async def _serve_unserved(self) -> None:
        loop = asyncio.get_running_loop()
        reported_s = -math.inf
        try:
            while self.partition.backlog.tasks and not self._is_closing:
                if not self.partition.polls_waiting:
                    if loop.time() - reported_s >= REPORT_INTERVAL_S:
                        reported_s = loop.time()
                        self._background.begin(self._report_to_root())
                    if loop.time() - self._polled_s >= POLLS_ARE_COMING_S:
                        self._forward_held()
                is_waiting_up = self.forwarder.tasks_out > 0
                await asyncio.sleep(REPORT_INTERVAL_S / 2 if is_waiting_up else UNSERVED_INTERVAL_S)
        finally:
            self._serving = None

    async def _report_to_root(self) -> None:
        root = Partition(self.partition_id.task_list, 0)
        with suppress(FairleadError):
            request = ReportRequest(root, self._fresh_report())
            answer = await self._peers.ask(root, REPORT, request, timeout_s=CALL_S_MAX)
            await self._learn_of(answer.config)

    def _forward_held(self) -> None:
        """Offer tasks of the backlog to the parent, as many as the limits allow."""
        while not self._is_closing and self.forwarder.take_task_token():
            given = self.partition.take_held()
            if given is None:
                self.forwarder.end_task(was_sent=False)
                return
            self._background.begin(self._forward_one(given))

    async def _forward_one(self, given: Given) -> None:
        held = given.held
        assert held is not None  # noqa: S101 - it was taken from the backlog
        task = NewTask(held.place.priority, held.fairness_key, held.weight, held.payload, held.created_s)
        is_started = False
        try:
            is_started = await self._forward(given, task, wait_s=FORWARDED_TASK_WAIT_S)
        finally:
            self.forwarder.end_task()
        if is_started:
            self._forward_held()

    # --- what it says of itself

    def report(self) -> BacklogReport:
        """What is said with every answer: not older than a moment."""
        now_s = self._clock()
        if self._report is None or not 0 <= self._report_until_s - now_s <= REPORT_FRESH_S:
            self._report = self._fresh_report()
            self._report_until_s = now_s + REPORT_FRESH_S
        return self._report

    def _fresh_report(self) -> BacklogReport:
        now_s = self._clock()
        return BacklogReport(
            partition=self._number,
            tasks=self.partition.backlog.tasks,
            age_s=max(0.0, now_s - self.partition.oldest_s()),
            adds_per_s=self._adds.rate(now_s),
            wait_s=self.partition.wait_s,
        )

    async def describe(self, request: DescribeRequest) -> DescribeAnswer:
        """How this partition is doing; with a drain report if it is asked for."""
        backlog = self.partition.backlog
        return DescribeAnswer(
            partition=self._number,
            host=self._host,
            config=self.config,
            report=self._fresh_report(),
            dispatches_per_s=self.partition.dispatches_per_s,
            polls_waiting=self.partition.polls_waiting,
            tasks_loaded=self.partition.tasks_loaded,
            range_id=backlog.lease.range_id,
            pollers=[PollerInfo(identity, seen_s) for identity, seen_s in self.partition.pollers()],
            priorities=backlog.priorities,
            scaler_adds_per_s=self._scaler_adds.rate(self._clock()),
            rate_limit_per_s=self.partition.rate_per_s,
            drain=await self._drain_report() if request.with_drain else None,
            keys=self.partition.keys(request.keys_max) if request.keys_max > 0 else [],
        )

    async def _drain_report(self) -> DrainReport:
        """In the order that makes it true: see `core.partitions.drain`."""
        version = self._config.version
        in_flight = self._adds_in_flight + self.partition.backlog.appends_in_flight
        await self.partition.backlog.delete_acked()
        stored = await self.partition.backlog.count()
        return DrainReport(self._number, version, in_flight, stored)

    async def _ask(self, number: int, with_drain: bool) -> DescribeAnswer:  # noqa: FBT001 - the coordinator's shape
        partition = Partition(self.partition_id.task_list, number)
        request = DescribeRequest(partition, with_drain=with_drain)
        if number == self._number:
            return await self.describe(request)
        return await self._peers.ask(partition, DESCRIBE, request, timeout_s=CALL_S_MAX)

    async def _push(self, number: int, config: PartitionConfig) -> int:
        partition = Partition(self.partition_id.task_list, number)
        answer = await self._peers.ask(partition, PUSH, PushRequest(partition, config), timeout_s=CALL_S_MAX)
        return answer.version

    # --- rates

    def _note_worker_rate(self, identity: str, rate_per_s: float) -> None:
        if math.isnan(rate_per_s) or rate_per_s < 0:
            raise InvalidPoll(f"rate_per_s of {identity!r} is {rate_per_s}: give 0 or more tasks a second")
        known = self._worker_rates.get(identity)
        self._worker_rates[identity] = (rate_per_s, self._clock())
        if known is None or known[0] != rate_per_s:
            self._limit_rates()

    def _limit_rates(self) -> None:
        """Let this partition dispatch its part of what the whole task list may: the lowest of all limits."""
        now_s = self._clock()
        self._worker_rates = {
            identity: (rate, told_s)
            for identity, (rate, told_s) in self._worker_rates.items()
            if now_s - told_s <= WORKER_RATE_HOLDS_S
        }
        asked = min((rate for rate, _ in self._worker_rates.values()), default=math.inf)
        override = no_limit_if_zero(self._settings.get(matching.OVERRIDE_TASK_LIST_RPS, self._scope))
        read = self.config.read
        rate_per_s = min(asked, override) / read
        key_rate_per_s = no_limit_if_zero(self._settings.get(matching.FAIRNESS_KEY_RPS, self._scope)) / read
        self.partition.change_rates(rate_per_s=rate_per_s, key_rate_per_s=key_rate_per_s)


def _queue_of(partition: Partition) -> QueueId:
    task_list: TaskList = partition.task_list
    return QueueId(task_list.namespace_id, partition.name, task_list.type)
