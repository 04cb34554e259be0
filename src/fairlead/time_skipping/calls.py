"""Watches the open calls of a frontend: which of them hold time, and which task queues workers poll."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairlead.core.partitions import TaskType

# Seconds of real time for which a worker counts as polling after its last poll; it polls again within that time.
POLLER_S_MAX = 1.0
# Seconds of real time for which a Nexus worker counts as polling after its last poll: a handler may take up to 8
# seconds for a request, without polling meanwhile.
NEXUS_POLLER_S_MAX = 8.0
# Seconds of real time for which time stands still after a client's call, so that the client can call again, for example
# to lock time. An unlock ends this pause.
CLIENT_GRACE_S = 0.1
# Number of task queues whose last poll time is kept.
QUEUES_MAX = 10_000

_POLLS = {
    "PollWorkflowTaskQueue": TaskType.WORKFLOW,
    "PollActivityTaskQueue": TaskType.ACTIVITY,
    "PollNexusTaskQueue": TaskType.NEXUS,
}
# Calls of clients that wait for workers or timers; they don't hold time.
_WAITS = frozenset(
    (
        "DescribeActivityExecution",
        "DescribeNexusOperationExecution",
        "ExecuteMultiOperation",
        "PollActivityExecution",
        "PollNexusOperationExecution",
        "PollWorkflowExecutionTimeSkipping",
        "PollWorkflowExecutionUpdate",
        "UpdateWorkflowExecution",
    )
)
# Calls of workers. Time does not pause after them: all of their effects are in the state of a run.
_WORKERS = frozenset(
    (
        *_POLLS,
        "DescribeNamespace",
        "FetchWorkerConfig",
        "GetSystemInfo",
        "RecordActivityTaskHeartbeat",
        "RecordWorkerHeartbeat",
        "RespondActivityTaskCanceled",
        "RespondActivityTaskCompleted",
        "RespondActivityTaskFailed",
        "RespondNexusTaskCompleted",
        "RespondNexusTaskFailed",
        "RespondQueryTaskCompleted",
        "RespondWorkflowTaskCompleted",
        "RespondWorkflowTaskFailed",
        "ShutdownWorker",
    )
)

Queue = tuple[str, TaskType, str]


class CallWatch:
    """Tracks the open calls of a frontend."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """`clock_s` is a clock of real time."""
        self._clock_s = clock_s
        # Number of open calls that hold time.
        self.holding = 0
        # Called at the end of each call.
        self.on_end: Callable[[], None] = lambda: None
        self._quiet_from_s = 0.0
        self._polling: Counter[Queue] = Counter()
        self._polled_s: dict[Queue, float] = {}

    @contextmanager
    def during(self, name: str, request: Any) -> Iterator[None]:
        """Count the call as open within the block."""
        queue = _queue_of(name, request)
        holds = queue is None and not _waits(name, request)
        if queue is not None:
            self._polling[queue] += 1
        self.holding += holds
        try:
            yield
        finally:
            self.holding -= holds
            if queue is not None:
                self._end_poll(queue)
            if name not in _WORKERS:
                self.client_answered()
            self.on_end()

    def client_answered(self) -> None:
        """Start the pause after a client's call."""
        self._quiet_from_s = self._clock_s() + CLIENT_GRACE_S

    def allow_at_once(self) -> None:
        """End the pause after clients' calls: a client has asked for time to be skipped."""
        self._quiet_from_s = 0.0

    def quiet_in_s(self) -> float:
        """Seconds until the pause after the last client's call ends; 0 if it has ended."""
        return max(0.0, self._quiet_from_s - self._clock_s())

    def expires_in_s(self, namespace: str, kind: TaskType, names: tuple[str, ...]) -> float | None:
        """Seconds until no worker counts as polling any of the task queues; None while a poll is open."""
        if kind is TaskType.NEXUS:
            queues = [queue for queue in (*self._polling, *self._polled_s) if queue[1] is kind]
        else:
            queues = [(namespace, kind, name) for name in names]
        if any(self._polling[queue] for queue in queues):
            return None
        lasts_s = NEXUS_POLLER_S_MAX if kind is TaskType.NEXUS else POLLER_S_MAX
        polled_s = max((self._polled_s.get(queue, 0.0) for queue in queues), default=0.0)
        return max(0.0, polled_s + lasts_s - self._clock_s()) if polled_s else 0.0

    def _end_poll(self, queue: Queue) -> None:
        self._polling[queue] -= 1
        if not self._polling[queue]:
            del self._polling[queue]
        self._polled_s.pop(queue, None)
        self._polled_s[queue] = self._clock_s()
        if len(self._polled_s) > QUEUES_MAX:
            del self._polled_s[next(iter(self._polled_s))]


def _queue_of(name: str, request: Any) -> Queue | None:
    kind = _POLLS.get(name)
    return None if kind is None else (str(request.namespace), kind, str(request.task_queue.name))


def _waits(name: str, request: Any) -> bool:
    return name in _WAITS or (name == "GetWorkflowExecutionHistory" and bool(request.wait_new_event))
