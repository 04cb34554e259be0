"""The interface to another cluster."""

from typing import Protocol

from fairlead.core.errors import RetryLater
from fairlead.replication.messages import (
    ClusterInfo,
    DeadLetterCount,
    DeadLetterCountRequest,
    FailOverRequest,
    FailOverResponse,
    NamespacesRequest,
    NamespacesResponse,
    PullRequest,
    PullResponse,
    ReadBranchResponse,
    RemoteReadBranch,
    RepairRequest,
    RepairResponse,
)


class RemoteUnavailable(RetryLater):
    """Another cluster did not respond: the request may have been carried out, or may still be."""


class Remote(Protocol):
    """One other cluster, over gRPC or over the network of a simulation.

    Every method raises `RemoteUnavailable` if no response came; the request may have been carried out all the same.
    """

    async def info(self) -> ClusterInfo:
        """The identity of that cluster."""
        ...

    async def pull(self, request: PullRequest) -> PullResponse:
        """The next tasks of one of its shards."""
        ...

    async def read_branch(self, request: RemoteReadBranch) -> ReadBranchResponse:
        """Events of one of its runs."""
        ...

    async def namespaces(self, request: NamespacesRequest) -> NamespacesResponse:
        """Its global namespaces."""
        ...

    async def fail_over(self, request: FailOverRequest) -> FailOverResponse:
        """Request that the cluster make `request.to` the active cluster of a namespace."""
        ...

    async def count_dead_letters(self, request: DeadLetterCountRequest) -> DeadLetterCount:
        """Number of its dead letters from a source cluster in a namespace."""
        ...

    async def nudge(self) -> None:
        """Request that the cluster pull this cluster's namespaces now."""
        ...

    async def repair(self, request: RepairRequest) -> RepairResponse:
        """Request that the cluster fetch the events that it lacks."""
        ...
