"""The parts of a server that the console reads."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlead.aio.background import Background
from fairlead.console.directory import Directory
from fairlead.console.reasons import Reasons
from fairlead.console.series import TimeSeries
from fairlead.console.stored_queues import StoredQueues
from fairlead.membership.ring import RingView
from fairlead.rpc.hosts.caller import Caller
from fairlead.settings import DynamicSettings
from fairlead.settings.static.config import StaticConfig
from fairlead.telemetry import Metrics, get_log

if TYPE_CHECKING:
    from fairlead.authorization.audit import Audit
    from fairlead.authorization.gate import Gate, WithCredentials

# Admits a call of a host's method, or raises an error; see `HostAdmission.admit`.
Admit = Callable[["WithCredentials", str, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Access to a host's services. Views reach them through `Context`, which checks the viewer's rights.

    `gate` decides about Temporal's API and `admit` about the methods of `fairlead admin`; without them, everybody may
    do everything. `host` is this host's name.
    """

    host: str
    caller: Caller
    ring: RingView
    metrics: Metrics
    settings: DynamicSettings
    config: StaticConfig
    series: TimeSeries
    # Number of the cluster's history shards.
    shards: int = 0
    gate: "Gate | None" = None
    # Decisions of the last minutes; None without authorization.
    audit: "Audit | None" = None
    directory: Directory = field(default_factory=Directory)
    reasons: Reasons = field(default_factory=Reasons)
    stored_queues: StoredQueues = field(default_factory=lambda: StoredQueues(Background(get_log("console"))))
    admit: Admit | None = None
