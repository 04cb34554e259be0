"""What operators ask of the matching service: how a task list is doing, and another number of partitions for it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fairlead.cluster.calls import Answer, Caller, Method, Request
from fairlead.cluster.ring import RING, RingAnswer, RingRequest, RingView
from fairlead.core.errors import FairleadError, FixRequest, RetryElsewhere, RetryLater
from fairlead.core.partitions import Partition, PartitionConfig, TaskList, TaskType, parse_partition_name
from fairlead.matching.attempts import AttemptLimits, Attempts, deadline
from fairlead.matching.messages import (
    CONFIGURE,
    DESCRIBE,
    EXPLAIN,
    LIST,
    UPDATE,
    ConfigureRequest,
    DescribeAnswer,
    DescribeRequest,
    DispatchRules,
    ExplainAnswer,
    ExplainRequest,
    ListAnswer,
    ListRequest,
    PollerInfo,
    PriorityStats,
    RateChange,
    TaskListKind,
    UpdateAnswer,
    UpdateRequest,
)

Key = TypeVar("Key")

OPERATOR_TIMEOUT_S = 10.0
# Partitions, or hosts, that are asked at a time.
ASKED_AT_ONCE_MAX = 16
# A list of more would be of no use to a person, and fill the memory of a small machine.
LISTED_PARTITIONS_MAX = 1_000_000
ROOT = 0


class TooManyToList(FixRequest):
    """There are more partitions than one list holds."""


class NobodyToAsk(RetryLater):
    """No host of the ring has answered."""


@dataclass(frozen=True, slots=True)
class TaskListDescription:
    """What the read partitions of a task list say of themselves, by number.

    `config` is the root's; None if the root could not be asked, and then nobody knows which other partitions there
    are. `missing` says of each partition that could not be asked why.
    """

    config: PartitionConfig | None
    partitions: dict[int, DescribeAnswer] = field(default_factory=dict)
    missing: dict[int, FairleadError] = field(default_factory=dict)

    def by_priority(self) -> list[PriorityStats]:
        """How each priority is doing over all partitions that answered: sums, and the age of the oldest task."""
        stats: dict[int, PriorityStats] = {}
        for answer in self.partitions.values():
            for one in answer.by_priority:
                so_far = stats.get(one.priority)
                stats[one.priority] = one if so_far is None else _sum(so_far, one)
        return [stats[priority] for priority in sorted(stats)]

    def total(self) -> PriorityStats:
        """How the task list is doing: all of its priorities together, as priority 0."""
        total = PriorityStats(0, 0, 0.0, 0.0, 0.0)
        for one in self.by_priority():
            total = _sum(total, one)
        return total

    def pollers(self) -> list[PollerInfo]:
        """Who has polled any partition of late, each as it did last; those who did last of all first."""
        pollers: dict[str, PollerInfo] = {}
        for answer in self.partitions.values():
            for one in answer.pollers:
                known = pollers.get(one.identity)
                if known is None or known.seen_s < one.seen_s:
                    pollers[one.identity] = one
        return sorted(pollers.values(), key=lambda one: (-one.seen_s, one.identity))


class OperatorClient:
    """Asks partitions and hosts by their names: nothing is chosen here, and nothing remembered."""

    def __init__(self, caller: Caller, ring: RingView, *, random: Callable[[], float]) -> None:
        self._caller = caller
        self._ring = ring
        self._random = random
        self._limits = AttemptLimits()

    def route(self, partition: Partition) -> str:
        """The host that owns `partition` now."""
        return self._ring.route(partition)

    async def describe(
        self,
        task_list: TaskList,
        *,
        kind: TaskListKind = TaskListKind.NORMAL,
        with_drain: bool = False,
        keys_max: int = 0,
        timeout_s: float = OPERATOR_TIMEOUT_S,
    ) -> TaskListDescription:
        """What every read partition says of itself, or why it can't be asked.

        `with_drain` has each count its tasks in the store, `keys_max` is how many fairness keys each lists.
        """
        deadline_s = deadline(timeout_s)

        async def ask(number: int) -> DescribeAnswer:
            partition = Partition(task_list, number)
            request = DescribeRequest(partition, kind, with_drain, keys_max)
            return await self._ask(partition, DESCRIBE, request, deadline_s=deadline_s)

        root, missing = await _ask_all([ROOT], ask)
        if missing:
            return TaskListDescription(None, missing=missing)
        config = root[ROOT].config
        others, missing = await _ask_all(range(1, config.read), ask)
        return TaskListDescription(config, root | others, missing)

    async def describe_root(self, task_list: TaskList, *, timeout_s: float = OPERATOR_TIMEOUT_S) -> DescribeAnswer:
        """What the root of a task list says of itself: with the configuration, which it alone is sure of."""
        root = Partition(task_list, ROOT)
        return await self._ask(root, DESCRIBE, DescribeRequest(root), deadline_s=deadline(timeout_s))

    async def update(
        self,
        task_list: TaskList,
        *,
        read: int,
        write: int,
        force: bool = False,
        timeout_s: float = OPERATOR_TIMEOUT_S,
    ) -> UpdateAnswer:
        """Change the number of partitions, within the guardrails; what was in force, and what is now.

        `NotDrained` is told at once. After `CallLost` nobody knows whether it was done; to ask again is harmless.
        """
        root = Partition(task_list, ROOT)
        request = UpdateRequest(root, read, write, force)
        return await self._ask(root, UPDATE, request, deadline_s=deadline(timeout_s), is_repeatable=False)

    async def configure(
        self,
        task_list: TaskList,
        *,
        identity: str = "",
        queue_rate: RateChange | None = None,
        key_rate: RateChange | None = None,
        set_weights: Mapping[str, float] | None = None,
        unset_weights: Iterable[str] = (),
        timeout_s: float = OPERATOR_TIMEOUT_S,
    ) -> DispatchRules:
        """Change the rules by which a task list dispatches; what is in force now.

        What is not given stays as it is. After `CallLost` nobody knows whether it was done; to ask again is harmless.
        """
        root = Partition(task_list, ROOT)
        request = ConfigureRequest(root, identity, queue_rate, key_rate, dict(set_weights or {}), list(unset_weights))
        answer = await self._ask(root, CONFIGURE, request, deadline_s=deadline(timeout_s))
        return answer.rules

    async def explain(self, task_list: TaskList, *, timeout_s: float = OPERATOR_TIMEOUT_S) -> ExplainAnswer:
        """What the scaler of a task list decided, and why."""
        root = Partition(task_list, ROOT)
        return await self._ask(root, EXPLAIN, ExplainRequest(root), deadline_s=deadline(timeout_s))

    async def list_task_lists(
        self, namespace_id: str | None = None, *, timeout_s: float = OPERATOR_TIMEOUT_S
    ) -> dict[TaskList, list[int]]:
        """The task lists that the store knows, of one namespace or of all, and the numbers of their partitions."""
        deadline_s = deadline(timeout_s)
        found: dict[TaskList, list[int]] = {}
        after: tuple[str, str, int] | None = None
        listed = 0
        while True:
            request = ListRequest(namespace_id, after)
            page = (await self._ask_any(request, deadline_s=deadline_s)).partitions
            for in_namespace, name, task_type in page:
                task_list_name, number = parse_partition_name(name)
                found.setdefault(TaskList(in_namespace, task_list_name, TaskType(task_type)), []).append(number)
            if len(page) < request.limit:
                return {task_list: sorted(numbers) for task_list, numbers in sorted(found.items())}
            listed += len(page)
            if listed >= LISTED_PARTITIONS_MAX:
                raise TooManyToList(f"more than {LISTED_PARTITIONS_MAX} partitions: list one namespace at a time")
            after = page[-1]

    async def rings(self, *, timeout_s: float = OPERATOR_TIMEOUT_S) -> dict[str, RingAnswer | FairleadError]:
        """How each host sees the ring, or why it can't be asked."""

        async def ask(host: str) -> RingAnswer:
            return await self._caller.call(host, RING, RingRequest(), timeout_s=timeout_s)

        deadline(timeout_s)
        answers, missing = await _ask_all(self._ring.hosts, ask)
        return {host: answers[host] if host in answers else missing[host] for host in self._ring.hosts}

    async def _ask(
        self,
        partition: Partition,
        method: Method[Request, Answer],
        request: Request,
        *,
        deadline_s: float,
        is_repeatable: bool = True,
    ) -> Answer:
        """Ask the owner of a partition, wherever that turns out to be.

        What is not repeatable is asked again only where it was not asked for at all.
        """
        attempts = Attempts(self._ring, deadline_s=deadline_s, random=self._random, limits=self._limits)
        now_s = asyncio.get_running_loop().time
        # One host that does not answer has half of the time, so that there is some left to ask the next owner.
        attempt_s_max = (deadline_s - now_s()) / (2 if is_repeatable else 1)
        while True:
            timeout_s = min(attempt_s_max, deadline_s - now_s())
            try:
                return await self._caller.call(self._ring.route(partition), method, request, timeout_s=timeout_s)
            except FairleadError as failure:
                may_repeat = is_repeatable or isinstance(failure, RetryElsewhere)
                if not may_repeat or not await attempts.again(failure):
                    raise

    async def _ask_any(self, request: ListRequest, *, deadline_s: float) -> ListAnswer:
        """Ask one host after the other, until one answers: all of them see the same store."""
        failures: list[str] = []
        for host in self._ring.hosts:
            timeout_s = min(self._limits.attempt_s_max, deadline_s - asyncio.get_running_loop().time())
            try:
                return await self._caller.call(host, LIST, request, timeout_s=timeout_s)
            except FixRequest:
                raise
            except FairleadError as failure:
                failures.append(f"{host}: {failure}")
        raise NobodyToAsk(f"no host of the ring has answered: {'; '.join(failures) or 'it is empty'}")


def _sum(one: PriorityStats, other: PriorityStats) -> PriorityStats:
    return PriorityStats(
        priority=one.priority,
        tasks=one.tasks + other.tasks,
        age_s=max(one.age_s, other.age_s),
        adds_per_s=one.adds_per_s + other.adds_per_s,
        dispatches_per_s=one.dispatches_per_s + other.dispatches_per_s,
    )


async def _ask_all(
    names: Iterable[Key], ask: Callable[[Key], Awaitable[Answer]]
) -> tuple[dict[Key, Answer], dict[Key, FairleadError]]:
    """Ask several, a few at a time: the answers, and why there are none of others. A wrong request fails as a whole."""
    answers: dict[Key, Answer] = {}
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
