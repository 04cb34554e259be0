"""What is kept of an activity that stands alone. Fields are only ever added, at the end."""

from enum import IntEnum

import msgspec


class Phase(IntEnum):
    """Where an activity is between its start and its end. The names are those of Temporal's messages."""

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
        """As messages have it: 'CancelRequested'."""
        return self.name.title().replace("_", "")


# A worker has it, or had it and was not heard of since.
AT_WORKER = frozenset({Phase.STARTED, Phase.CANCEL_REQUESTED, Phase.PAUSE_REQUESTED, Phase.RESET_REQUESTED})
# It waits: for its time, for a worker, or for somebody to let it go on.
WAITING = frozenset({Phase.SCHEDULED, Phase.PAUSED})


class Options(msgspec.Struct, array_like=True, frozen=True):
    """What whoever started it wants, and may change later. A time of 0 is none; the messages are serialized."""

    task_queue: str
    schedule_to_close_ns: int
    schedule_to_start_ns: int
    start_to_close_ns: int
    heartbeat_ns: int
    retry_policy: bytes
    priority: bytes = b""
    start_delay_ns: int = 0


class Asked(msgspec.Struct, array_like=True, frozen=True):
    """Who asked for a cancellation, and why; the same request again is no other one."""

    request_id: str
    identity: str = ""
    reason: str = ""


class ActivityState(msgspec.Struct, array_like=True):
    """An activity with all of its attempts.

    `stamp` tells the attempt that waits from those before it: tasks with another one are void. `starts` does so for the
    attempt that a worker has, since attempts may be counted anew.
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
    # What a reset wants of the attempt after the one that a worker has.
    stays_paused: bool = False
    forgets_heartbeat: bool = False
    closed_ns: int = 0
    # A serialized ActivityExecutionOutcome.
    outcome: bytes = b""
    transitions: int = 1

    @property
    def is_open(self) -> bool:
        """Whether it has not come to its end."""
        return self.phase < Phase.COMPLETED

    @property
    def execution_ns(self) -> int:
        """When it was first to be worked on."""
        return self.scheduled_ns + self.options.start_delay_ns

    @property
    def expires_ns(self) -> int:
        """When all attempts must have ended; 0 for never."""
        limit_ns = self.options.schedule_to_close_ns
        return self.execution_ns + limit_ns if limit_ns else 0
