"""The dependencies of the frontend's handlers."""

import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from google.protobuf.message import Message

from fairlead.api.namespaces import Namespaces
from fairlead.api.run_limits import RunLimits
from fairlead.api.size_warnings import SizeWarnings
from fairlead.api.times import SECOND_NS
from fairlead.api.worker_deployments import Deployments
from fairlead.frontend.gateway.open_polls import OpenPolls
from fairlead.frontend.gateway.redirection import Redirection
from fairlead.frontend.handlers.poll_scaling import PollScaling
from fairlead.frontend.handlers.worker_registry import WorkerRegistry
from fairlead.frontend.quotas import Admission, Quotas
from fairlead.history.client import HistoryClient
from fairlead.matching.client import MatchingClient
from fairlead.matching.operator_client import OperatorClient
from fairlead.matching.sticky_polls import StickyPolls
from fairlead.rpc import Call
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.quotas import CALLS_AT_ONCE
from fairlead.storage.history import HistoryStore

if TYPE_CHECKING:
    # Not imported at run time: only servers with authorization or with global namespaces load these modules.
    from fairlead.authorization.gate import Gate
    from fairlead.replication.clusters import ClusterRegistry
    from fairlead.replication.failover import Failover


def _new_id() -> str:
    return str(uuid.uuid4())


async def _nobody_to_notify(_namespace_id: str, _sticky_task_queue: str) -> None:
    """Default for `worker_gone`: the tasks of the sticky task queue wait until their schedule-to-start timeout."""


@dataclass(frozen=True, slots=True)
class GlobalNamespaces:
    """The other clusters with global namespaces, and the failover between them."""

    registry: "ClusterRegistry"
    failover: "Failover"


class CallObserver(Protocol):
    """Observes each call of the frontend from its beginning to its end."""

    def during(self, name: str, request: Any) -> AbstractContextManager[None]:
        """Context manager that is open while the method runs."""
        ...


@dataclass(slots=True)
class Frontend:
    """The services behind the frontend of one host, and the host's own data."""

    namespaces: Namespaces
    history: HistoryClient
    matching: MatchingClient
    operator: OperatorClient
    store: HistoryStore
    settings: DynamicSettings
    clock: Callable[[], float]
    # The address to which SDKs and other clusters connect.
    address: str = ""
    # The address of the HTTP API; empty without one.
    http_address: str = ""
    cluster_name: str = "active"
    cluster_id: str = ""
    # None in a cluster without global namespaces.
    global_namespaces: GlobalNamespaces | None = None
    redirection: Redirection | None = None
    # None without authorization: every caller may do everything.
    gate: "Gate | None" = None
    shard_count: int = 1
    store_name: str = "memory"
    new_id: Callable[[], str] = _new_id
    # Workers that have sent heartbeats, and their open polls on this host.
    workers: WorkerRegistry = field(default_factory=WorkerRegistry)
    open_polls: OpenPolls = field(default_factory=OpenPolls)
    # None if all polls wait at the owner of their partition.
    sticky_polls: StickyPolls | None = None
    poll_scaling: PollScaling = field(default_factory=PollScaling)
    # Called with namespace id and name of the sticky task queue of a worker that has shut down.
    worker_gone: Callable[[str, str], Awaitable[None]] = _nobody_to_notify
    # None if calls are not observed.
    observer: CallObserver | None = None
    # Number of hosts that share the quotas of the whole cluster.
    hosts: Callable[[], int] = lambda: 1
    # The deployments of the history service on the same host; without them, the frontend reads the store itself.
    shared_deployments: InitVar[Deployments | None] = None
    deployments: Deployments = field(init=False)
    # Client for calls that wait for a change in history, which draining must end. None: the client of the other calls.
    draining_history: InitVar[HistoryClient | None] = None
    waiting_history: HistoryClient = field(init=False)
    limits: RunLimits = field(init=False)
    size_warnings: SizeWarnings = field(init=False)
    quotas: Quotas = field(init=False)
    admission: Admission = field(init=False)

    def __post_init__(self, shared_deployments: Deployments | None, draining_history: HistoryClient | None) -> None:
        self.waiting_history = draining_history or self.history
        self.limits = RunLimits(self.settings)
        self.size_warnings = SizeWarnings(self.clock)
        self.quotas = Quotas(self.settings, clock=self.clock, namespace_id=self._namespace_id, hosts=self.hosts)
        self.admission = Admission(lambda: self.settings.get(CALLS_AT_ONCE))
        self.deployments = shared_deployments or Deployments(self.store, clock_ns=lambda: int(self.clock() * SECOND_NS))

    def _namespace_id(self, name: str) -> str:
        known = self.namespaces.cached(name)
        return name if known is None else known.id


# A handler of one method. The response may be serialized already.
Handler: TypeAlias = Callable[[Frontend, Any, Call], Awaitable[Message | bytes]]
