"""Quotas of calls: rates by host and namespace, and the number of open long calls of a namespace."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, NamedTuple

from temporalio.api.enums.v1 import ResourceExhaustedCause, ResourceExhaustedScope

from fairlead.api.error_details import exhausted
from fairlead.api.errors import ApiError
from fairlead.core.rates import PriorityRate
from fairlead.frontend.quotas.costs import PRIORITIES, Bucket, Cost
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.dynamic import quotas as keys
from fairlead.settings.dynamic.declaration import Setting

# Maximum number of namespaces whose quotas are in memory; the least recently used are dropped. Callers may send any
# name.
NAMESPACES_MAX = 10_000
# Seconds of the steady rate that a host accepts at once after a pause.
HOST_BURST_S = 1.0
# The header by which Temporal's web page and tools say that a person waits for the call, and its value.
CALLER_TYPE: Final = "caller-type"
OPERATOR: Final = "operator"
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_CONCURRENT = ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT
_RPS = ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT
_NAMESPACE = ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_NAMESPACE
_SYSTEM = ResourceExhaustedScope.RESOURCE_EXHAUSTED_SCOPE_SYSTEM


class _Keys(NamedTuple):
    """The settings of one bucket: for a host, for a namespace at one host, and for a namespace at all hosts."""

    host: Setting[int]
    all_hosts: Setting[int] | None
    namespace: Setting[int] | None
    namespace_everywhere: Setting[int] | None
    burst_ratio: Setting[float]


_KEYS = {
    Bucket.EXECUTION: _Keys(
        keys.RPS, keys.GLOBAL_RPS, keys.NAMESPACE_RPS, keys.GLOBAL_NAMESPACE_RPS, keys.NAMESPACE_BURST_RATIO
    ),
    Bucket.VISIBILITY: _Keys(
        keys.RPS, keys.GLOBAL_RPS, keys.VISIBILITY_RPS, keys.GLOBAL_VISIBILITY_RPS, keys.VISIBILITY_BURST_RATIO
    ),
    Bucket.REPLICATED: _Keys(
        keys.REPLICATED_RPS,
        None,
        keys.NAMESPACE_REPLICATED_RPS,
        keys.GLOBAL_NAMESPACE_REPLICATED_RPS,
        keys.NAMESPACE_REPLICATED_BURST_RATIO,
    ),
    Bucket.DEPLOYMENTS: _Keys(
        keys.RPS, keys.GLOBAL_RPS, None, keys.GLOBAL_DEPLOYMENT_READ_RPS, keys.GLOBAL_DEPLOYMENT_READ_BURST_RATIO
    ),
}


class _Rate:
    """A rate that follows its setting."""

    __slots__ = ("_limit", "_set")

    def __init__(self) -> None:
        self._set: tuple[float, float, float] | None = None
        self._limit: PriorityRate | None = None

    def try_take(
        self,
        priority: int,
        now_s: float,
        *,
        rate_per_s: float,
        burst_s: float,
        operators_share: float,
        is_operator: bool,
    ) -> bool:
        """Count a call; return False if the limit is reached. A rate of 0 means no limit."""
        if not rate_per_s:
            return True
        wanted = (rate_per_s, burst_s, operators_share)
        if self._limit is None:
            self._limit = PriorityRate(
                rate_per_s, burst_s=burst_s, priorities=PRIORITIES, operators_share=operators_share
            )
        elif wanted != self._set:
            self._limit.change(rate_per_s, burst_s=burst_s, operators_share=operators_share)
        self._set = wanted
        return self._limit.try_take(priority, now_s, is_operator=is_operator)


class _Namespace:
    """The rates of a namespace, and its open long calls by method."""

    __slots__ = ("open_calls", "rates")

    def __init__(self) -> None:
        self.rates = {bucket: _Rate() for bucket in Bucket}
        self.open_calls: dict[str, int] = {}


class Quotas:
    """Refuses calls above the quotas of this host and of their namespaces.

    A quota of all hosts is divided by their number. Each host counts its own calls, so a quota is exact only if calls
    spread evenly.
    """

    def __init__(
        self,
        settings: DynamicSettings,
        *,
        clock: Callable[[], float],
        namespace_id: Callable[[str], str],
        hosts: Callable[[], int] = lambda: 1,
    ) -> None:
        """`namespace_id` finds the id of a namespace by its name, or returns the name if no namespace has it."""
        self._settings = settings
        self._clock = clock
        self._namespace_id = namespace_id
        self._hosts = hosts
        self._host_rates = {bucket: _Rate() for bucket in Bucket}
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()

    def check(
        self, cost: Cost, namespace: str, *, priority: int | None = None, caller: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Count a call; raise RESOURCE_EXHAUSTED if it is above a quota.

        `namespace` is the name in the request, empty for a call about no namespace. `caller` has the call's headers.
        """
        wanted = _KEYS[cost.bucket]
        settings = self._settings
        priority = cost.priority if priority is None else priority
        if namespace:
            scope = Scope(namespace=self._namespace_id(namespace))
            rate_per_s = self._rate(wanted.namespace, wanted.namespace_everywhere, scope)
            if rate_per_s:
                burst_s = settings.get(wanted.burst_ratio, scope)
                rate = self._of(namespace).rates[cost.bucket]
                if not self._try_take(rate, priority, caller, rate_per_s=rate_per_s, burst_s=burst_s):
                    raise exhausted("namespace rate limit exceeded", _RPS, _NAMESPACE)
        rate_per_s = self._rate(wanted.host, wanted.all_hosts, Scope())
        if rate_per_s:
            rate = self._host_rates[cost.bucket]
            if not self._try_take(rate, priority, caller, rate_per_s=rate_per_s, burst_s=HOST_BURST_S):
                raise exhausted("service rate limit exceeded", _RPS, _SYSTEM)

    def _try_take(
        self, rate: _Rate, priority: int, caller: Mapping[str, str], *, rate_per_s: float, burst_s: float
    ) -> bool:
        return rate.try_take(
            priority,
            self._clock(),
            rate_per_s=rate_per_s,
            burst_s=burst_s,
            operators_share=self._settings.get(keys.OPERATOR_RPS_RATIO),
            is_operator=caller.get(CALLER_TYPE) == OPERATOR,
        )

    @contextmanager
    def open(self, cost: Cost, namespace: str) -> Iterator[None]:
        """Count a long call while it is open; raise RESOURCE_EXHAUSTED if there are too many."""
        limit = self._count_max(namespace)
        known = self._of(namespace)
        counts = known.open_calls
        count = counts.get(cost.method, 0)
        if limit and count >= limit:
            raise self._too_many(limit)
        counts[cost.method] = count + 1
        try:
            yield
        finally:
            left = counts[cost.method] - 1
            if left:
                counts[cost.method] = left
            else:
                del counts[cost.method]

    def _too_many(self, limit: int) -> ApiError:
        return exhausted(f"namespace concurrent poller limit exceeded: {limit} calls are open", _CONCURRENT, _NAMESPACE)

    def _count_max(self, namespace: str) -> int:
        scope = Scope(namespace=self._namespace_id(namespace))
        everywhere = self._settings.get(keys.GLOBAL_NAMESPACE_COUNT, scope)
        if everywhere:
            return max(1, everywhere // max(1, self._hosts()))
        return self._settings.get(keys.NAMESPACE_COUNT, scope)

    def _rate(self, here: Setting[int] | None, everywhere: Setting[int] | None, scope: Scope) -> float:
        shared = 0 if everywhere is None else self._settings.get(everywhere, scope)
        if shared:
            return shared / max(1, self._hosts())
        return 0 if here is None else self._settings.get(here, scope)

    def _of(self, namespace: str) -> _Namespace:
        known = self._namespaces.get(namespace)
        if known is not None:
            self._namespaces.move_to_end(namespace)
            return known
        known = self._namespaces[namespace] = _Namespace()
        if len(self._namespaces) > NAMESPACES_MAX:
            self._forget_one()
        return known

    def _forget_one(self) -> None:
        """Forget the least recently used namespace that has no open calls: the end of an open call must still be
        counted.
        """
        for name, known in self._namespaces.items():
            if not known.open_calls:
                del self._namespaces[name]
                return
