"""Stored worker deployment: its versions, and the routing of new tasks."""

import msgspec
from temporalio.api.enums.v1 import VersionDrainageStatus as Drainage
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus as Status

from fairlead.api.worker_versions import Version

DRAINING = int(Drainage.VERSION_DRAINAGE_STATUS_DRAINING)
DRAINED = int(Drainage.VERSION_DRAINAGE_STATUS_DRAINED)
# Build id that stands for workers without a version.
UNVERSIONED = ""


class VersionState(msgspec.Struct, array_like=True):
    """One version. A time of 0 means never. `task_queues` holds names and types."""

    build_id: str
    created_ns: int
    task_queues: list[tuple[str, int]] = []
    # Whether a worker of this version has ever polled.
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
    # The id of the request that created the version, so that its repetition is recognised.
    request_id: str = ""

    @property
    def status(self) -> "Status.ValueType":
        """The version's status in the API."""
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
        """Whether the version gets new tasks."""
        return bool(self.current_since_ns or self.ramping_since_ns)


class Deployment(msgspec.Struct, array_like=True):
    """A deployment. `current` is a build id or `UNVERSIONED`; `ramping` also, or None if no version ramps."""

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
    # Counter of the conflict token; grows with each change that the token protects.
    token: int = 1
    modifier: str = ""
    manager: str = ""
    # Task queues (name, type, build id) whose tasks may belong to another version since the last routing change.
    moved: list[tuple[str, int, str]] = []
    moved_ns: int = 0
    # The id of the request that created the deployment, so that its repetition is recognised.
    request_id: str = ""

    def version(self, build_id: str) -> Version | None:
        """The version with a build id; None for `UNVERSIONED`."""
        return Version(self.name, build_id) if build_id else None


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Deployment).decode
