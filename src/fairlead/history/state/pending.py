"""What a run waits for.

Each value here follows from events alone, except `ActivityProgress`: attempts leave no event until the last one ends.
Messages of the API that a run only passes on (retry policies, priorities, failures, details) are kept as their bytes.
"""

import msgspec


class PendingActivity(msgspec.Struct, array_like=True):
    """An activity that was scheduled and has not ended. `cancel_requested_event_id` is 0 until it is asked to end."""

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
    """What an operator has given an activity in place of what it was scheduled with: fields of `PendingActivity`."""

    task_queue: str
    schedule_to_close_ns: int
    schedule_to_start_ns: int
    start_to_close_ns: int
    heartbeat_ns: int
    retry_policy: bytes | None
    priority: bytes


class ActivityProgress(msgspec.Struct, array_like=True):
    """How far the attempts of an activity have come; `stamp` changes whenever tasks made for it before are void."""

    attempt: int = 1
    stamp: int = 0
    # When the attempt is or was due: the scheduling, or the end of the backoff.
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
    # Who paused it, when, why, and by which request.
    paused_ns: int = 0
    pause_identity: str = ""
    pause_reason: str = ""
    pause_request_id: str = ""
    # When the attempt before this one ended; 0 if this is the first.
    ended_ns: int = 0
    # Whether the attempt that a worker has is followed by the first one again, and that one by no heartbeat details.
    begins_anew: bool = False
    forgets_heartbeat: bool = False
    options: ActivityOptions | None = None
    # The namespace's version at the last change, and how many changes there were: of two states, the later one.
    changed_version: int = 0
    changes: int = 0

    @property
    def is_started(self) -> bool:
        """Whether a worker has the present attempt."""
        return self.started_ns > 0


class PendingTimer(msgspec.Struct, array_like=True):
    """A timer that has neither fired nor been canceled."""

    timer_id: str
    started_event_id: int
    version: int
    fire_at_ns: int


class PendingChild(msgspec.Struct, array_like=True):
    """A child whose end this run has not heard of. `run_id` is empty until it is known to have started."""

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
    """A signal or cancellation on its way to another workflow."""

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
    """How far the requests to a handler have come, of one kind: those that have ended leave no event.

    `next_ns` is the time of the next one while it is waited for, and 0 otherwise.
    """

    ended: int = 0
    ended_ns: int = 0
    failure: bytes | None = None
    next_ns: int = 0


class NexusProgress(msgspec.Struct, array_like=True):
    """How far a Nexus operation has come. `token` is the handler's, once it has begun.

    `cancel_state` is the number of a `NexusOperationCancellationState`, 0 before a request to cancel can be made.
    """

    start: NexusCalls = msgspec.field(default_factory=NexusCalls)
    is_started: bool = False
    token: str = ""
    cancel: NexusCalls = msgspec.field(default_factory=NexusCalls)
    cancel_state: int = 0
    cancel_ns: int = 0


class CallbackProgress(msgspec.Struct, array_like=True):
    """What became of a completion callback: `state` is the number of a `CallbackState`."""

    state: int
    attempts: int
    ended_ns: int
    failure: bytes | None = None


class UpdateRecord(msgspec.Struct, array_like=True):
    """The events of one update that is in the history; 0 for those that are not there."""

    admitted_event_id: int = 0
    accepted_event_id: int = 0
    completed_event_id: int = 0
