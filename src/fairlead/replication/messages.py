"""Messages between clusters: the receiving cluster sends requests to the cluster that has the data."""

import msgspec

from fairlead.history.messages.stream import (
    PullRequest,
    PullResponse,
    ReadBranchBatch,
    ReadBranchResponse,
    ReplicationTask,
)


class ClusterInfo(msgspec.Struct, array_like=True, frozen=True):
    """The identity of a cluster. `shards` is the number of its streams."""

    name: str
    cluster_id: str
    initial_version: int
    increment: int
    shards: int


class RemoteReadBranch(msgspec.Struct, array_like=True, frozen=True):
    """Request the events [`from_event_id`, `to_event_id`) of the branch with the version history `items`.

    With `from_event_id` 0 it requests the progress of the run's activities instead.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    items: tuple[tuple[int, int], ...]
    from_event_id: int
    to_event_id: int
    bytes_max: int


class NamespaceRecord(msgspec.Struct, array_like=True, frozen=True):
    """A global namespace of a cluster: `payload` is its encoded `Namespace`."""

    namespace_id: str
    name: str
    payload: bytes


class NamespacesRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request the global namespaces after an id, unless the sender has all of them already, as `digest` shows.

    The response has the namespaces of `cluster`, which sends the request; if it is empty, all global namespaces.
    """

    digest: str = ""
    after_id: str = ""
    cluster: str = ""


class NamespacesResponse(msgspec.Struct, array_like=True, frozen=True):
    """Namespaces sorted by id; none if the digests are equal. `next_after_id` is empty on the last page."""

    digest: str
    records: tuple[NamespaceRecord, ...] = ()
    next_after_id: str = ""


class FailOverRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request to make `to` the active cluster of a namespace."""

    namespace: str
    to: str
    is_graceful: bool
    timeout_s: float


class FailOverResponse(msgspec.Struct, array_like=True, frozen=True):
    """The namespace's active cluster and version after the request."""

    active_cluster: str
    failover_version: int


class DeadLetterCountRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request the number of dead letters from `source` in a namespace."""

    source: str
    namespace_id: str


class DeadLetterCount(msgspec.Struct, array_like=True, frozen=True):
    """Number of dead letters."""

    count: int


class Nudge(msgspec.Struct, array_like=True, frozen=True):
    """Request to pull the namespaces of `cluster` now."""

    cluster: str


class RepairStep(msgspec.Struct, array_like=True, frozen=True):
    """Events of one version that a cluster lacks, the version history `items` of their branch, and a cluster that has
    them.
    """

    source: str
    first_event_id: int
    last_event_id: int
    version: int
    items: tuple[tuple[int, int], ...]


class RepairRequest(msgspec.Struct, array_like=True, frozen=True):
    """Request to `target` to fetch events of one run from others; `is_dry`: only report the outcome.

    `sources` are all clusters that a plan names for the target: a request without steps checks that the target knows
    them.
    """

    target: str
    sources: tuple[str, ...]
    namespace_id: str = ""
    workflow_id: str = ""
    run_id: str = ""
    steps: tuple[RepairStep, ...] = ()
    is_dry: bool = True


class Repaired(msgspec.Struct, array_like=True, frozen=True):
    """The outcome of a step or of its dry run; `events` is the number of events written. With an `error`, ignore the
    other fields.
    """

    outcome: str = ""
    events: int = 0
    error: str = ""


class RepairResponse(msgspec.Struct, array_like=True, frozen=True):
    """One result for each step."""

    repaired: tuple[Repaired, ...] = ()


class Done(msgspec.Struct, array_like=True, frozen=True):
    """An empty response."""


__all__ = [
    "ClusterInfo",
    "DeadLetterCount",
    "DeadLetterCountRequest",
    "Done",
    "FailOverRequest",
    "FailOverResponse",
    "NamespaceRecord",
    "NamespacesRequest",
    "NamespacesResponse",
    "Nudge",
    "PullRequest",
    "PullResponse",
    "ReadBranchBatch",
    "ReadBranchResponse",
    "RemoteReadBranch",
    "RepairRequest",
    "RepairResponse",
    "RepairStep",
    "Repaired",
    "ReplicationTask",
]
