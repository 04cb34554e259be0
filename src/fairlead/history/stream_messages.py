"""What is asked of a shard's stream and of the line of a run, and what is answered: by hosts and by other clusters."""

import msgspec


class ReplicationTask(msgspec.Struct, array_like=True, frozen=True):
    """A batch that was written in the cluster that sends it; or, with `first_event_id` 0, progress of activities.

    `events` is a serialized History, or of progress what `encode_progress` makes of it. `time_us` is when it was
    written, by the clock of its writer. `is_gone`: it was written, and can't be sent, since its run has been deleted.
    """

    task_id: int
    time_us: int
    namespace_id: str
    workflow_id: str
    run_id: str
    first_event_id: int
    last_event_id: int
    items: tuple[tuple[int, int], ...]
    events: bytes
    start_request_id: str = ""
    is_gone: bool = False


class PullRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask for what a shard has written after `after_id`, and say up to where all of it is safe with the asker.

    No task: the answer comes when there is one, or after `wait_s`. At most so many rows and bytes, but always one.
    `source_id` is the id of the cluster whose stream the asker takes it for; empty where it does not know. One that
    never was at `after_id` or `ack_id` refuses with OUT_OF_RANGE: the asker begins anew.
    """

    cluster: str
    shard_id: int
    after_id: int
    ack_id: int
    rows_max: int
    bytes_max: int
    wait_s: float
    source_id: str = ""


class PullAnswer(msgspec.Struct, array_like=True, frozen=True):
    """Tasks in the order of their ids, and the id up to which there are no others: to be asked after next.

    `now_ns` is the clock of the sender; `behind` is how many rows there are after `through_id`, at most
    `ROWS_COUNTED_MAX`.
    """

    tasks: tuple[ReplicationTask, ...]
    through_id: int
    now_ns: int
    behind: int = 0


class HandOver(msgspec.Struct, array_like=True, frozen=True):
    """Have the writes of a namespace wait until `until_ns`; 0 only asks how far everybody is.

    `to` is the cluster that is to get the namespace. `is_over`: the writes go on, if they wait for the hand-over that
    was to last until then.
    """

    namespace_id: str
    until_ns: int
    to: str = ""
    is_over: bool = False


class HandedOver(msgspec.Struct, array_like=True, frozen=True):
    """Everything that was written of the namespace before has a row up to this id; `acks`: who has all up to which.

    The cluster that is to get the namespace is not among them while it has yet to be told of older runs.
    """

    last_id: int
    acks: dict[str, int] = {}


class NamespaceChanged(msgspec.Struct, array_like=True, frozen=True):
    """Have a shard look at a namespace in the store, and act on what has changed."""

    namespace_id: str


class ReadLineRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the events [`from_event_id`, `to_event_id`) of the line that `items` describe.

    With `from_event_id` 0 it asks how far the activities of the run have come instead.
    """

    workflow_id: str
    run_id: str
    items: tuple[tuple[int, int], ...]
    from_event_id: int
    to_event_id: int
    bytes_max: int


class ReadLineBatch(msgspec.Struct, array_like=True, frozen=True):
    """A batch of the line, whole: the ones at the ends may have events outside of what was asked for."""

    first_event_id: int
    last_event_id: int
    events: bytes


class ReadLineAnswer(msgspec.Struct, array_like=True, frozen=True):
    """As many batches as may be sent at once; the next page begins after the last of them."""

    batches: tuple[ReadLineBatch, ...]
    start_request_id: str = ""
    progress: bytes = b""


class BranchesRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the branches of a run, the current one if none is named."""

    workflow_id: str
    run_id: str = ""


class BranchesAnswer(msgspec.Struct, array_like=True, frozen=True):
    """Each branch as its id and its version history; the first is the current one."""

    run_id: str
    branches: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    status: int
    is_zombie: bool


class TreeRequest(msgspec.Struct, array_like=True, frozen=True):
    """The same, by the name of its namespace."""

    namespace: str
    workflow_id: str
    run_id: str = ""
