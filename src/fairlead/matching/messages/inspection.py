"""Messages that list the waiting tasks of loaded partitions, and remove them."""

from fairlead.core.partitions import Partition
from fairlead.matching.messages.base import Message
from fairlead.matching.messages.tasks import QueueKind
from fairlead.rpc.hosts.caller import Method

# Number of tasks in one response to a peek.
PEEKED_MAX = 1000


class WaitingTask(Message, frozen=True):
    """A loaded task that waits for a poll. Tasks are dispatched in the order of priority, pass and id."""

    priority: int
    pass_number: int
    id: int
    fairness_key: str
    weight: float
    created_s: float
    payload: bytes


class PeekRequest(Message, frozen=True):
    """Return the first loaded tasks of a partition, in dispatch order."""

    partition: Partition
    kind: QueueKind = QueueKind.NORMAL
    limit: int = 100


class PeekResponse(Message, frozen=True):
    """`stored` is the number of tasks in the backlog, loaded or not."""

    tasks: list[WaitingTask]
    loaded: int
    stored: int


class PurgeRequest(Message, frozen=True):
    """Remove the tasks of clients from a partition's backlog. Tasks of the history service stay."""

    partition: Partition
    kind: QueueKind = QueueKind.NORMAL


class PurgeResponse(Message, frozen=True):
    """`kept` counts the tasks of the history service.

    If `is_done` is False, the time was too short: send the request again.
    """

    removed: int
    kept: int
    is_done: bool


class FiguresRequest(Message, frozen=True):
    """Return the figures of all task queues that the host has loaded, of one namespace or of all.

    Task queues of worker versions belong to their namespace.
    """

    namespace_id: str | None = None


class LoadedQueue(Message, frozen=True):
    """Sums over the partitions of a task queue that one host has loaded; `age_s` is the age of the oldest task."""

    namespace_id: str
    name: str
    type: int
    partitions: int
    backlog: int
    age_s: float
    adds_per_s: float
    dispatches_per_s: float
    polls: int
    is_sticky: bool = False
    # Whether a worker polled one of the partitions in the last minutes; True from hosts that can't tell.
    is_polled: bool = True


def together(one: LoadedQueue, other: LoadedQueue) -> LoadedQueue:
    """The sums of two parts of a task queue."""
    return LoadedQueue(
        one.namespace_id,
        one.name,
        one.type,
        partitions=one.partitions + other.partitions,
        backlog=one.backlog + other.backlog,
        age_s=max(one.age_s, other.age_s),
        adds_per_s=one.adds_per_s + other.adds_per_s,
        dispatches_per_s=one.dispatches_per_s + other.dispatches_per_s,
        polls=one.polls + other.polls,
        is_sticky=one.is_sticky or other.is_sticky,
        is_polled=one.is_polled or other.is_polled,
    )


class FiguresResponse(Message, frozen=True):
    """The loaded task queues."""

    queues: list[LoadedQueue]


PEEK = Method("matching.Peek", PeekRequest, PeekResponse)
PURGE = Method("matching.Purge", PurgeRequest, PurgeResponse)
FIGURES = Method("matching.Figures", FiguresRequest, FiguresResponse)
