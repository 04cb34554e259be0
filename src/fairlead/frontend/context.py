"""What the handlers of the frontend work with."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeAlias

from google.protobuf.message import Message

from fairlead.frontend.open_polls import OpenPolls
from fairlead.frontend.redirection import Redirection
from fairlead.frontend.worker_registry import WorkerRegistry
from fairlead.history.client import HistoryClient
from fairlead.history.deployments import Deployments
from fairlead.history.namespaces import Namespaces
from fairlead.matching.client import MatchingClient
from fairlead.matching.operator_client import OperatorClient
from fairlead.replication.clusters import ClusterRegistry
from fairlead.replication.failover import Failover
from fairlead.rpc import Call
from fairlead.settings import DynamicSettings
from fairlead.storage.history_contract import HistoryStore


def _new_id() -> str:
    return str(uuid.uuid4())


async def _nobody_to_tell(_namespace_id: str, _sticky_task_queue: str) -> None:
    """Then the tasks of a sticky task queue wait until its time is over."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The other clusters that namespaces are shared with, and how one of them is made the active one."""

    registry: ClusterRegistry
    failover: Failover


@dataclass(slots=True)
class Frontend:
    """The services that are behind the frontend of one host, and what it says of itself."""

    namespaces: Namespaces
    history: HistoryClient
    matching: MatchingClient
    operator: OperatorClient
    store: HistoryStore
    settings: DynamicSettings
    clock: Callable[[], float]
    # Where SDKs and other clusters connect.
    address: str = ""
    cluster_name: str = "active"
    cluster_id: str = ""
    # None in a cluster that is configured to be alone.
    sharing: Sharing | None = None
    redirection: Redirection | None = None
    shard_count: int = 1
    store_name: str = "memory"
    new_id: Callable[[], str] = _new_id
    # The workers that it knows, and the polls that they have open here.
    workers: WorkerRegistry = field(default_factory=WorkerRegistry)
    open_polls: OpenPolls = field(default_factory=OpenPolls)
    # Told of a sticky task queue whose worker has gone: its namespace id and its name.
    worker_gone: Callable[[str, str], Awaitable[None]] = _nobody_to_tell
    # What the history service of the same host goes by, or, where nobody shares it, what the store has.
    shared_deployments: InitVar[Deployments | None] = None
    deployments: Deployments = field(init=False)

    def __post_init__(self, shared_deployments: Deployments | None) -> None:
        self.deployments = shared_deployments or Deployments(self.store, clock_ns=lambda: int(self.clock() * 1e9))


# One method: the frontend, its request, and the call that it came with. The answer may be serialized already.
Handler: TypeAlias = Callable[[Frontend, Any, Call], Awaitable[Message | bytes]]
