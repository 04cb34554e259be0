"""The facts from which `diagnosis` infers why a workflow is stuck."""

from msgspec import Struct


class Poller(Struct, frozen=True):
    """A worker that polled a task queue; `version` is empty for an unversioned one."""

    identity: str
    seen_s: float
    version: str = ""


class PartitionFacts(Struct, frozen=True):
    """A partition of a task queue."""

    number: int
    host: str
    backlog: int
    polls: int


class QueueFacts(Struct, frozen=True, kw_only=True):
    """The facts of a task queue that could be read; fields `key_...` describe the task's fairness key."""

    name: str
    type: str
    pollers: list[Poller] = []
    partitions: list[PartitionFacts] = []
    backlog: int = 0
    oldest_s: float = 0.0
    dispatches_per_s: float = 0.0
    # Polls that wait now; None if the viewer may not read it.
    polls: int | None = None
    rate_per_s: float | None = None
    rate_source: str = ""
    key: str = ""
    key_rate_per_s: float | None = None
    key_rate_source: str = ""
    key_waiting: int = 0
    key_weight: float = 1.0
    # Running activities of the task queue and of the key, with their limits; 0 without a limit.
    running: int = 0
    running_max: int = 0
    key_running: int = 0
    key_running_max: int = 0
    # Partition and position of the task, from 1 on, if it was found there.
    partition: int | None = None
    position: int | None = None
    problem: str = ""
    # Whether the viewer may not read the task queue.
    is_forbidden: bool = False


class TaskFacts(Struct, frozen=True, kw_only=True):
    """A pending workflow task or activity. `version` is the worker version that it needs."""

    is_activity: bool
    name: str
    state: str
    id: str = ""
    since_s: float | None = None
    attempt: int = 1
    attempts_max: int = 0
    started_s: float | None = None
    heartbeat_s: float | None = None
    heartbeat_timeout_s: float = 0.0
    next_s: float | None = None
    deadline_s: float | None = None
    failure: str = ""
    worker: str = ""
    version: str = ""
    is_sticky: bool = False
    queue: QueueFacts | None = None

    @property
    def label(self) -> str:
        """The task in a sentence."""
        return f"Activity {self.name}" if self.is_activity else "The workflow task"


class NexusFacts(Struct, frozen=True):
    """A pending Nexus operation."""

    name: str
    state: str
    attempt: int
    since_s: float | None
    next_s: float | None
    blocked_reason: str
    failure: str


class Facts(Struct, frozen=True, kw_only=True):
    """Everything that the diagnosis of one run is made from."""

    now_s: float
    status: str
    is_open: bool = True
    pause_reason: str = ""
    paused_by: str = ""
    paused_s: float | None = None
    tasks: list[TaskFacts] = []
    timers: dict[str, float] = {}
    # Workflow ids of children, with their types.
    children: list[tuple[str, str]] = []
    nexus: list[NexusFacts] = []
    last_event_s: float | None = None
    # Id of the activity that was asked for and is not pending.
    missing_activity: str = ""
    # Number of pending activities that were not examined.
    unexamined: int = 0
