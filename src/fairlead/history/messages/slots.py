"""Messages about the running activities of task queues with limits."""

import msgspec


class RunningRequest(msgspec.Struct, array_like=True, frozen=True):
    """Count the running activities of a task queue."""

    namespace_id: str
    task_queue: str


class RunningResponse(msgspec.Struct, array_like=True, frozen=True):
    """Running activities by fairness key, and the limits for a key and for the task queue (0 for no limit)."""

    running: dict[str, int]
    key_max: int
    queue_max: int
