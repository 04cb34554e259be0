"""Limits on the memory that one host uses for task queues: loaded partitions and waiting polls."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Self

from fairlead.rpc.hosts.caller import Overloaded
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.dynamic.matching_memory import LOADED_PARTITIONS, LOADED_PARTITIONS_PER_NAMESPACE, WAITING_POLLS

# Number of partitions that a host loads. Most of a partition's memory is its buffer of 1,000 tasks; this number of idle
# partitions takes some hundred megabytes.
PARTITIONS_LOADED_MAX = 20_000
NAMESPACE_PARTITIONS_LOADED_MAX = 10_000
# Number of polls that wait at a host.
POLLS_MAX = 50_000
# Seconds without a request after which a partition may be unloaded to make room, and seconds between two searches for
# such partitions.
FULL_IDLE_S = 10.0
FULL_SWEEP_S = 1.0


class TooManyPartitions(Overloaded):
    """The number of loaded partitions has reached the limit of the host, or of the namespace at this host."""


class TooManyPolls(Overloaded):
    """The number of waiting polls has reached the limit of the host."""


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits of a host; each is read again at each check."""

    partitions: Callable[[], int] = lambda: PARTITIONS_LOADED_MAX
    namespace_partitions: Callable[[str], int] = lambda _: NAMESPACE_PARTITIONS_LOADED_MAX
    polls: Callable[[], int] = lambda: POLLS_MAX

    @classmethod
    def of(cls, settings: DynamicSettings) -> Self:
        """The limits from the settings, read again at each check."""
        return cls(
            partitions=partial(settings.get, LOADED_PARTITIONS),
            namespace_partitions=lambda namespace_id: settings.get(
                LOADED_PARTITIONS_PER_NAMESPACE, Scope(namespace=namespace_id)
            ),
            polls=partial(settings.get, WAITING_POLLS),
        )


class LoadedPartitions:
    """Counts the loaded partitions of a host and of each namespace against the limits."""

    __slots__ = ("_by_namespace", "_limits", "_sweep", "_sweep_due_s")

    def __init__(self, limits: LoadLimits, *, sweep: Callable[[float], None]) -> None:
        """`sweep` unloads the partitions that were unused for the given number of seconds."""
        self._limits = limits
        self._sweep = sweep
        self._sweep_due_s = float("-inf")
        self._by_namespace: Counter[str] = Counter()

    def check(self, namespace_id: str, now_s: float) -> None:
        """Raise `TooManyPartitions` if no further partition of the namespace may be loaded.

        Before it raises, partitions that are idle for some seconds are unloaded.
        """
        if self._why_full(namespace_id) is None:
            return
        if now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + FULL_SWEEP_S
            self._sweep(FULL_IDLE_S)
        why = self._why_full(namespace_id)
        if why is not None:
            raise TooManyPartitions(why)

    def add(self, namespace_id: str) -> None:
        """Count a partition that is loaded."""
        self._by_namespace[namespace_id] += 1

    def remove(self, namespace_id: str) -> None:
        """Count a partition that is unloaded."""
        self._by_namespace[namespace_id] -= 1
        if not self._by_namespace[namespace_id]:
            del self._by_namespace[namespace_id]

    def _why_full(self, namespace_id: str) -> str | None:
        limit = self._limits.namespace_partitions(namespace_id)
        if self._by_namespace[namespace_id] >= limit:
            return (
                f"namespace {namespace_id} has {limit} partitions of task queues loaded at this host: use fewer task"
                " queues at once, or raise matching.loadedPartitionsPerNamespace"
            )
        limit = self._limits.partitions()
        if self._by_namespace.total() >= limit:
            return f"the host has {limit} partitions loaded: retry later, add hosts, or raise matching.loadedPartitions"
        return None
