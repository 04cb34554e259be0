"""What an operation of the history service works with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import Message

from fairlead.history.clusters import Clusters

if TYPE_CHECKING:
    from fairlead.history.client import HistoryClient
    from fairlead.history.deployments import Deployments
    from fairlead.history.journaling import HistoryJournal
    from fairlead.history.namespaces import Namespace, Namespaces
    from fairlead.history.shard import Shard
    from fairlead.history.state import Limits
    from fairlead.matching.client import MatchingClient
    from fairlead.settings import DynamicSettings
    from fairlead.storage.history_contract import HistoryStore
    from fairlead.telemetry import Metrics


@dataclass(slots=True)
class Services:
    """What all shards of a host share. `shards` is how many there are, of all hosts."""

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
    limits: Limits
    deployments: Deployments
    metrics: Metrics
    # None where no journal is kept.
    journal: HistoryJournal | None = None
    clusters: Clusters = field(default_factory=Clusters)


@dataclass(slots=True)
class Scope:
    """Where an operation happens: the shard of its workflow, and the namespace. `timeout_s` is how long it may wait."""

    shard: Shard
    namespace: Namespace
    services: Services
    timeout_s: float


class Operation(NamedTuple):
    """Something that the history service is asked for: what the request is, and who carries it out.

    `request` is a message of Temporal's or a struct of ours; the answer is a message, or already its bytes.
    """

    request: type[Any]
    run: Callable[[Scope, Any], Awaitable[Message | bytes]]
