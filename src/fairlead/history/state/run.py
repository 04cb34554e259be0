"""All that the server knows about one run, apart from the contents of its events."""

from enum import IntEnum

import msgspec
from temporalio.api.enums.v1 import WorkflowExecutionStatus

from fairlead.core.versions import VersionHistory
from fairlead.history.state.errors import RunClosed
from fairlead.history.state.limits import REQUEST_IDS_MAX
from fairlead.history.state.pending import (
    ActivityProgress,
    CallbackProgress,
    NexusProgress,
    PendingActivity,
    PendingChild,
    PendingExternal,
    PendingNexusOperation,
    PendingTimer,
    UpdateRecord,
)
from fairlead.history.state.versioning import RunVersioning
from fairlead.history.state.workflow_task import WorkflowTask

RUNNING = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
PAUSED = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED)


class RunIdentity(msgspec.Struct, array_like=True, frozen=True):
    """What a run is known by, and where its events are: in the branch `branch_id` of the tree `tree_id`."""

    namespace_id: str
    workflow_id: str
    run_id: str
    tree_id: str
    branch_id: str


class Parent(msgspec.Struct, array_like=True, frozen=True):
    """The run that started this one as its child."""

    namespace: str
    namespace_id: str
    workflow_id: str
    run_id: str
    initiated_event_id: int
    initiated_version: int


class ParentClose(msgspec.Struct, array_like=True, frozen=True):
    """What becomes of a child when its parent closes, by its policy."""

    namespace_id: str
    workflow_id: str
    run_id: str
    policy: int


class ClosedBy(IntEnum):
    """Why a run was ended, where that changes what follows from it."""

    ITSELF = 0
    # Another run of the chain takes over: the parent waits for that one, and the children stay.
    RESET = 1
    # A newer run of the same workflow id came from another cluster.
    NEWER_RUN = 2


class Origin(msgspec.Struct, array_like=True):
    """What the first event says, without the input, which is in the event."""

    workflow_type: str
    task_queue: str
    execution_timeout_ns: int
    run_timeout_ns: int
    task_timeout_ns: int
    # 0 if the whole chain of runs may last for ever.
    expires_at_ns: int
    started_ns: int
    first_backoff_ns: int
    attempt: int
    first_run_id: str
    original_run_id: str
    continued_run_id: str
    initiator: int
    cron_schedule: str
    retry_policy: bytes | None
    priority: bytes | None
    parent: Parent | None
    root_workflow_id: str
    root_run_id: str
    identity: str
    completion_callbacks: list[bytes]
    version: int
    # When each of the callbacks was registered.
    callback_times_ns: list[int] = []

    @property
    def execution_ns(self) -> int:
        """When the first workflow task is due: Temporal's execution time."""
        return self.started_ns + self.first_backoff_ns

    @property
    def run_expires_at_ns(self) -> int:
        """When the run times out, counted from its first workflow task; 0 for never."""
        run_ns = self.execution_ns + self.run_timeout_ns if self.run_timeout_ns else 0
        return min(run_ns, self.expires_at_ns) if run_ns and self.expires_at_ns else run_ns or self.expires_at_ns


class Pause(msgspec.Struct, array_like=True, frozen=True):
    """Who paused the run, when, why, and by which request."""

    paused_ns: int
    identity: str
    reason: str
    request_id: str


class SideBranch(msgspec.Struct, array_like=True):
    """A branch of the run's history that is not the current one: where its events are, and its version history."""

    branch_id: str
    items: tuple[tuple[int, int], ...]
    # What it shares with others: their branch ids, and the events before which each of these parts ends.
    ancestors: list[tuple[str, int]] = []
    # Up to this event, its signals and updates are on the winning line.
    settled_event_id: int = 0


class LiveState(msgspec.Struct, array_like=True):
    """What does not follow from the events, or not from them alone: a rebuild leaves it at its beginnings."""

    history_size_bytes: int = 0
    # The attempt that the next workflow task is; above 1 after failures in a row.
    task_attempt: int = 1
    # When the first of a row of workflow tasks was scheduled that a worker only keeps alive, one after another.
    task_row_since_ns: int = 0
    # A transient or speculative workflow task.
    unwritten_task: WorkflowTask | None = None
    # Whether a worker keeps this run in its cache, in which queue of its own, and how long a task waits there.
    sticky_task_queue: str = ""
    sticky_timeout_ns: int = 0
    activities: dict[int, ActivityProgress] = {}
    # Events that wait for the end of the workflow task, as bytes.
    buffered: list[bytes] = []
    # Of what is pending: those whose end is buffered, by the id of the event with which they began.
    ending: set[int] = set()
    cancel_buffered: bool = False
    request_ids: dict[str, None] = {}
    nexus: dict[int, NexusProgress] = {}
    # Completion callbacks that were delivered or given up, by their places in `Origin.completion_callbacks`.
    callbacks: dict[int, CallbackProgress] = {}
    # Who is told of the end of the last run of the chain: the data of internal callbacks, which no event shows.
    watchers: list[bytes] = []
    # By which revision of its deployment's routing the last workflow task was given to a worker.
    routing_revision: int = 0
    # The request that the run began with.
    start_request_id: str = ""
    # When a reset began the run, when the run before that began, and the run that a reset began in place of this one.
    last_reset_ns: int = 0
    original_started_ns: int = 0
    reset_run_id: str = ""
    # How often the run was written.
    transitions: int = 0
    # All branches but the current one.
    branches: list[SideBranch] = []
    # Another run of the workflow id is the current one, although this one is open: only other clusters change it.
    is_zombie: bool = False
    # What the current branch shares with others, as `SideBranch` has it.
    ancestors: list[tuple[str, int]] = []
    # How often the current branch switched.
    rebuilds: int = 0
    # Of a run that was ended because another one is newer: its signals and updates were taken over by that one.
    is_settled: bool = False
    # Whose caches of the run are known to be of this line of events, by their sticky task queues, at which version.
    trusted_version: int = 0
    trusted_caches: list[str] = []


class RunState(msgspec.Struct, array_like=True):
    """A run. Everything but `live` follows from the events, and only `apply` changes it.

    Read from bytes by a later version of this code: fields are added at the end, with a default, and never moved.
    """

    identity: RunIdentity
    origin: Origin | None = None
    versions: VersionHistory | None = None
    next_event_id: int = 1
    status: int = RUNNING
    closed_ns: int = 0
    close_event_id: int = 0
    new_run_id: str = ""
    memo: dict[str, bytes] = {}
    search_attributes: dict[str, bytes] = {}
    cancel_requested: bool = False
    cancel_event_id: int = 0
    signal_count: int = 0
    # Of the last workflow task that was completed.
    completed_task_started_event_id: int = 0
    completed_task_event_id: int = 0
    task: WorkflowTask | None = None
    activities: dict[int, PendingActivity] = {}
    activity_ids: dict[str, int] = {}
    timers: dict[str, PendingTimer] = {}
    children: dict[int, PendingChild] = {}
    external_signals: dict[int, PendingExternal] = {}
    external_cancels: dict[int, PendingExternal] = {}
    nexus_operations: dict[int, PendingNexusOperation] = {}
    updates: dict[str, UpdateRecord] = {}
    reset_points: list[bytes] = []
    attached_request_ids: dict[str, int] = {}
    live: LiveState = msgspec.field(default_factory=LiveState)
    # None for a run that no version of workers has to do with.
    versioning: RunVersioning | None = None
    # The build of the worker that completed the last workflow task.
    worker_version: bytes = b""
    # Since it is paused, or was when it was closed.
    pause: Pause | None = None
    # A VersioningOverride; empty if there is none.
    versioning_override: bytes = b""
    # The last event's task id, as its writer gave it.
    last_event_task_id: int = 0
    # Of a closed run: what becomes of its children.
    closed_children: list[ParentClose] = []
    closed_by: int = 0
    # Of a run that a reset began: the run whose first events it has, up to the one that says so.
    reset_base_run_id: str = ""
    reset_event_id: int = 0

    @property
    def started(self) -> Origin:
        """The first event's facts; a run that is asked for anything has them."""
        if self.origin is None:
            raise RunClosed
        return self.origin

    @property
    def is_open(self) -> bool:
        """Whether events may still be added."""
        return self.status in (RUNNING, PAUSED)

    @property
    def workflow_task(self) -> WorkflowTask | None:
        """The workflow task that is scheduled or started, written or not."""
        return self.task or self.live.unwritten_task

    @property
    def has_started_task(self) -> bool:
        """Whether a worker has a workflow task, so that what happens meanwhile has to wait."""
        task = self.workflow_task
        return task is not None and task.is_started

    @property
    def had_task(self) -> bool:
        """Whether a workflow task was ever scheduled: until then the run may be waiting out a backoff."""
        return self.workflow_task is not None or self.completed_task_event_id > 0 or self.live.task_attempt > 1

    @property
    def in_backoff(self) -> bool:
        """Whether the first workflow task is yet to come, at its time."""
        return self.started.first_backoff_ns > 0 and not self.had_task

    @property
    def last_version(self) -> int:
        """The version of the last event; 0 before the first."""
        return self.versions.last.version if self.versions else 0

    def version_at(self, event_id: int) -> int:
        """The version of an event of this run."""
        return self.versions.version_of(event_id) if self.versions else 0

    @property
    def task_queue(self) -> str:
        """The queue for the next workflow task."""
        return self.live.sticky_task_queue or self.started.task_queue

    @property
    def is_zombie(self) -> bool:
        """Whether it is open but only other clusters may change it."""
        return self.live.is_zombie and self.is_open

    @property
    def owes(self) -> bool:
        """Whether it has signals or updates that may yet have to be brought to the line, or the run, that has won."""
        return any(branch.settled_event_id < branch.items[-1][0] for branch in self.live.branches) or (
            self.closed_by == ClosedBy.NEWER_RUN and not self.live.is_settled
        )

    def check_open(self) -> None:
        """Refuse whatever changes a run that is closed."""
        if not self.is_open:
            raise RunClosed

    def remember_request(self, request_id: str) -> None:
        """What is asked for again is not done again. The oldest are forgotten: that is within minutes, or never."""
        seen = self.live.request_ids
        if request_id:
            seen[request_id] = None
        while len(seen) > REQUEST_IDS_MAX:
            del seen[next(iter(seen))]

    def open_activity(self, scheduled_event_id: int) -> PendingActivity | None:
        """An activity that may still end: it is pending, and its end is not in the buffer."""
        if scheduled_event_id in self.live.ending:
            return None
        activity = self.activities.get(scheduled_event_id)
        return None if activity is None else self.as_changed(activity)

    def as_changed(self, activity: PendingActivity) -> PendingActivity:
        """An activity with the options that it has now."""
        progress = self.live.activities.get(activity.scheduled_event_id)
        if progress is None or progress.options is None:
            return activity
        return msgspec.structs.replace(activity, **msgspec.structs.asdict(progress.options))
