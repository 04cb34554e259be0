"""Another cluster, as this one asks it."""

from typing import Protocol

from fairlead.core.errors import RetryLater
from fairlead.replication.messages import (
    ClusterInfo,
    FailOverAnswer,
    FailOverRequest,
    LettersAsked,
    LettersCounted,
    NamespacesAnswer,
    NamespacesRequest,
    PullAnswer,
    PullRequest,
    ReadLineAnswer,
    RemoteReadLine,
    RepairAnswer,
    RepairRequest,
)


class RemoteUnavailable(RetryLater):
    """Another cluster did not answer: what it was asked for may have been done, or may yet be."""


class Remote(Protocol):
    """One other cluster, over gRPC or over the network of a simulation.

    Every method raises `RemoteUnavailable` where no answer came; what was asked for may have been done all the same.
    """

    async def info(self) -> ClusterInfo:
        """Who it is."""
        ...

    async def pull(self, request: PullRequest) -> PullAnswer:
        """The next tasks of one of its shards."""
        ...

    async def read_line(self, request: RemoteReadLine) -> ReadLineAnswer:
        """Events of one of its runs."""
        ...

    async def namespaces(self, request: NamespacesRequest) -> NamespacesAnswer:
        """Its global namespaces."""
        ...

    async def fail_over(self, request: FailOverRequest) -> FailOverAnswer:
        """Have it make a cluster the active one of a namespace."""
        ...

    async def count_letters(self, request: LettersAsked) -> LettersCounted:
        """How much of what was written in a namespace it could not take in."""
        ...

    async def nudge(self) -> None:
        """Have it look at this cluster's namespaces now."""
        ...

    async def repair(self, request: RepairRequest) -> RepairAnswer:
        """Have it get events that it lacks."""
        ...
