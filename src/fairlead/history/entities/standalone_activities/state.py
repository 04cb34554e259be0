"""The stored state of a standalone activity. New fields are only added at the end."""

from enum import IntEnum

import msgspec

from fairlead.history.messages.activity_options import Options
from fairlead.history.state.pending import CallbackProgress


class Phase(IntEnum):
    """The phase of an activity. The names are used in Temporal's error messages."""

    SCHEDULED = 1
    STARTED = 2
    CANCEL_REQUESTED = 3
    PAUSE_REQUESTED = 4
    RESET_REQUESTED = 5
    PAUSED = 6
    COMPLETED = 7
    FAILED = 8
    CANCELED = 9
    TERMINATED = 10
    TIMED_OUT = 11

    @property
    def title(self) -> str:
        """The name in error messages, such as 'CancelRequested'."""
        return self.name.title().replace("_", "")


# Phases in which, as far as the server knows, a worker has the activity.
AT_WORKER = frozenset({Phase.STARTED, Phase.CANCEL_REQUESTED, Phase.PAUSE_REQUESTED, Phase.RESET_REQUESTED})
# Phases in which the activity waits for its time, for a worker, or for an unpause.
WAITING = frozenset({Phase.SCHEDULED, Phase.PAUSED})


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """A cancel request; a second request with the same id is a retry."""

    request_id: str
    identity: str = ""
    reason: str = ""


class RegisteredCallback(msgspec.Struct, array_like=True):
    """A completion callback (a serialized `Callback`), with the id of the request that added it."""

    callback: bytes
    request_id: str
    registered_ns: int
    progress: CallbackProgress | None = None


class ActivityState(msgspec.Struct, array_like=True):
    """An activity with all of its attempts.

    `stamp` identifies the waiting attempt: tasks with another stamp are invalid. `starts` identifies the attempt that a
    worker has; `attempt` does not, because a reset begins again at 1.
    """

    activity_id: str
    run_id: str
    activity_type: str
    options: Options
    original: Options
    scheduled_ns: int
    due_ns: int
    input: bytes | None = None
    header: bytes | None = None
    user_metadata: bytes | None = None
    search_attributes: bytes = b""
    links: tuple[bytes, ...] = ()
    phase: Phase = Phase.SCHEDULED
    attempt: int = 1
    stamp: int = 1
    starts: int = 0
    retry_interval_ns: int = 0
    started_ns: int = 0
    identity: str = ""
    attempt_ended_ns: int = 0
    heartbeat_details: bytes | None = None
    heartbeat_at_ns: int = 0
    heartbeats: int = 0
    last_failure: bytes | None = None
    cancel: Asked | None = None
    pause_request_id: str = ""
    unpause_request_id: str = ""
    terminate_request_id: str = ""
    # Effects of a reset on the next attempt after the running attempt.
    stays_paused: bool = False
    forgets_heartbeat: bool = False
    closed_ns: int = 0
    # A serialized ActivityExecutionOutcome.
    outcome: bytes = b""
    transitions: int = 1
    # The SDK of the last worker that got an attempt.
    sdk_name: str = ""
    sdk_version: str = ""

    callbacks: tuple[RegisteredCallback, ...] = ()
    # Unique id of the last start by a worker.
    start_id: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the activity is not closed."""
        return self.phase < Phase.COMPLETED

    @property
    def execution_ns(self) -> int:
        """The time at which the first attempt is due, after the start delay."""
        return self.scheduled_ns + self.options.start_delay_ns

    @property
    def expires_ns(self) -> int:
        """The time of the schedule-to-close timeout; 0 for never."""
        limit_ns = self.options.schedule_to_close_ns
        return self.execution_ns + limit_ns if limit_ns else 0
