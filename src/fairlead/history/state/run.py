"""The state of one run, without the contents of its events."""

from enum import IntEnum

import msgspec
from temporalio.api.enums.v1 import WorkflowExecutionStatus

from fairlead.api.limits import REQUEST_IDS_MAX
from fairlead.api.worker_versions import RunVersioning
from fairlead.core.versions import VersionHistory
from fairlead.history.state.errors import RunClosed
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
from fairlead.history.state.time_skipping import TimeSkipping
from fairlead.history.state.workflow_task import WorkflowTask

RUNNING = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
PAUSED = int(WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_PAUSED)


class RunIdentity(msgspec.Struct, array_like=True, frozen=True):
    """The ids of a run. Its events are in the branch `branch_id` of the tree `tree_id`."""

    namespace_id: str
    workflow_id: str
    run_id: str
    tree_id: str
    branch_id: str


class Parent(msgspec.Struct, array_like=True, frozen=True):
    """The run that started this run as its child."""

    namespace: str
    namespace_id: str
    workflow_id: str
    run_id: str
    initiated_event_id: int
    initiated_version: int


class ParentClose(msgspec.Struct, array_like=True, frozen=True):
    """A child, and the parent close policy that applies to it when its parent closes."""

    namespace_id: str
    workflow_id: str
    run_id: str
    policy: int


class ClosedBy(IntEnum):
    """Why a run was closed, if that changes the tasks that follow."""

    ITSELF = 0
    # The reset run continues the chain: the parent waits for it, and the children continue.
    RESET = 1
    # A newer run of the same workflow id came from another cluster and replaced this run.
    NEWER_RUN = 2


class Origin(msgspec.Struct, array_like=True):
    """Values of the first event, without the input, which stays in the event."""

    workflow_type: str
    task_queue: str
    execution_timeout_ns: int
    run_timeout_ns: int
    task_timeout_ns: int
    # Time of the execution timeout of the chain; 0 means never.
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
    # Registration times of the callbacks.
    callback_times_ns: list[int] = []

    @property
    def execution_ns(self) -> int:
        """The time at which the first workflow task is due: Temporal's execution time."""
        return self.started_ns + self.first_backoff_ns

    @property
    def run_expires_at_ns(self) -> int:
        """The time at which the run times out; the run timeout counts from the first workflow task. 0 means never."""
        run_ns = self.execution_ns + self.run_timeout_ns if self.run_timeout_ns else 0
        return min(run_ns, self.expires_at_ns) if run_ns and self.expires_at_ns else run_ns or self.expires_at_ns


class Pause(msgspec.Struct, array_like=True, frozen=True):
    """Details of a pause."""

    paused_ns: int
    identity: str
    reason: str
    request_id: str


class SideBranch(msgspec.Struct, array_like=True):
    """A branch of the run's history that is not current: its id in the store, and its version history."""

    branch_id: str
    items: tuple[tuple[int, int], ...]
    # Branches that hold the first events of this branch: for each its id, and the event id before which its part ends.
    ancestors: list[tuple[str, int]] = []
    # Signals and updates up to this event id were reapplied to the current branch.
    settled_event_id: int = 0


class LiveState(msgspec.Struct, array_like=True):
    """State that does not follow from the events alone. A rebuilt state has the initial values."""

    history_size_bytes: int = 0
    # Attempt number of the next workflow task; above 1 after consecutive failures.
    task_attempt: int = 1
    # Time at which the first workflow task of a series of workflow task heartbeats was scheduled.
    task_row_since_ns: int = 0
    # The pending transient or speculative workflow task.
    unwritten_task: WorkflowTask | None = None
    # Sticky task queue of the worker that caches this run (empty if there is none), and its schedule-to-start timeout.
    sticky_task_queue: str = ""
    sticky_timeout_ns: int = 0
    activities: dict[int, ActivityProgress] = {}
    # Events that are buffered until the end of the workflow task, serialized.
    buffered: list[bytes] = []
    # Pending items whose end is buffered, by the ids of their first events.
    ending: set[int] = set()
    cancel_buffered: bool = False
    request_ids: dict[str, None] = {}
    nexus: dict[int, NexusProgress] = {}
    # Completion callbacks that were delivered or given up, by their index in `Origin.completion_callbacks`.
    callbacks: dict[int, CallbackProgress] = {}
    # Serialized internal callbacks for the end of the last run of the chain; no event contains them.
    watchers: list[bytes] = []
    # Revision of the deployment's routing config when the last workflow task was given to a worker.
    routing_revision: int = 0
    # Request id of the start request.
    start_request_id: str = ""
    # Time of the reset that began this run, start time of the original run, and id of the run that a later reset of
    # this run began.
    last_reset_ns: int = 0
    original_started_ns: int = 0
    reset_run_id: str = ""
    # Number of writes of the run.
    transitions: int = 0
    # All branches except the current branch.
    branches: list[SideBranch] = []
    # Whether another run of the workflow id is current although this run is open; only other clusters change such a
    # run.
    is_zombie: bool = False
    # Branches that hold the first events of the current branch, as in `SideBranch`.
    ancestors: list[tuple[str, int]] = []
    # Number of changes of the current branch.
    rebuilds: int = 0
    # Whether the signals and updates of this run were reapplied to the newer run that replaced it.
    is_settled: bool = False
    # Version for which `trusted_caches` is valid, and sticky task queues whose workers have cached events of the
    # current branch.
    trusted_version: int = 0
    trusted_caches: list[str] = []
    # The problem of the last failed workflow task, and the problem in the search attribute TemporalReportedProblems.
    task_problem: tuple[str, ...] = ()
    reported_problems: tuple[str, ...] = ()
    # Completion callbacks of updates that were delivered or given up, by update id and index.
    update_callbacks: dict[str, dict[int, CallbackProgress]] = {}


class RunState(msgspec.Struct, array_like=True):
    """A run. All fields except `live` follow from the events, and only `apply` changes them.

    Later releases decode stored states: add fields only at the end, with a default, and never move them.
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
    # Event ids of the last completed workflow task: its start and its completion.
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
    # None for a run without worker versioning.
    versioning: RunVersioning | None = None
    # Version stamp of the worker that completed the last workflow task.
    worker_version: bytes = b""
    # Set while the run is paused; kept if the run was closed while paused.
    pause: Pause | None = None
    # A serialized VersioningOverride; empty without an override.
    versioning_override: bytes = b""
    # Task id of the last event, assigned by the cluster that wrote the event.
    last_event_task_id: int = 0
    # Children of a closed run to which the parent close policies apply.
    closed_children: list[ParentClose] = []
    closed_by: int = 0
    # For a reset run: the base run, and the id of the WorkflowTaskFailed event that follows the copied events.
    reset_base_run_id: str = ""
    reset_event_id: int = 0
    # None for a run without time skipping.
    time_skipping: TimeSkipping | None = None

    @property
    def started(self) -> Origin:
        """The values of the first event; raises `RunClosed` if that event is not applied yet."""
        if self.origin is None:
            raise RunClosed
        return self.origin

    @property
    def skipped_ns(self) -> int:
        """Nanoseconds by which the run's clock is ahead of the wall clock."""
        return 0 if self.time_skipping is None else self.time_skipping.skipped_ns

    @property
    def is_open(self) -> bool:
        """Whether events can still be added."""
        return self.status in (RUNNING, PAUSED)

    @property
    def workflow_task(self) -> WorkflowTask | None:
        """The scheduled or started workflow task, with or without events."""
        return self.task or self.live.unwritten_task

    @property
    def has_started_task(self) -> bool:
        """Whether a worker has a workflow task, so that other events are buffered."""
        task = self.workflow_task
        return task is not None and task.is_started

    @property
    def had_task(self) -> bool:
        """Whether a workflow task was ever scheduled; if not, the run may be in its first backoff."""
        return self.workflow_task is not None or self.completed_task_event_id > 0 or self.live.task_attempt > 1

    @property
    def in_backoff(self) -> bool:
        """Whether the run is in the backoff before its first workflow task."""
        return self.started.first_backoff_ns > 0 and not self.had_task

    @property
    def last_version(self) -> int:
        """The version of the last event; 0 without events."""
        return self.versions.last.version if self.versions else 0

    def version_at(self, event_id: int) -> int:
        """The version of an event of this run."""
        return self.versions.version_of(event_id) if self.versions else 0

    @property
    def task_queue(self) -> str:
        """The task queue for the next workflow task."""
        return self.live.sticky_task_queue or self.started.task_queue

    @property
    def is_zombie(self) -> bool:
        """Whether the run is open although another run is current; only other clusters change such a run."""
        return self.live.is_zombie and self.is_open

    @property
    def has_events_to_reapply(self) -> bool:
        """Whether the run may have signals or updates to reapply to the current branch or to the current run."""
        return any(branch.settled_event_id < branch.items[-1][0] for branch in self.live.branches) or (
            self.closed_by == ClosedBy.NEWER_RUN and not self.live.is_settled
        )

    def check_open(self) -> None:
        """Raise `RunClosed` if the run is closed."""
        if not self.is_open:
            raise RunClosed

    def remember_request(self, request_id: str) -> None:
        """Remember a request id, so that retries are ignored.

        Drops the oldest ids, because clients retry within minutes.
        """
        seen = self.live.request_ids
        if request_id:
            seen[request_id] = None
        while len(seen) > REQUEST_IDS_MAX:
            del seen[next(iter(seen))]

    def open_activity(self, scheduled_event_id: int) -> PendingActivity | None:
        """The activity, if it is pending and its end is not buffered."""
        if scheduled_event_id in self.live.ending:
            return None
        activity = self.activities.get(scheduled_event_id)
        return None if activity is None else self.as_changed(activity)

    def as_changed(self, activity: PendingActivity) -> PendingActivity:
        """The activity with its current options."""
        progress = self.live.activities.get(activity.scheduled_event_id)
        if progress is None or progress.options is None:
            return activity
        return msgspec.structs.replace(activity, **msgspec.structs.asdict(progress.options))
