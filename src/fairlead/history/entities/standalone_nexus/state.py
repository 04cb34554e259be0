"""The stored state of a standalone Nexus operation. New fields are only added at the end."""

from enum import IntEnum

import msgspec


class Phase(IntEnum):
    """The phase of an operation."""

    SCHEDULED = 1
    BACKING_OFF = 2
    STARTED = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELED = 6
    TERMINATED = 7
    TIMED_OUT = 8

    @property
    def title(self) -> str:
        """The name in error messages, such as 'TimedOut'."""
        return self.name.title().replace("_", "")


class Calls(msgspec.Struct, array_like=True):
    """The requests of one kind to the handler.

    `attempt` is their number. `next_ns` is the time of the next request during a backoff, otherwise 0.
    """

    attempt: int = 0
    ended_ns: int = 0
    failure: bytes | None = None
    next_ns: int = 0


class Cancellation(msgspec.Struct, array_like=True):
    """A client's request to cancel.

    `state` is the number of a `NexusOperationCancellationState`, 0 until the handler has started the operation.
    """

    request_id: str
    identity: str
    reason: str
    state: int = 0
    calls: Calls = msgspec.field(default_factory=Calls)


class OperationState(msgspec.Struct, array_like=True):
    """An operation with all requests to its handler. A duration of 0 means unset; messages are serialized."""

    operation_id: str
    run_id: str
    # Id by which the handler recognises retries of the start request.
    request_id: str
    endpoint: str
    endpoint_id: str
    service: str
    operation: str
    scheduled_ns: int
    schedule_to_close_ns: int = 0
    schedule_to_start_ns: int = 0
    start_to_close_ns: int = 0
    identity: str = ""
    header: dict[str, str] = msgspec.field(default_factory=dict)
    input: bytes | None = None
    user_metadata: bytes | None = None
    search_attributes: bytes = b""
    phase: Phase = Phase.SCHEDULED
    calls: Calls = msgspec.field(default_factory=Calls)
    token: str = ""
    started_ns: int = 0
    links: tuple[bytes, ...] = ()
    cancellation: Cancellation | None = None
    terminate_request_id: str = ""
    closed_ns: int = 0
    result: bytes | None = None
    failure: bytes | None = None
    transitions: int = 1

    @property
    def is_open(self) -> bool:
        """Whether the operation has not ended."""
        return self.phase < Phase.SUCCEEDED

    @property
    def expires_ns(self) -> int:
        """Time at which the operation times out; 0 for never."""
        return self.scheduled_ns + self.schedule_to_close_ns if self.schedule_to_close_ns else 0
