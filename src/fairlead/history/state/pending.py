"""The pending items of a run.

These values follow from events, except the `...Progress` and `NexusCalls` structs, because attempts write no events
until the last attempt ends. API messages that the server only passes on (retry policies, priorities, failures, details)
are kept serialized.
"""

import msgspec


class PendingActivity(msgspec.Struct, array_like=True):
    """An activity that was scheduled and has not ended. `cancel_requested_event_id` is 0 without a cancel request."""

    scheduled_event_id: int
    version: int
    scheduled_ns: int
    activity_id: str
    activity_type: str
    task_queue: str
    schedule_to_close_ns: int
    schedule_to_start_ns: int
    start_to_close_ns: int
    heartbeat_ns: int
    retry_policy: bytes | None
    priority: bytes
    workflow_task_completed_event_id: int
    use_workflow_build_id: bool = False
    started_event_id: int = 0
    cancel_requested_event_id: int = 0


class ActivityOptions(msgspec.Struct, array_like=True, frozen=True):
    """Options that an operator has set in place of the scheduled options; same fields as in `PendingActivity`."""

    task_queue: str
    schedule_to_close_ns: int
    schedule_to_start_ns: int
    start_to_close_ns: int
    heartbeat_ns: int
    retry_policy: bytes | None
    priority: bytes


class ActivityProgress(msgspec.Struct, array_like=True):
    """Progress of an activity's attempts. A change of `stamp` invalidates earlier tasks of the activity."""

    attempt: int = 1
    stamp: int = 0
    # Time at which the attempt is due: the time of scheduling, or the end of its backoff.
    due_ns: int = 0
    started_ns: int = 0
    started_request_id: str = ""
    started_identity: str = ""
    started_version: int = 0
    worker_version: bytes | None = None
    heartbeat_at_ns: int = 0
    heartbeat_details: bytes | None = None
    last_failure: bytes | None = None
    last_identity: str = ""
    paused: bool = False
    # Details of the pause.
    paused_ns: int = 0
    pause_identity: str = ""
    pause_reason: str = ""
    pause_request_id: str = ""
    # Time at which the previous attempt ended; 0 for the first attempt.
    ended_ns: int = 0
    # Set if a running attempt is reset: the attempt then counts as the first attempt, and its end drops the heartbeat
    # details.
    begins_anew: bool = False
    forgets_heartbeat: bool = False
    options: ActivityOptions | None = None
    # Order of replicated changes: the namespace's version at the last change, and the number of changes. The higher
    # pair is newer.
    changed_version: int = 0
    changes: int = 0
    # The workflow rule that paused the activity; empty if an operator did.
    pause_rule_id: str = ""

    @property
    def is_started(self) -> bool:
        """Whether a worker has the current attempt."""
        return self.started_ns > 0

    @property
    def counted_attempt(self) -> int:
        """The attempt number for the retry policy and for descriptions: 1 if the running attempt was reset."""
        return 1 if self.begins_anew else self.attempt


class PendingTimer(msgspec.Struct, array_like=True):
    """A timer that has neither fired nor been canceled."""

    timer_id: str
    started_event_id: int
    version: int
    fire_at_ns: int


class PendingChild(msgspec.Struct, array_like=True):
    """A child whose end the run has not recorded. `run_id` is empty until the child's start is recorded."""

    initiated_event_id: int
    version: int
    namespace: str
    namespace_id: str
    workflow_id: str
    workflow_type: str
    parent_close_policy: int
    control: str = ""
    workflow_task_completed_event_id: int = 0
    started_event_id: int = 0
    run_id: str = ""


class PendingExternal(msgspec.Struct, array_like=True):
    """A signal or cancel request to another workflow, without a result yet."""

    initiated_event_id: int
    version: int
    namespace: str
    namespace_id: str
    workflow_id: str
    run_id: str
    control: str
    child_workflow_only: bool
    workflow_task_completed_event_id: int


class PendingNexusOperation(msgspec.Struct, array_like=True):
    """A Nexus operation that has not ended."""

    scheduled_event_id: int
    version: int
    endpoint: str
    service: str
    operation: str
    request_id: str
    scheduled_ns: int
    schedule_to_close_ns: int
    operation_token: str = ""
    started_event_id: int = 0
    cancel_requested_event_id: int = 0
    endpoint_id: str = ""
    schedule_to_start_ns: int = 0
    start_to_close_ns: int = 0
    started_ns: int = 0


class NexusCalls(msgspec.Struct, array_like=True):
    """Progress of the requests of one kind (start or cancel) to a handler; requests write no events.

    `next_ns` is the time of the next request during a backoff, otherwise 0.
    """

    ended: int = 0
    ended_ns: int = 0
    failure: bytes | None = None
    next_ns: int = 0


class NexusProgress(msgspec.Struct, array_like=True):
    """Progress of a Nexus operation. `token` is the handler's operation token, if the operation has started.

    `cancel_state` is the number of a `NexusOperationCancellationState`; 0 before a cancel request can be made.
    """

    start: NexusCalls = msgspec.field(default_factory=NexusCalls)
    is_started: bool = False
    token: str = ""
    cancel: NexusCalls = msgspec.field(default_factory=NexusCalls)
    cancel_state: int = 0
    cancel_ns: int = 0


class CallbackProgress(msgspec.Struct, array_like=True):
    """The result of a completion callback. `state` is the number of a `CallbackState`."""

    state: int
    attempts: int
    ended_ns: int
    failure: bytes | None = None


class UpdateCallback(msgspec.Struct, array_like=True, frozen=True):
    """A completion callback of an update, a serialized `Callback`."""

    callback: bytes
    registered_ns: int


class UpdateRecord(msgspec.Struct, array_like=True):
    """The events of one update in the history. The id of an event that was not written is 0."""

    admitted_event_id: int = 0
    accepted_event_id: int = 0
    completed_event_id: int = 0
    # Id of the request that was accepted.
    request_id: str = ""
    callbacks: list[UpdateCallback] = []
