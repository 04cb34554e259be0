"""The clusters that share namespaces: where a namespace is active, and who may write for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from temporalio.api.errordetails.v1 import NamespaceNotActiveFailure

from fairlead.core.versions import LOCAL_VERSION, ClusterVersions
from fairlead.history.refusals import Refused, refused
from fairlead.rpc import Code

if TYPE_CHECKING:
    from fairlead.history.namespaces import Namespace

DEFAULT_CLUSTER = "active"
DEFAULT_INITIAL_VERSION = 1
DEFAULT_INCREMENT = 10


class Clusters:
    """What this cluster is among them: its name, all clusters' versions, and those that it is connected with."""

    __slots__ = ("_listeners", "here", "remotes", "versions")

    def __init__(
        self, here: str = DEFAULT_CLUSTER, versions: ClusterVersions | None = None, remotes: Iterable[str] = ()
    ) -> None:
        self.here = here
        self.versions = versions or ClusterVersions(DEFAULT_INCREMENT, {here: DEFAULT_INITIAL_VERSION})
        self.remotes = frozenset(remotes)
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Tell `listener` whenever clusters were added or removed."""
        self._listeners.append(listener)

    def update(self, versions: ClusterVersions, remotes: Iterable[str]) -> None:
        """Clusters were added or removed: both are replaced as a whole."""
        self.versions = versions
        self.remotes = frozenset(remotes)
        for listener in self._listeners:
            listener()

    def is_active(self, namespace: Namespace) -> bool:
        """Whether this cluster writes for the namespace; a local one is active where it is."""
        version = namespace.failover_version
        return version == LOCAL_VERSION or self.versions.is_owned_by(version, self.here)

    def check_writable(self, namespace: Namespace, *, last_event_version: int) -> None:
        """Refuse a write of this cluster unless the namespace is active here and no event is newer than that.

        Who knows of a newer event than the namespace's version should read the namespace again before asking this.
        """
        version = namespace.failover_version
        if not self.is_active(namespace):
            raise self._not_active(namespace, version)
        if last_event_version > version:
            raise self._not_active(namespace, last_event_version)

    def _not_active(self, namespace: Namespace, version: int) -> Refused:
        """With the cluster that `version` belongs to as the active one; empty where it belongs to none known here."""
        owned = self.versions.initial_versions
        active = next((name for name in owned if self.versions.is_owned_by(version, name)), "")
        return refused(
            Code.FAILED_PRECONDITION,
            f"Namespace: {namespace.name} is active in cluster: {active}, while current cluster {self.here} is a "
            "standby cluster.",
            NamespaceNotActiveFailure(namespace=namespace.name, current_cluster=self.here, active_cluster=active),
        )


def is_not_active(failure: BaseException) -> bool:
    """Whether a refusal says that the namespace is active in another cluster."""
    return isinstance(failure, Refused) and NamespaceNotActiveFailure.DESCRIPTOR.full_name.encode() in failure.detail
