"""Requests of hosts and of other clusters for a shard's stream and for branches of runs, and the responses."""

import msgspec

# Maximum seconds that a pull waits for rows, regardless of the request.
PULL_WAIT_S_MAX = 30.0


class ReplicationTask(msgspec.Struct, array_like=True, frozen=True):
    """A batch that the sending cluster has written; or, if `first_event_id` is 0, activity progress.

    `events` is a serialized `History`, or the bytes of `encode_progress`. `time_us` is the time of the commit by the
    writer's clock. `is_gone` is true if the contents can't be sent because the run was deleted.
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
    """Request the rows of a shard's stream after `after_id`, and acknowledge the rows up to `ack_id`.

    If there is no row, the call waits for one, at most `wait_s`. The response has at most `rows_max` rows and
    `bytes_max` bytes; a single row may be larger. `source_id` is the id of the cluster that the caller expects to read,
    or empty. If the cluster has never sent `after_id` or `ack_id`, it raises `OutOfRange`, and the caller starts from
    the beginning.
    """

    cluster: str
    shard_id: int
    after_id: int
    ack_id: int
    rows_max: int
    bytes_max: int
    wait_s: float
    source_id: str = ""


class PullResponse(msgspec.Struct, array_like=True, frozen=True):
    """Tasks in the order of their ids. There are no other tasks up to `through_id`, which is the next `after_id`.

    `now_ns` is the sender's clock; `behind` is the number of rows after `through_id`, at most `ROWS_COUNTED_MAX`.
    """

    tasks: tuple[ReplicationTask, ...]
    through_id: int
    now_ns: int
    behind: int = 0


class HandOver(msgspec.Struct, array_like=True, frozen=True):
    """Make the writes of a namespace wait until `until_ns`. With 0, only read the acknowledged ids.

    `to` is the cluster that will become active. With `is_over`, end the handover that would last until `until_ns`.
    """

    namespace_id: str
    until_ns: int
    to: str = ""
    is_over: bool = False


class HandedOver(msgspec.Struct, array_like=True, frozen=True):
    """All earlier writes of the namespace have rows up to `last_id`; `acks` maps clusters to acknowledged ids.

    The cluster that will become active is missing in `acks` until existing runs have been backfilled to it.
    """

    last_id: int
    acks: dict[str, int] = {}


class NamespaceChanged(msgspec.Struct, array_like=True, frozen=True):
    """Make a shard reload a namespace from the store and act on its changes."""

    namespace_id: str


class ReadBranchRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request the events [`from_event_id`, `to_event_id`) of the branch with the version history `items`.

    If `from_event_id` is 0, request the activity progress of the run instead.
    """

    workflow_id: str
    run_id: str
    items: tuple[tuple[int, int], ...]
    from_event_id: int
    to_event_id: int
    bytes_max: int


class ReadBranchBatch(msgspec.Struct, array_like=True, frozen=True):
    """A whole batch of the branch. The first and the last batch may have events outside the requested range."""

    first_event_id: int
    last_event_id: int
    events: bytes


class ReadBranchResponse(msgspec.Struct, array_like=True, frozen=True):
    """A page of batches; the next page begins after the last batch."""

    batches: tuple[ReadBranchBatch, ...]
    start_request_id: str = ""
    progress: bytes = b""


class BranchesRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request the branches of a run; without `run_id`, of the current run. `with_reapplied` reads losing branches."""

    workflow_id: str
    run_id: str = ""
    with_reapplied: bool = False


class ReappliedEvent(msgspec.Struct, array_like=True, frozen=True):
    """A signal or update of a losing branch, and its copy in the run `to_run_id`.

    `to_run_id` is empty if no run has a copy; `to_event_id` is 0 unless the copy is on the run's own current branch.
    """

    kind: str
    name: str
    branch_id: str
    event_id: int
    version: int
    time_s: float
    to_run_id: str = ""
    to_event_id: int = 0


class BranchesResponse(msgspec.Struct, array_like=True, frozen=True):
    """The id and version history of each branch; the first branch is the current one.

    `reapplied` has at most `ndc.reapplied.EVENTS_MAX` events, in the order of their branches; it is empty unless
    requested.
    """

    run_id: str
    branches: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    status: int
    is_zombie: bool
    reapplied: tuple[ReappliedEvent, ...] = ()
    is_reapplied_cut: bool = False


class TreeRequest(msgspec.Struct, array_like=True, frozen=True):
    """Like `BranchesRequest`, with the name of the namespace."""

    namespace: str
    workflow_id: str
    run_id: str = ""
    with_reapplied: bool = False
