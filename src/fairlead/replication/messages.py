"""What clusters say to each other: asked by the one that receives, answered by the one that has."""

import msgspec

from fairlead.history.stream_messages import PullAnswer, PullRequest, ReadLineAnswer, ReadLineBatch, ReplicationTask


class ClusterInfo(msgspec.Struct, array_like=True, frozen=True):
    """Who a cluster says it is. `shards` is how many streams it has to be pulled."""

    name: str
    cluster_id: str
    initial_version: int
    increment: int
    shards: int


class RemoteReadLine(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the events [`from_event_id`, `to_event_id`) of the line of a run that `items` describe.

    With `from_event_id` 0 it asks how far the activities of the run have come instead.
    """

    namespace_id: str
    workflow_id: str
    run_id: str
    items: tuple[tuple[int, int], ...]
    from_event_id: int
    to_event_id: int
    bytes_max: int


class NamespaceRecord(msgspec.Struct, array_like=True, frozen=True):
    """A global namespace as a cluster has it: `payload` is its `Namespace`, encoded."""

    namespace_id: str
    name: str
    payload: bytes


class NamespacesRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the global namespaces after an id, unless `digest` says that the asker has all of them already."""

    digest: str = ""
    after_id: str = ""


class NamespacesAnswer(msgspec.Struct, array_like=True, frozen=True):
    """All of them by id, or none where the digests are equal. `next_after_id` is there where a page is not the last."""

    digest: str
    records: tuple[NamespaceRecord, ...] = ()
    next_after_id: str = ""


class FailOverRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask to make `to` the active cluster of a namespace."""

    namespace: str
    to: str
    is_graceful: bool
    timeout_s: float


class FailOverAnswer(msgspec.Struct, array_like=True, frozen=True):
    """What the namespace is after it."""

    active_cluster: str
    failover_version: int


class LettersAsked(msgspec.Struct, array_like=True, frozen=True):
    """Ask how many dead letters a cluster has of what `source` wrote in a namespace."""

    source: str
    namespace_id: str


class LettersCounted(msgspec.Struct, array_like=True, frozen=True):
    """So many."""

    count: int


class Nudge(msgspec.Struct, array_like=True, frozen=True):
    """Look at the namespaces of `cluster` now."""

    cluster: str


class RepairStep(msgspec.Struct, array_like=True, frozen=True):
    """Events of one version that a cluster lacks, the line `items` that they stand on, and who has them."""

    source: str
    first_event_id: int
    last_event_id: int
    version: int
    items: tuple[tuple[int, int], ...]


class RepairRequest(msgspec.Struct, array_like=True, frozen=True):
    """Have `target` get events of one of its runs from others; `is_dry`: say only what would become of them.

    `sources` are all clusters that a plan names for the target: without steps, the request asks whether it knows them.
    """

    target: str
    sources: tuple[str, ...]
    namespace_id: str = ""
    workflow_id: str = ""
    run_id: str = ""
    steps: tuple[RepairStep, ...] = ()
    is_dry: bool = True


class Repaired(msgspec.Struct, array_like=True, frozen=True):
    """What became of a step, or would; `events` is how many are written by it. With an `error` nothing else counts."""

    outcome: str = ""
    events: int = 0
    error: str = ""


class RepairAnswer(msgspec.Struct, array_like=True, frozen=True):
    """One for each step."""

    repaired: tuple[Repaired, ...] = ()


class Done(msgspec.Struct, array_like=True, frozen=True):
    """An answer that says nothing else."""


__all__ = [
    "ClusterInfo",
    "Done",
    "FailOverAnswer",
    "FailOverRequest",
    "LettersAsked",
    "LettersCounted",
    "NamespaceRecord",
    "NamespacesAnswer",
    "NamespacesRequest",
    "Nudge",
    "PullAnswer",
    "PullRequest",
    "ReadLineAnswer",
    "ReadLineBatch",
    "RemoteReadLine",
    "RepairAnswer",
    "RepairRequest",
    "RepairStep",
    "Repaired",
    "ReplicationTask",
]
