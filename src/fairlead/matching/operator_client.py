"""The client for operators of the matching service: describes task queues and changes their partitions and rules."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fairlead.core.errors import FairleadError, FixRequest, RetryElsewhere, RetryLater
from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId, TaskType, parse_partition_name
from fairlead.matching.client_retries import AttemptLimits, Attempts, deadline
from fairlead.matching.messages import (
    CONFIGURE,
    DESCRIBE,
    EXPLAIN,
    LIST,
    UPDATE,
    ConfigureRequest,
    DescribeRequest,
    DescribeResponse,
    DispatchRules,
    ExplainRequest,
    ExplainResponse,
    ListRequest,
    ListResponse,
    PollerInfo,
    PriorityStats,
    QueueKind,
    RateChange,
    UpdateRequest,
    UpdateResponse,
)
from fairlead.matching.messages.inspection import (
    FIGURES,
    PEEK,
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
from fairlead.membership.ring import RING, RingRequest, RingResponse, RingView
from fairlead.rpc.hosts.caller import Caller, Method, Request, Response

Key = TypeVar("Key")

OPERATOR_TIMEOUT_S = 10.0
# Number of partitions or hosts that are called at the same time.
ASKED_AT_ONCE_MAX = 16
# Number of partitions in one list: more would fill the memory of a small machine.
LISTED_PARTITIONS_MAX = 1_000_000
ROOT = 0


class TooManyToList(FixRequest):
    """The store has more than `LISTED_PARTITIONS_MAX` partitions."""


class NobodyToAsk(RetryLater):
    """No host of the ring responded."""


@dataclass(frozen=True, slots=True)
class TaskQueueDescription:
    """Descriptions of the partitions of a task queue that are read or being drained, by number.

    `config` is the root's configuration; None if the root did not answer; the other partitions are unknown then.
    `missing` maps each partition that did not answer to the reason.
    """

    config: PartitionConfig | None
    partitions: dict[int, DescribeResponse] = field(default_factory=dict)
    missing: dict[int, FairleadError] = field(default_factory=dict)

    def by_priority(self) -> list[PriorityStats]:
        """Return the figures of each priority over all partitions that responded: sums, and the oldest task's age."""
        stats: dict[int, PriorityStats] = {}
        for answer in self.partitions.values():
            for one in answer.by_priority:
                so_far = stats.get(one.priority)
                stats[one.priority] = one if so_far is None else _sum(so_far, one)
        return [stats[priority] for priority in sorted(stats)]

    def total(self) -> PriorityStats:
        """Return the figures of all priorities together, as priority 0."""
        total = PriorityStats(0, 0, 0.0, 0.0, 0.0)
        for one in self.by_priority():
            total = _sum(total, one)
        return total

    def pollers(self) -> list[PollerInfo]:
        """Return the latest poll of each recent poller over all partitions, the most recent first."""
        pollers: dict[str, PollerInfo] = {}
        for answer in self.partitions.values():
            for one in answer.pollers:
                known = pollers.get(one.identity)
                if known is None or known.seen_s < one.seen_s:
                    pollers[one.identity] = one
        return sorted(pollers.values(), key=lambda one: (-one.seen_s, one.identity))


class OperatorClient:
    """Calls the partitions and hosts that the caller names; chooses none itself, and caches nothing."""

    def __init__(self, caller: Caller, ring: RingView, *, random: Callable[[], float]) -> None:
        self._caller = caller
        self._ring = ring
        self._random = random
        self._limits = AttemptLimits()

    def route(self, partition: Partition) -> str:
        """Return the host that owns `partition` now."""
        return self._ring.route(partition)

    async def describe(
        self,
        task_queue: TaskQueueId,
        *,
        kind: QueueKind = QueueKind.NORMAL,
        with_drain: bool = False,
        keys_max: int = 0,
        timeout_s: float = OPERATOR_TIMEOUT_S,
    ) -> TaskQueueDescription:
        """Describe every partition that is read or being drained; if the call fails, return its error instead.

        With `with_drain` each partition counts its tasks in the store. Each partition lists up to `keys_max` fairness
        keys.
        """
        deadline_s = deadline(timeout_s)

        async def ask(number: int) -> DescribeResponse:
            partition = Partition(task_queue, number)
            request = DescribeRequest(partition, kind, with_drain, keys_max)
            return await self._ask(partition, DESCRIBE, request, deadline_s=deadline_s)

        root, missing = await _ask_all([ROOT], ask)
        if missing:
            return TaskQueueDescription(None, missing=missing)
        config = root[ROOT].config
        counts = root[ROOT].counts
        outside = [] if counts is None else counts.outside
        others, missing = await _ask_all([*range(1, config.read), *outside], ask)
        return TaskQueueDescription(config, root | others, missing)

    async def describe_root(
        self, task_queue: TaskQueueId, *, timeout_s: float = OPERATOR_TIMEOUT_S
    ) -> DescribeResponse:
        """Describe the root of a task queue, with the authoritative configuration."""
        root = Partition(task_queue, ROOT)
        return await self._ask(root, DESCRIBE, DescribeRequest(root), deadline_s=deadline(timeout_s))

    async def update(
        self,
        task_queue: TaskQueueId,
        *,
        read: int,
        write: int,
        force: bool = False,
        timeout_s: float = OPERATOR_TIMEOUT_S,
    ) -> UpdateResponse:
        """Change the number of partitions, within the guardrails; return the configurations before and after.

        `NotDrained` is raised at once. After `CallLost` the change may have been made; repeating it is harmless.
        """
        root = Partition(task_queue, ROOT)
        request = UpdateRequest(root, read, write, force)
        return await self._ask(root, UPDATE, request, deadline_s=deadline(timeout_s), is_repeatable=False)

    async def configure(
        self,
        task_queue: TaskQueueId,
        *,
        identity: str = "",
        queue_rate: RateChange | None = None,
        key_rate: RateChange | None = None,
        set_weights: Mapping[str, float] | None = None,
        unset_weights: Iterable[str] = (),
        timeout_s: float = OPERATOR_TIMEOUT_S,
    ) -> DispatchRules:
        """Change the dispatch rules of a task queue, and return the rules in force.

        Rules that are left out stay. After `CallLost` the change may have been made; repeating it is harmless.
        """
        root = Partition(task_queue, ROOT)
        request = ConfigureRequest(root, identity, queue_rate, key_rate, dict(set_weights or {}), list(unset_weights))
        answer = await self._ask(root, CONFIGURE, request, deadline_s=deadline(timeout_s))
        return answer.rules

    async def explain(self, task_queue: TaskQueueId, *, timeout_s: float = OPERATOR_TIMEOUT_S) -> ExplainResponse:
        """Return the latest decisions of a task queue's scaler, with their reasons."""
        root = Partition(task_queue, ROOT)
        return await self._ask(root, EXPLAIN, ExplainRequest(root), deadline_s=deadline(timeout_s))

    async def list_task_queues(
        self, namespace_id: str | None = None, *, timeout_s: float = OPERATOR_TIMEOUT_S
    ) -> dict[TaskQueueId, list[int]]:
        """List the task queues in the store, of one namespace or of all, with the numbers of their partitions."""
        deadline_s = deadline(timeout_s)
        found: dict[TaskQueueId, list[int]] = {}
        after: tuple[str, str, int] | None = None
        listed = 0
        while True:
            request = ListRequest(namespace_id, after)
            page = (await self._ask_any(request, deadline_s=deadline_s)).partitions
            for in_namespace, name, task_type in page:
                task_queue_name, number = parse_partition_name(name)
                found.setdefault(TaskQueueId(in_namespace, task_queue_name, TaskType(task_type)), []).append(number)
            if len(page) < request.limit:
                return {task_queue: sorted(numbers) for task_queue, numbers in sorted(found.items())}
            listed += len(page)
            if listed >= LISTED_PARTITIONS_MAX:
                raise TooManyToList(f"more than {LISTED_PARTITIONS_MAX} partitions: list one namespace at a time")
            after = page[-1]

    async def peek(
        self, partition: Partition, *, limit: int = 100, timeout_s: float = OPERATOR_TIMEOUT_S
    ) -> PeekResponse:
        """Return the first tasks that wait in a partition, in dispatch order."""
        return await self._ask(partition, PEEK, PeekRequest(partition, limit=limit), deadline_s=deadline(timeout_s))

    async def purge(self, partition: Partition, *, timeout_s: float = OPERATOR_TIMEOUT_S) -> PurgeResponse:
        """Remove the tasks of clients from a partition; tasks of the history service stay.

        If the response is not `is_done`, some tasks are left: call it again.
        """
        return await self._ask(partition, PURGE, PurgeRequest(partition), deadline_s=deadline(timeout_s))

    async def figures(
        self, namespace_id: str | None = None, *, timeout_s: float = OPERATOR_TIMEOUT_S
    ) -> tuple[list[LoadedQueue], dict[str, FairleadError]]:
        """Return the figures of each loaded task queue over all hosts, and the errors of hosts that did not answer."""

        async def ask(host: str) -> FiguresResponse:
            return await self._caller.call(host, FIGURES, FiguresRequest(namespace_id), timeout_s=timeout_s)

        answers, missing = await _ask_all(self._ring.hosts, ask)
        queues: dict[tuple[str, str, int], LoadedQueue] = {}
        for answer in answers.values():
            for one in answer.queues:
                key = (one.namespace_id, one.name, one.type)
                queues[key] = together(queues[key], one) if key in queues else one
        return list(queues.values()), missing

    async def rings(self, *, timeout_s: float = OPERATOR_TIMEOUT_S) -> dict[str, RingResponse | FairleadError]:
        """Return each host's view of the ring, or the error of the call to it."""

        async def ask(host: str) -> RingResponse:
            return await self._caller.call(host, RING, RingRequest(), timeout_s=timeout_s)

        deadline(timeout_s)
        # The ring may change while the hosts answer: a host that joins meanwhile was not asked.
        hosts = self._ring.hosts
        answers, missing = await _ask_all(hosts, ask)
        return {host: answers[host] if host in answers else missing[host] for host in hosts}

    async def _ask(
        self,
        partition: Partition,
        method: Method[Request, Response],
        request: Request,
        *,
        deadline_s: float,
        is_repeatable: bool = True,
    ) -> Response:
        """Call the owner of a partition, with retries.

        A call that is not repeatable is retried only after an error which says that nothing was done.
        """
        attempts = Attempts(self._ring, deadline_s=deadline_s, random=self._random, limits=self._limits)
        now_s = asyncio.get_running_loop().time
        # One host gets at most half of the time, so that time is left to call another owner.
        attempt_s_max = (deadline_s - now_s()) / (2 if is_repeatable else 1)
        while True:
            timeout_s = min(attempt_s_max, deadline_s - now_s())
            try:
                return await self._caller.call(self._ring.route(partition), method, request, timeout_s=timeout_s)
            except FairleadError as failure:
                may_repeat = is_repeatable or isinstance(failure, RetryElsewhere)
                if not may_repeat or not await attempts.again(failure):
                    raise

    async def _ask_any(self, request: ListRequest, *, deadline_s: float) -> ListResponse:
        """Call the hosts one by one until one responds: all of them use the same store."""
        failures: list[str] = []
        for host in self._ring.hosts:
            timeout_s = min(self._limits.attempt_s_max, deadline_s - asyncio.get_running_loop().time())
            try:
                return await self._caller.call(host, LIST, request, timeout_s=timeout_s)
            except FixRequest:
                raise
            except FairleadError as failure:
                failures.append(f"{host}: {failure}")
        raise NobodyToAsk(f"no host of the ring responded: {'; '.join(failures) or 'the ring is empty'}")


def _sum(one: PriorityStats, other: PriorityStats) -> PriorityStats:
    return PriorityStats(
        priority=one.priority,
        tasks=one.tasks + other.tasks,
        age_s=max(one.age_s, other.age_s),
        adds_per_s=one.adds_per_s + other.adds_per_s,
        dispatches_per_s=one.dispatches_per_s + other.dispatches_per_s,
    )


async def _ask_all(
    names: Iterable[Key], ask: Callable[[Key], Awaitable[Response]]
) -> tuple[dict[Key, Response], dict[Key, FairleadError]]:
    """Call `ask` for each name, a few at a time; return the responses and the errors. Raises `FixRequest` errors."""
    answers: dict[Key, Response] = {}
    missing: dict[Key, FairleadError] = {}
    waiting = iter(names)

    async def ask_in_turn() -> None:
        for name in waiting:
            try:
                answers[name] = await ask(name)
            except FairleadError as failure:
                missing[name] = failure

    async with asyncio.TaskGroup() as group:
        for _ in range(ASKED_AT_ONCE_MAX):
            group.create_task(ask_in_turn())
    for failure in missing.values():
        if isinstance(failure, FixRequest):
            raise failure
    return answers, missing
