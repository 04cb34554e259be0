"""The one workflow task that a run may have at a time."""

from enum import IntEnum

import msgspec


class TaskKind(IntEnum):
    """How a workflow task stands in the history."""

    # Its events are written as it goes.
    NORMAL = 1
    # A further attempt after a failure: its events are written when it succeeds, so that failing leaves no trace.
    TRANSIENT = 2
    # Made to deliver updates: its events are written when it has an effect, so that a rejected update leaves no trace.
    SPECULATIVE = 3


class WorkflowTask(msgspec.Struct, array_like=True):
    """A scheduled or started workflow task. `started_event_id` is 0 until it is started.

    The ids of a transient or speculative task are those that its events will have if nothing comes between.
    """

    kind: TaskKind
    version: int
    scheduled_event_id: int
    attempt: int
    timeout_ns: int
    scheduled_ns: int
    task_queue: str
    sticky: bool
    started_event_id: int = 0
    started_ns: int = 0
    request_id: str = ""
    identity: str = ""
    worker_version: bytes | None = None
    suggest_continue_as_new: bool = False
    history_size_bytes: int = 0
    # The run is pinned, and others go to another version.
    target_changed: bool = False

    @property
    def is_started(self) -> bool:
        """Whether a worker has it."""
        return self.started_event_id > 0
