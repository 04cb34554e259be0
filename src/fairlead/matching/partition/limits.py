"""The limits of a partition, from the settings, the dispatch rules and the workers' requests."""

import math
from functools import lru_cache
from itertools import islice
from typing import Any

from fairlead.core.errors import FixRequest
from fairlead.core.fairness import WeightOverrides
from fairlead.core.fairness.weights import OVERRIDES_MAX
from fairlead.matching.clock import Clock
from fairlead.matching.messages import NO_RULES, DispatchRules, RateSource
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.settings import DynamicSettings, Scope, Setting, buffer_limits
from fairlead.settings.dynamic import matching

# Seconds for which a worker's rate limit applies after its last poll.
WORKER_RATE_HOLDS_S = 60.0
WORKERS_MAX = 1000


# Settings that `backlog_limits` reads.
BACKLOG_SETTINGS: tuple[Setting[Any], ...] = (
    matching.OUTSTANDING_TASK_APPENDS_THRESHOLD,
    matching.MAX_TASK_BATCH_SIZE,
    matching.MAX_TASK_DELETE_BATCH_SIZE,
    matching.TASK_DELETE_INTERVAL,
    matching.FAIRNESS_COUNTER_KEYS_MAX,
    matching.UPDATE_ACK_INTERVAL,
    matching.GET_TASKS_BATCH_SIZE,
    matching.GET_TASKS_RELOAD_AT,
    matching.BACKLOG_PARKED_TASKS_MAX,
    matching.BACKLOG_EVICTED_ACKS_MAX,
)


class InvalidWorkerRate(FixRequest):
    """A worker asks for an invalid rate limit."""


@lru_cache(maxsize=64)
def _shared(limits: BacklogLimits) -> BacklogLimits:
    """Return one shared object for equal limits: most task queues have the same limits."""
    return limits


def backlog_limits(settings: DynamicSettings, scope: Scope) -> BacklogLimits:
    """Read the limits of a partition's backlog from the settings."""
    limits = BacklogLimits(
        appends_waiting_max=settings.get(matching.OUTSTANDING_TASK_APPENDS_THRESHOLD, scope),
        batch_tasks_max=settings.get(matching.MAX_TASK_BATCH_SIZE, scope),
        delete_at_tasks=settings.get(matching.MAX_TASK_DELETE_BATCH_SIZE, scope),
        delete_interval_s=settings.get(matching.TASK_DELETE_INTERVAL, scope),
        keys_counted_max=settings.get(matching.FAIRNESS_COUNTER_KEYS_MAX, scope),
        save_interval_s=settings.get(matching.UPDATE_ACK_INTERVAL, scope),
        buffer=buffer_limits(settings, scope),
    )
    return _shared(limits)


class DispatchLimits:
    """The rate limits of one partition: its share of the task queue's limits.

    A limit that a call has set replaces the limits of the workers, and the setting for fairness keys. The setting for
    the whole task queue applies in addition; the lowest limit counts. All partitions have equal shares. If their number
    grows, each partition gets the new configuration before the new partitions begin, or when they do, so
    that the sum of the shares stays within the limit.
    """

    __slots__ = ("_clock", "_holds_until_s", "_scope", "_settings", "_workers", "rules")

    def __init__(self, settings: DynamicSettings, scope: Scope, *, clock: Clock) -> None:
        self._settings = settings
        self._scope = scope
        self._clock = clock
        # The rate limit of each worker, and the time of its last poll with it. None while no worker has one.
        self._workers: dict[str, tuple[float, float]] | None = None
        self._holds_until_s = math.inf
        self.rules: DispatchRules = NO_RULES

    def note_worker(self, identity: str, rate_per_s: float) -> bool:
        """Record a worker's rate limit for the whole task queue; True if the limit is new or has changed."""
        if math.isnan(rate_per_s) or rate_per_s < 0:
            raise InvalidWorkerRate(f"rate_per_s of {identity!r} is {rate_per_s}: give 0 or more tasks a second")
        workers = self._workers = self._workers or {}
        known = workers.pop(identity, None)
        workers[identity] = (rate_per_s, self._clock())
        if len(workers) > WORKERS_MAX:
            del workers[next(iter(workers))]
        return known is None or known[0] != rate_per_s

    @property
    def has_expired(self) -> bool:
        """Whether the limit of a worker that no longer polls has expired, which may change `of_each`."""
        return self._holds_until_s < math.inf and self._clock() > self._holds_until_s

    def of_each(self, partitions: int) -> tuple[float, float]:
        """Return the rate limits of each of `partitions`: for all tasks, and for a fairness key of weight 1."""
        key_rate_per_s = _no_limit_if_zero(self._settings.get(matching.FAIRNESS_KEY_RPS, self._scope))
        if self.rules.key_rate is not None and self.rules.key_rate.rate_per_s is not None:
            key_rate_per_s = self.rules.key_rate.rate_per_s
        return self.of_all()[0] / partitions, key_rate_per_s / partitions

    def of_all(self) -> tuple[float, RateSource]:
        """Return the rate limit of the whole task queue, and its source."""
        now_s = self._clock()
        workers = {
            identity: reported
            for identity, reported in (self._workers or {}).items()
            if now_s - reported[1] <= WORKER_RATE_HOLDS_S
        }
        self._workers = workers or None
        reported_s = min((reported_s for _, reported_s in workers.values()), default=math.inf)
        self._holds_until_s = reported_s + WORKER_RATE_HOLDS_S
        asked = min((rate_per_s for rate_per_s, _ in workers.values()), default=math.inf)
        source = RateSource.WORKER
        if self.rules.queue_rate is not None and self.rules.queue_rate.rate_per_s is not None:
            asked, source = self.rules.queue_rate.rate_per_s, RateSource.CALL
        override = _no_limit_if_zero(self._settings.get(matching.OVERRIDE_TASK_QUEUE_RPS, self._scope))
        return (asked, source) if asked < override else (override, RateSource.SETTING)

    def weights(self) -> WeightOverrides:
        """Return the weight overrides: set by calls, then set in the settings, up to `OVERRIDES_MAX`."""
        called = self.rules.weights
        weights = self._settings.get(matching.FAIRNESS_KEY_WEIGHTS, self._scope)
        if not called:
            return weights
        room = max(0, OVERRIDES_MAX - len(called))
        kept = list(islice((one for one in weights.items() if one[0] not in called), room))
        return WeightOverrides(dict(kept) | called)


def _no_limit_if_zero(rate_per_s: float) -> float:
    return rate_per_s or math.inf
