"""How everybody else reaches the matching service: chooses a partition, finds its owner, and asks there.

All that a client remembers are hints: which hosts there are, how many partitions, where tasks wait. Each is put right
by the answers of the partitions; a request that went by a wrong one is refused before anything was done, and made
again.
"""

import asyncio
from collections.abc import Callable

from fairlead.cluster.calls import Caller
from fairlead.cluster.membership import Clock
from fairlead.cluster.ring import RingView
from fairlead.core.balancing import InvalidReport, LoadBalancer, Pick
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition, PartitionConfig, TaskList
from fairlead.matching.attempts import AttemptLimits, Attempts, deadline
from fairlead.matching.configs import PartitionConfigs, scope_of
from fairlead.matching.messages import (
    ADD,
    POLL,
    REVIEW,
    SHUTDOWN,
    AddAnswer,
    AddRequest,
    BacklogReport,
    NewTask,
    PollAnswer,
    PollRequest,
    ReviewRequest,
    ShutdownRequest,
    StaleConfig,
    TaskListKind,
)
from fairlead.settings import DynamicSettings, weighted_rules
from fairlead.settings.matching import (
    LONG_POLL_EXPIRATION_INTERVAL,
    TASKLIST_LOAD_BALANCER_STRATEGY,
    WEIGHTED_BACKLOG_THRESHOLD,
    WEIGHTED_FLOOR_SHARE,
    WEIGHTED_REPORT_HALF_LIFE,
)

ADD_TIMEOUT_S = 10.0
REVIEW_TIMEOUT_S = 60.0
# A poll is answered when its time is over, and the answer takes a while to arrive: so much longer it is waited for.
POLL_MARGIN_S = 1.0
# Likewise for a task that is offered: whoever starts it takes a while.
OFFER_MARGIN_S = 10.0
OFFER_PAUSE_S = 0.05
# A poll that knows nothing of its task list waits at the root for so long, and then where it has heard that it should.
# Else all workers that start would wait at the root, for a whole long poll, while tasks come to other partitions.
FIRST_POLL_S = 1.0
ROOT = 0


class MatchingClient:
    """Adds tasks and polls for them, on whichever host the partition is.

    A request that fails is made again while its time lasts, see `Attempts`; every time the partition is chosen anew,
    so that one which can't be reached is left behind. When it is not made again, the last failure is raised.
    `forced_read` and `forced_write` are hooks for tests: they win over the choice, once the task list is known.
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
        self._configs = PartitionConfigs(settings)
        # Drawn once and then counted: no two clients have a poll of the same id.
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

    def route(self, partition: Partition) -> str:
        """The host that owns `partition` now."""
        return self._ring.route(partition)

    async def add(
        self,
        task_list: TaskList,
        task: NewTask,
        *,
        kind: TaskListKind = TaskListKind.NORMAL,
        timeout_s: float = ADD_TIMEOUT_S,
    ) -> AddAnswer:
        """Have a task kept until a worker takes it; when this returns, it is started or durable.

        After a failure the task may have been taken all the same, unless the failure says that nothing was done.
        """
        deadline_s = deadline(timeout_s)
        attempt_s_max = attempt_s = min(self._limits.attempt_s_max, timeout_s / 2)
        attempts: Attempts | None = None
        is_at_root = kind is not TaskListKind.NORMAL
        while True:
            config = None if is_at_root else self._configs.find(task_list)
            partition = Partition(task_list, ROOT if config is None else self._pick_write(task_list, config))
            try:
                answer = await self._caller.call(
                    self._ring.route(partition),
                    ADD,
                    AddRequest(partition, task, kind, _sent(config)),
                    timeout_s=attempt_s,
                )
            except FairleadError as failure:
                attempts = attempts or self._attempts(deadline_s)
                is_at_root = is_at_root or self._leads_to_root(task_list, config, failure)
                if not await attempts.again(failure):
                    raise
                attempt_s = min(attempt_s_max, attempts.left_s())
            else:
                if kind is TaskListKind.NORMAL and (config is None or answer.config.version > config.version):
                    self._configs.accept(task_list, answer.config)
                return answer

    async def offer(
        self, task_list: TaskList, task: NewTask, *, kind: TaskListKind = TaskListKind.NORMAL, wait_s: float
    ) -> bool:
        """Have a task started by a poll that waits, or comes within `wait_s`, ahead of all other tasks; or give it up.

        It is never kept. False: no poll came, and nobody will be given it. Whoever is cancelled takes it back, unless
        it is being started. After `CallLost` it may have been started all the same.
        """
        deadline_s = deadline(wait_s)
        attempts = self._attempts(deadline_s)
        while True:
            left_s = attempts.left_s()
            config = self._configs.find(task_list) if kind is TaskListKind.NORMAL else None
            partition = Partition(task_list, ROOT if config is None else self._pick_write(task_list, config))
            request = AddRequest(partition, task, kind, wait_s=left_s, is_transient=True)
            try:
                answer = await self._caller.call(
                    self._ring.route(partition), ADD, request, timeout_s=left_s + OFFER_MARGIN_S
                )
            except FairleadError as failure:
                if not await attempts.again(failure):
                    raise
            else:
                if kind is TaskListKind.NORMAL:
                    self._configs.accept(task_list, answer.config)
                if answer.is_started or attempts.left_s() <= OFFER_PAUSE_S:
                    return answer.is_started
                # It was refused before its time: the partition is being unloaded, and there is another soon.
                await asyncio.sleep(OFFER_PAUSE_S)

    async def forget_sticky(self, sticky: TaskList, *, timeout_s: float = ADD_TIMEOUT_S) -> list[bytes]:
        """A worker says goodbye to its own task list: its polls are answered, and tasks for it are refused at once.

        The payloads of those that waited there are returned, and are kept no longer: whoever wants them done finds
        another worker. A failure leaves them where they are, or has them forgotten.
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

    async def review(self, task_list: TaskList, worker: bytes, *, timeout_s: float = REVIEW_TIMEOUT_S) -> None:
        """Have all tasks that wait in a task list asked whether they belong there, see `ReviewRequest`."""
        attempts = self._attempts(deadline(timeout_s))
        number = partitions = 0
        while number <= partitions:
            partition = Partition(task_list, number)
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
        task_list: TaskList,
        identity: str,
        *,
        timeout_s: float,
        kind: TaskListKind = TaskListKind.NORMAL,
        rate_per_s: float | None = None,
        worker: bytes = b"",
    ) -> PollAnswer:
        """Wait for a task, for `timeout_s` but no longer than a long poll lasts; the answer is empty if none came.

        It is here a little after the time is over, `POLL_MARGIN_S` at most. Whoever is cancelled has its poll taken
        back, and a task that was given to it goes to another.
        """
        deadline_s = deadline(min(timeout_s, self._settings.get(LONG_POLL_EXPIRATION_INTERVAL, scope_of(task_list))))
        now_s = asyncio.get_running_loop().time
        attempts: Attempts | None = None
        is_at_root = kind is not TaskListKind.NORMAL
        while True:
            config = None if is_at_root else self._configs.find(task_list)
            pick = Pick(ROOT) if config is None else self._pick_read(task_list, config)
            left_s = deadline_s - now_s()
            is_first = config is None and not is_at_root and left_s > FIRST_POLL_S
            request = PollRequest(
                Partition(task_list, pick.partition),
                identity,
                self._next_poll_id(),
                FIRST_POLL_S if is_first else left_s,
                kind,
                _sent(config),
                rate_per_s,
                worker=worker,
            )
            try:
                answer = await self._wait(request, pick)
            except FairleadError as failure:
                attempts = attempts or self._attempts(deadline_s)
                is_at_root = is_at_root or self._leads_to_root(task_list, config, failure)
                if not await attempts.again(failure):
                    raise
            else:
                if kind is TaskListKind.NORMAL and (config is None or answer.config.version > config.version):
                    self._configs.accept(task_list, answer.config)
                # Where there is one partition, there is nothing to weigh.
                if config is not None and config.read > 1:
                    self._report(task_list, answer.report)
                if answer.task is not None or not is_first or now_s() >= deadline_s:
                    return answer
                # Nothing more is to be learnt at the root: if that was nothing, it stays there for the rest.
                is_at_root = self._configs.find(task_list) is None

    async def _wait(self, request: PollRequest, pick: Pick) -> PollAnswer:
        try:
            return await self._caller.call(
                self._ring.route(request.partition), POLL, request, timeout_s=request.timeout_s + POLL_MARGIN_S
            )
        finally:
            pick.release()

    def _pick_write(self, task_list: TaskList, config: PartitionConfig) -> int:
        strategy = self._settings.get(TASKLIST_LOAD_BALANCER_STRATEGY, scope_of(task_list))
        return self._balancer.pick_write(task_list, partitions=config.write, strategy=strategy)

    def _pick_read(self, task_list: TaskList, config: PartitionConfig) -> Pick:
        strategy = self._settings.get(TASKLIST_LOAD_BALANCER_STRATEGY, scope_of(task_list))
        return self._balancer.pick_read(task_list, partitions=config.read, strategy=strategy, now_s=self._clock())

    def _report(self, task_list: TaskList, report: BacklogReport) -> None:
        try:
            self._balancer.report(
                task_list,
                report.partition,
                backlog=report.tasks,
                arrival_per_s=report.adds_per_s,
                wait_s=report.wait_s,
                now_s=self._clock(),
            )
        except InvalidReport:
            # The task that may have come with it has been started: it must not be lost for a bad hint.
            return

    def _leads_to_root(self, task_list: TaskList, config: PartitionConfig | None, failure: FairleadError) -> bool:
        """Take over the configuration that a refusal carries. If that changes nothing, only the root is sure."""
        return isinstance(failure, StaleConfig) and self._configs.adopt(task_list, failure.config) == config

    def _attempts(self, deadline_s: float) -> Attempts:
        return Attempts(self._ring, deadline_s=deadline_s, random=self._random, limits=self._limits)

    def _next_poll_id(self) -> str:
        self._polls += 1
        return f"{self._poll_id_prefix}-{self._polls}"


def _sent(config: PartitionConfig | None) -> PartitionConfig | None:
    """What a request says that its partition was chosen by: nothing, if that was the settings or nothing at all."""
    return config if config is not None and config.version else None
