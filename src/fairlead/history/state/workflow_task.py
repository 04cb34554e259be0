"""The one workflow task that a run may have at a time."""

from enum import IntEnum

import msgspec


class TaskKind(IntEnum):
    """When the events of a workflow task are written."""

    # The events are written at once.
    NORMAL = 1
    # A retry after a failure. The events are written when it succeeds, so that further failures leave no events.
    TRANSIENT = 2
    # A task that delivers updates. The events are written only if it has an effect, so that a rejected update leaves no
    # events.
    SPECULATIVE = 3


class WorkflowTask(msgspec.Struct, array_like=True):
    """A scheduled or started workflow task. `started_event_id` is 0 until it is started.

    A transient or speculative task has the event ids that its events will get if no other event is written first.
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
    # Whether the run is pinned to a version that is not the target version of new runs.
    target_changed: bool = False

    @property
    def is_started(self) -> bool:
        """Whether a worker has the task."""
        return self.started_event_id > 0
