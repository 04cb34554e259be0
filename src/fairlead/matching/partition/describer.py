"""Describes one partition, for operators, for its root and for the API."""

import math
from collections import Counter
from collections.abc import Callable
from heapq import nsmallest

from fairlead.core.partitions import DrainReport
from fairlead.matching.messages import (
    CountsInfo,
    DescribeRequest,
    DescribeResponse,
    Forwarded,
    KeyInfo,
    PriorityStats,
)
from fairlead.matching.partition.add_rates import AddRates
from fairlead.matching.partition.backlog_reports import backlog_report
from fairlead.matching.partition.config_manager import ConfigManager
from fairlead.matching.partition.dependencies import Dependencies
from fairlead.matching.partition.dispatch_counts import RECENT_S
from fairlead.matching.partition.priority_backlogs import WaitingKey


class Describer:
    """Answers describe requests. `counts_info` returns the root's counts, or None at other partitions."""

    __slots__ = ("_adds", "_configs", "_counts_info", "_dependencies", "_host", "_queue")

    def __init__(
        self,
        dependencies: Dependencies,
        configs: ConfigManager,
        adds: AddRates,
        *,
        host: str,
        counts_info: Callable[[], CountsInfo | None],
    ) -> None:
        self._dependencies = dependencies
        self._queue = dependencies.queue
        self._configs = configs
        self._adds = adds
        self._host = host
        self._counts_info = counts_info

    async def describe(self, request: DescribeRequest) -> DescribeResponse:
        """Describe the partition, with a drain report if the request has `with_drain`."""
        now_s, queue, limits = self._dependencies.clock(), self._queue, self._configs.limits
        whole_rate_per_s, rate_source = limits.of_all()
        keys, keys_total = self._keys(request.keys_max, now_s) if request.keys_max > 0 else ([], 0)
        return DescribeResponse(
            partition=self._dependencies.number,
            host=self._host,
            config=self._configs.config,
            report=backlog_report(self._dependencies, self._adds.by_priority.rate(now_s)),
            dispatches_per_s=queue.dispatches_per_s,
            polls_waiting=queue.polls_waiting,
            tasks_loaded=queue.tasks_loaded,
            range_id=queue.backlog.lease.range_id,
            pollers=queue.pollers.recent(),
            priorities=queue.backlog.priorities.infos(),
            scaler_adds_per_s=self._adds.scaler_rate(now_s),
            rate_limit_per_s=queue.dispatcher.rate_per_s,
            drain=await self._drain_report() if request.with_drain else None,
            keys=keys,
            by_priority=self._by_priority(now_s),
            whole_rate_per_s=whole_rate_per_s,
            rate_source=rate_source,
            rules=limits.rules,
            counts=self._counts_info(),
            forwarded=self._forwarded(),
            keys_total=keys_total,
            keys_window_s=RECENT_S,
        )

    def _forwarded(self) -> Forwarded | None:
        dependencies = self._dependencies
        if dependencies.parent is None:
            return None
        counts = dependencies.counts
        return Forwarded(counts.forwarded_tasks, counts.forwarded_polls, *dependencies.forwarded_per_s)

    async def _drain_report(self) -> DrainReport:
        """Make the drain report, with its values read in the order of `core.partitions.drain`."""
        backlog = self._queue.backlog
        version = self._configs.config.version
        in_flight = self._adds.in_flight + backlog.writer.appends_in_flight
        await backlog.deleter.delete_acked()
        stored = await backlog.count()
        return DrainReport(self._dependencies.number, version, in_flight, stored)

    def _by_priority(self, now_s: float) -> list[PriorityStats]:
        tasks, oldest = self._queue.backlog.priorities.tasks_by_priority(), self._oldest_by_priority()
        adds, dispatches = self._adds.by_priority.rates(now_s), self._queue.dispatches.rates(now_s)
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

    def _oldest_by_priority(self) -> dict[int, float]:
        """The wall-clock time at which the oldest loaded task of each priority was added."""
        oldest: dict[int, float] = {}
        for task in self._queue.dispatcher.matcher.held():
            priority = task.position.priority
            oldest[priority] = min(oldest.get(priority, math.inf), task.created_s)
        return oldest

    def _keys(self, keys_max: int, now_s: float) -> tuple[list[KeyInfo], int]:
        """List at most `keys_max` fairness keys: most tasks waiting first, then most tasks dispatched; count all."""
        priorities = self._queue.backlog.priorities
        waiting, is_loaded = priorities.waiting_keys(), priorities.is_loaded
        loaded = Counter(task.fairness_key for task in self._queue.dispatcher.matcher.held())
        dispatched = self._queue.dispatched_keys
        lately, matcher = dispatched.recent(now_s), self._queue.dispatcher.matcher

        def rank(key: str) -> tuple[int, int, str]:
            known = waiting.get(key)
            # With the whole backlog loaded the count is exact; otherwise the key's last level gives an estimate.
            tasks = loaded[key] if is_loaded or known is None else max(loaded[key], known.tasks)
            return -tasks, -dispatched.count(key), key

        def info(key: str, tasks: int) -> KeyInfo:
            known = waiting.get(key) or WaitingKey(0, 0.0, dispatched.weight(key))
            return KeyInfo(
                fairness_key=key,
                weight=known.weight,
                tasks_loaded=loaded[key],
                tasks_dispatched=dispatched.count(key),
                lead=known.lead if tasks else 0.0,
                tasks_waiting=tasks,
                dispatched_lately=lately.get(key, 0),
                is_held=loaded[key] > 0 and matcher.is_held(key),
            )

        keys = waiting.keys() | loaded.keys() | dispatched.keys()
        first = nsmallest(keys_max, map(rank, keys))
        return [info(key, -tasks) for tasks, _, key in first], len(keys)
