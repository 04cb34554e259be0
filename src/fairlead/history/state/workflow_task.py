"""The one workflow task that a run may have at a time."""

from enum import IntEnum

import msgspec


class TaskKind(IntEnum):
    """Whether the events of a workflow task are written at once or later."""

    # Events are written at once.
    NORMAL = 1
    # A retry after a failure: its events are written when it succeeds, so that further failures leave no events.
    TRANSIENT = 2
    # Delivers updates: its events are written only if it has an effect, so that a rejected update leaves no events.
    SPECULATIVE = 3


class WorkflowTask(msgspec.Struct, array_like=True):
    """A scheduled or started workflow task. `started_event_id` is 0 until it is started.

    The event ids of a transient or speculative task are those that its events get if no other event comes first.
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
    # Whether the run is pinned to a version while the target version for new runs is another one.
    target_changed: bool = False

    @property
    def is_started(self) -> bool:
        """Whether a worker has the task."""
        return self.started_event_id > 0
