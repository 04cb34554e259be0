"""The dependencies of the history service's operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import Message

from fairlead.aio.admission import Admission
from fairlead.api.clusters import Clusters
from fairlead.history.shard.queue import AHEAD_NS

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace, Namespaces
    from fairlead.api.run_limits import RunLimits
    from fairlead.api.size_warnings import SizeWarnings
    from fairlead.api.worker_deployments import Deployments
    from fairlead.history.client import HistoryClient
    from fairlead.history.shard.journal import HistoryJournal
    from fairlead.history.shard.shard import Shard
    from fairlead.history.state.work import Work
    from fairlead.matching.client import MatchingClient
    from fairlead.settings import DynamicSettings
    from fairlead.storage.history import HistoryStore, RunKey
    from fairlead.telemetry import Metrics


@dataclass(slots=True)
class Services:
    """Dependencies that all shards of a host share. `shards` is the number of shards of the whole cluster."""

    host: str
    shards: int
    store: HistoryStore
    history: HistoryClient
    matching: MatchingClient
    namespaces: Namespaces
    settings: DynamicSettings
    clock_ns: Callable[[], int]
    new_id: Callable[[], str]
    uniform: Callable[[], float]
    limits: RunLimits
    size_warnings: SizeWarnings
    deployments: Deployments
    metrics: Metrics
    # Namespaces take turns with the tasks of all shards of this host.
    turns: Admission
    # None if no journal is kept.
    journal: HistoryJournal | None = None
    clusters: Clusters = field(default_factory=Clusters)
    # Called with the tasks in flight of each run that changes; None if time is not skipped.
    on_work: Callable[[RunKey, Work], None] | None = None
    # Timers that are due within this time are loaded into memory; None loads all timers.
    timers_ahead_ns: int | None = AHEAD_NS


@dataclass(slots=True)
class OperationContext:
    """Context of one operation: its shard, its namespace, and the time for which it may wait."""

    shard: Shard
    namespace: Namespace
    services: Services
    timeout_s: float


class Operation(NamedTuple):
    """An operation of the history service: the type of its request, and its handler.

    `request` is a protobuf message of Temporal or a msgspec struct; the response is a message or its encoded bytes.
    """

    request: type[Any]
    run: Callable[[OperationContext, Any], Awaitable[Message | bytes]]
