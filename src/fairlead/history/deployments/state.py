"""A worker deployment as it is stored: its versions, and which of them new work goes to."""

import msgspec
from temporalio.api.enums.v1 import VersionDrainageStatus as Drainage
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus as Status

from fairlead.history.state.versioning import Version

DRAINING = int(Drainage.VERSION_DRAINAGE_STATUS_DRAINING)
DRAINED = int(Drainage.VERSION_DRAINAGE_STATUS_DRAINED)
# What stands for the workers that have no version.
UNVERSIONED = ""


class VersionState(msgspec.Struct, array_like=True):
    """One version. Times are 0 for never; `task_queues` are names and types."""

    build_id: str
    created_ns: int
    task_queues: list[tuple[str, int]] = []
    # Whether a worker has ever polled for it.
    has_polled: bool = False
    first_activated_ns: int = 0
    current_since_ns: int = 0
    ramping_since_ns: int = 0
    last_current_ns: int = 0
    deactivated_ns: int = 0
    routing_changed_ns: int = 0
    drainage: int = 0
    drainage_changed_ns: int = 0
    drainage_checked_ns: int = 0
    metadata: dict[str, bytes] = {}
    modifier: str = ""

    @property
    def status(self) -> "Status.ValueType":
        """As the API names it."""
        if self.current_since_ns:
            return Status.WORKER_DEPLOYMENT_VERSION_STATUS_CURRENT
        if self.ramping_since_ns:
            return Status.WORKER_DEPLOYMENT_VERSION_STATUS_RAMPING
        if self.drainage == DRAINING:
            return Status.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINING
        if self.drainage == DRAINED:
            return Status.WORKER_DEPLOYMENT_VERSION_STATUS_DRAINED
        if not self.has_polled:
            return Status.WORKER_DEPLOYMENT_VERSION_STATUS_CREATED
        return Status.WORKER_DEPLOYMENT_VERSION_STATUS_INACTIVE

    @property
    def is_active(self) -> bool:
        """Whether new work goes to it."""
        return bool(self.current_since_ns or self.ramping_since_ns)


class Deployment(msgspec.Struct, array_like=True):
    """A deployment. `current` is a build id, or `UNVERSIONED`; `ramping` likewise, None if nothing ramps."""

    namespace_id: str
    name: str
    created_ns: int
    versions: dict[str, VersionState] = {}
    current: str = UNVERSIONED
    ramping: str | None = None
    ramp_percentage: float = 0.0
    current_changed_ns: int = 0
    ramping_changed_ns: int = 0
    percentage_changed_ns: int = 0
    revision: int = 0
    # Grows with all that a conflict token protects.
    token: int = 1
    modifier: str = ""
    manager: str = ""
    # Where tasks may wait that belong elsewhere since the routing changed, and when that was: (name, type, build id).
    moved: list[tuple[str, int, str]] = []
    moved_ns: int = 0

    def version(self, build_id: str) -> Version | None:
        """The version of a build id; None for those without one."""
        return Version(self.name, build_id) if build_id else None


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Deployment).decode
