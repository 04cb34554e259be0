"""The client of the matching service: chooses a partition, finds its owner, and calls it.

A client caches only hints: the hosts, the number of partitions, and where tasks wait. The partitions' responses correct
wrong hints. If a request was based on a wrong hint, the partition rejects it without effect, and the client repeats it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from fairlead.core.balancing import InvalidReport, LoadBalancer, Pick
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId
from fairlead.matching.client_config_metrics import ConfigUsers
from fairlead.matching.client_configs import PartitionConfigs, scope_of
from fairlead.matching.client_retries import AttemptLimits, Attempts, deadline
from fairlead.matching.messages import (
    ADD,
    FREE_SLOT,
    POLL,
    REVIEW,
    SHUTDOWN,
    AddRequest,
    AddResponse,
    BacklogReport,
    FreeSlotRequest,
    NewTask,
    PollRequest,
    PollResponse,
    QueueKind,
    ReviewRequest,
    ShutdownRequest,
    StaleConfig,
)
from fairlead.matching.reserved_poll import Reserve, ReservedPoll, ReserveSticky
from fairlead.membership.members import Clock
from fairlead.membership.ring import RingView
from fairlead.rpc.hosts.caller import Caller
from fairlead.settings import DynamicSettings, weighted_rules
from fairlead.settings.dynamic.matching import (
    LONG_POLL_EXPIRATION_INTERVAL,
    TASKLIST_LOAD_BALANCER_STRATEGY,
    WEIGHTED_BACKLOG_THRESHOLD,
    WEIGHTED_FLOOR_SHARE,
    WEIGHTED_REPORT_HALF_LIFE,
)

ADD_TIMEOUT_S = 10.0
REVIEW_TIMEOUT_S = 60.0
FREE_SLOT_TIMEOUT_S = 2.0
# Seconds that the client waits for the response after a poll's timeout.
POLL_MARGIN_S = 1.0
# Seconds that the client waits for the start of the task after an offer's timeout.
OFFER_MARGIN_S = 10.0
OFFER_PAUSE_S = 0.05
# Seconds that the first poll of an unknown task queue waits at the root. The response carries the configuration, and
# the client then polls a partition of its choice. With a longer wait, all new workers would wait at the root while
# tasks are added to other partitions.
FIRST_POLL_S = 1.0
ROOT = 0
# Priority that a sticky task queue's rate limits use for a task whose priority is not known yet.
OFFERED_PRIORITY = 3


class MatchingClient:
    """Adds tasks and polls for tasks at the host that owns the partition.

    A failed request is retried until its deadline, see `Attempts`. Each attempt chooses the partition again, so that an
    unreachable partition is avoided. After the last attempt its error is raised. `forced_read` and `forced_write` are
    hooks for tests: they override the choice once the task queue's configuration is known.
    """

    def __init__(
        self,
        caller: Caller,
        ring: RingView,
        *,
        settings: DynamicSettings,
        clock: Clock,
        random: Callable[[], float],
        limits: AttemptLimits | None = None,
        forced_read: int | None = None,
        forced_write: int | None = None,
    ) -> None:
        self._caller = caller
        self._ring = ring
        self._settings = settings
        self._clock = clock
        self._random = random
        self._limits = limits or AttemptLimits()
        self._configs = PartitionConfigs()
        self._users = ConfigUsers(self._configs)
        # Read at each scrape of the metrics, see `Metrics.watch`.
        self.gauges = self._users.gauges
        # A random prefix and a counter make poll ids unique among all clients.
        self._local: Reserve | None = None
        self._sticky: ReserveSticky | None = None
        self._poll_id_prefix = f"{int(random() * 2**53):x}-{int(random() * 2**53):x}"
        self._polls = 0

        def balancer() -> LoadBalancer:
            return LoadBalancer(
                random=random, weighted=weighted_rules(settings), forced_read=forced_read, forced_write=forced_write
            )

        def balance_anew(_changed: float) -> None:
            self._balancer = balancer()

        self._balancer = balancer()
        for setting in (WEIGHTED_BACKLOG_THRESHOLD, WEIGHTED_FLOOR_SHARE, WEIGHTED_REPORT_HALF_LIFE):
            settings.subscribe(setting, balance_anew)

    def reserve_locally(self, reserve: Reserve) -> None:
        """Set the function that reserves a poll which waits at this host, see `MatchingService.reserve`."""
        self._local = reserve

    def reserve_sticky(self, reserve: ReserveSticky) -> None:
        """Set the function that reserves a poll of this host's frontend, see `StickyPolls`."""
        self._sticky = reserve

    def reserve(
        self, task_queue: TaskQueueId, task: NewTask, *, kind: QueueKind = QueueKind.NORMAL
    ) -> ReservedPoll | None:
        """Reserve a poll that waits for the task at this host; None if `add` must be called."""
        if kind is QueueKind.STICKY and self._sticky is not None and (poll := self._sticky(task_queue)) is not None:
            return poll
        if self._local is None:
            return None
        config = None if kind is not QueueKind.NORMAL else self._configs.find(task_queue)
        # Choose at random instead of with the balancer: attempts without a poll would make round robin skip partitions.
        number = ROOT if config is None else int(self._random() * config.write)
        reserved = self._local(Partition(task_queue, number), task)
        if reserved is not None and kind is QueueKind.NORMAL:
            self._users.note_task(task_queue)
        return reserved

    def reserve_offered(self, task_queue: TaskQueueId) -> ReservedPoll | None:
        """Reserve a poll of a sticky task queue at this host, for the task that a call to another host may schedule."""
        task = NewTask(OFFERED_PRIORITY, "", 1.0, b"", self._clock())
        return self.reserve(task_queue, task, kind=QueueKind.STICKY)

    def route(self, partition: Partition) -> str:
        """Return the host that owns `partition` now."""
        return self._ring.route(partition)

    async def add(
        self,
        task_queue: TaskQueueId,
        task: NewTask,
        *,
        kind: QueueKind = QueueKind.NORMAL,
        timeout_s: float = ADD_TIMEOUT_S,
    ) -> AddResponse:
        """Add a task; when this returns, the task was started or is durable.

        After an error the task may still have been added, unless the error says that nothing was done.
        """
        deadline_s = deadline(timeout_s)
        attempt_s_max = attempt_s = min(self._limits.attempt_s_max, timeout_s / 2)
        attempts: Attempts | None = None
        is_at_root = kind is not QueueKind.NORMAL
        while True:
            config = None if kind is not QueueKind.NORMAL else self._configs.find(task_queue)
            number = ROOT if config is None or is_at_root else self._pick_write(task_queue, config)
            partition = Partition(task_queue, number)
            try:
                answer = await self._caller.call(
                    self._ring.route(partition),
                    ADD,
                    AddRequest(partition, task, kind, config),
                    timeout_s=attempt_s,
                )
            except FairleadError as failure:
                attempts = attempts or self._attempts(deadline_s)
                is_at_root = is_at_root or self._leads_to_root(task_queue, config, failure)
                if not await attempts.again(failure):
                    raise
                attempt_s = min(attempt_s_max, attempts.left_s())
            else:
                if kind is QueueKind.NORMAL and (config is None or answer.config.version > config.version):
                    self._configs.accept(task_queue, answer.config)
                if kind is QueueKind.NORMAL:
                    self._users.note_task(task_queue)
                return answer

    async def offer(
        self, task_queue: TaskQueueId, task: NewTask, *, kind: QueueKind = QueueKind.NORMAL, wait_s: float
    ) -> bool:
        """Match a query task, before all other tasks, with a poll that waits or comes within `wait_s`.

        The task is never stored. Returns False if no poll came in time; then no poll will get the task. Cancelling the
        caller withdraws the task, unless it is being started. After `CallLost` the task may have been started.
        """
        deadline_s = deadline(wait_s)
        attempts = self._attempts(deadline_s)
        while True:
            left_s = attempts.left_s()
            config = self._configs.find(task_queue) if kind is QueueKind.NORMAL else None
            partition = Partition(task_queue, ROOT if config is None else self._pick_write(task_queue, config))
            request = AddRequest(partition, task, kind, wait_s=left_s, is_transient=True)
            try:
                answer = await self._caller.call(
                    self._ring.route(partition), ADD, request, timeout_s=left_s + OFFER_MARGIN_S
                )
            except FairleadError as failure:
                if not await attempts.again(failure):
                    raise
            else:
                if kind is QueueKind.NORMAL:
                    self._configs.accept(task_queue, answer.config)
                    self._users.note_task(task_queue)
                if answer.is_started or attempts.left_s() <= OFFER_PAUSE_S:
                    return answer.is_started
                # The offer ended before its timeout because the partition is being unloaded; another host loads it
                # soon.
                await asyncio.sleep(OFFER_PAUSE_S)

    async def forget_sticky(self, sticky: TaskQueueId, *, timeout_s: float = ADD_TIMEOUT_S) -> list[bytes]:
        """Shut down a worker's sticky task queue: end its polls and reject new tasks for it.

        Returns the payloads of the tasks that waited there. They are no longer stored: the caller must find another
        worker for them. After an error the tasks are either still there or lost.
        """
        partition = Partition(sticky, ROOT)
        attempts = self._attempts(deadline(timeout_s))
        while True:
            try:
                answer = await self._caller.call(
                    self._ring.route(partition), SHUTDOWN, ShutdownRequest(partition), timeout_s=attempts.left_s()
                )
            except FairleadError as failure:
                if not await attempts.again(failure):
                    raise
            else:
                return answer.payloads

    async def report_free_slot(self, task_queue: TaskQueueId, fairness_key: str) -> None:
        """Notify the partitions of a limited task queue that an activity has ended, so that they try the next task.

        Failures are ignored: without a notification, a partition tries after `parked_keys.RETRY_S`.
        """
        with suppress(FairleadError):
            partitions = await self._report_free_slot(Partition(task_queue, ROOT), fairness_key)
            await asyncio.gather(
                *(
                    self._report_free_slot(Partition(task_queue, number), fairness_key)
                    for number in range(1, partitions)
                ),
                return_exceptions=True,
            )

    async def _report_free_slot(self, partition: Partition, fairness_key: str) -> int:
        request = FreeSlotRequest(partition, fairness_key)
        owner = self._ring.route(partition)
        return (await self._caller.call(owner, FREE_SLOT, request, timeout_s=FREE_SLOT_TIMEOUT_S)).partitions

    async def review(self, task_queue: TaskQueueId, worker: bytes, *, timeout_s: float = REVIEW_TIMEOUT_S) -> None:
        """Review all tasks that wait in a task queue, see `ReviewRequest`."""
        attempts = self._attempts(deadline(timeout_s))
        number = partitions = 0
        while number <= partitions:
            partition = Partition(task_queue, number)
            try:
                answer = await self._caller.call(
                    self._ring.route(partition), REVIEW, ReviewRequest(partition, worker), timeout_s=attempts.left_s()
                )
            except FairleadError as failure:
                if not await attempts.again(failure):
                    raise
            else:
                partitions = max(partitions, answer.partitions - 1)
                number += answer.is_done

    async def poll(
        self,
        task_queue: TaskQueueId,
        identity: str,
        *,
        timeout_s: float,
        kind: QueueKind = QueueKind.NORMAL,
        rate_per_s: float | None = None,
        worker: bytes = b"",
    ) -> PollResponse:
        """Wait for a task for `timeout_s`, but no longer than a long poll lasts; the response is empty if none came.

        The response may arrive up to `POLL_MARGIN_S` after the timeout. Cancelling the caller withdraws the poll, and a
        task that was matched with it goes to another poll.
        """
        deadline_s = deadline(min(timeout_s, self._settings.get(LONG_POLL_EXPIRATION_INTERVAL, scope_of(task_queue))))
        now_s = asyncio.get_running_loop().time
        attempts: Attempts | None = None
        is_at_root = kind is not QueueKind.NORMAL
        while True:
            config = None if kind is not QueueKind.NORMAL else self._configs.find(task_queue)
            pick = Pick(ROOT) if config is None or is_at_root else self._pick_read(task_queue, config)
            left_s = deadline_s - now_s()
            is_first = config is None and not is_at_root and left_s > FIRST_POLL_S
            request = PollRequest(
                Partition(task_queue, pick.partition),
                identity,
                self._next_poll_id(),
                FIRST_POLL_S if is_first else left_s,
                kind,
                config,
                rate_per_s,
                worker=worker,
            )
            try:
                answer = await self._wait(request, pick)
            except FairleadError as failure:
                attempts = attempts or self._attempts(deadline_s)
                is_at_root = is_at_root or self._leads_to_root(task_queue, config, failure)
                if not await attempts.again(failure):
                    raise
            else:
                if kind is QueueKind.NORMAL and (config is None or answer.config.version > config.version):
                    self._configs.accept(task_queue, answer.config)
                if kind is QueueKind.NORMAL:
                    self._users.note_poll(task_queue)
                # With one partition there is no choice to balance.
                if config is not None and config.read > 1:
                    self._report(task_queue, answer.report)
                if answer.task is not None or not is_first or now_s() >= deadline_s:
                    return answer
                # If the root's response had no configuration, the poll spends the rest of its time at the root.
                is_at_root = self._configs.find(task_queue) is None

    async def _wait(self, request: PollRequest, pick: Pick) -> PollResponse:
        try:
            return await self._caller.call(
                self._ring.route(request.partition), POLL, request, timeout_s=request.timeout_s + POLL_MARGIN_S
            )
        finally:
            pick.release()

    def _pick_write(self, task_queue: TaskQueueId, config: PartitionConfig) -> int:
        strategy = self._settings.get(TASKLIST_LOAD_BALANCER_STRATEGY, scope_of(task_queue))
        return self._balancer.pick_write(task_queue, partitions=config.write, strategy=strategy)

    def _pick_read(self, task_queue: TaskQueueId, config: PartitionConfig) -> Pick:
        strategy = self._settings.get(TASKLIST_LOAD_BALANCER_STRATEGY, scope_of(task_queue))
        return self._balancer.pick_read(task_queue, partitions=config.read, strategy=strategy, now_s=self._clock())

    def _report(self, task_queue: TaskQueueId, report: BacklogReport) -> None:
        try:
            self._balancer.report(
                task_queue,
                report.partition,
                backlog=report.tasks,
                arrival_per_s=report.adds_per_s,
                wait_s=report.wait_s,
                now_s=self._clock(),
            )
        except InvalidReport:
            # The response may carry a started task, which must not be lost because of the report.
            return

    def _leads_to_root(self, task_queue: TaskQueueId, config: PartitionConfig | None, failure: FairleadError) -> bool:
        """Adopt the configuration of a `StaleConfig` error; True if the request had used it: then ask the root."""
        return isinstance(failure, StaleConfig) and self._configs.adopt(task_queue, failure.config) == config

    def _attempts(self, deadline_s: float) -> Attempts:
        return Attempts(self._ring, deadline_s=deadline_s, random=self._random, limits=self._limits)

    def _next_poll_id(self) -> str:
        self._polls += 1
        return f"{self._poll_id_prefix}-{self._polls}"
