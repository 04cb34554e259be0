"""Clusters that share global namespaces: where a namespace is active, and which cluster may write for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from temporalio.api.errordetails.v1 import NamespaceNotActiveFailure

from fairlead.api.error_details import packed
from fairlead.api.errors import NotActive
from fairlead.core.versions import LOCAL_VERSION, ClusterVersions

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace

DEFAULT_CLUSTER = "active"
DEFAULT_INITIAL_VERSION = 1
DEFAULT_INCREMENT = 10


class Clusters:
    """The name of this cluster, the failover versions of all clusters, and the clusters to which it is connected."""

    __slots__ = ("_listeners", "here", "remotes", "versions")

    def __init__(
        self, here: str = DEFAULT_CLUSTER, versions: ClusterVersions | None = None, remotes: Iterable[str] = ()
    ) -> None:
        self.here = here
        self.versions = versions or ClusterVersions(DEFAULT_INCREMENT, {here: DEFAULT_INITIAL_VERSION})
        self.remotes = frozenset(remotes)
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever clusters are added or removed."""
        self._listeners.append(listener)

    def update(self, versions: ClusterVersions, remotes: Iterable[str]) -> None:
        """Replace the clusters' versions and the connected clusters, and notify the listeners."""
        self.versions = versions
        self.remotes = frozenset(remotes)
        for listener in self._listeners:
            listener()

    def is_active(self, namespace: Namespace) -> bool:
        """Whether this cluster writes for the namespace; a local namespace is always active."""
        version = namespace.failover_version
        return version == LOCAL_VERSION or self.versions.is_owned_by(version, self.here)

    def check_writable(self, namespace: Namespace, *, last_event_version: int) -> None:
        """Raise `NotActive` unless the namespace is active here and the run's last event is not newer than it.

        If the last event has a higher version than the namespace, refresh the namespace before this call.
        """
        version = namespace.failover_version
        if not self.is_active(namespace):
            raise self._not_active(namespace, version)
        if last_event_version > version:
            raise self._not_active(namespace, last_event_version)

    def _not_active(self, namespace: Namespace, version: int) -> NotActive:
        """The error; its active cluster is the one that owns `version`, empty if no known cluster owns it."""
        owned = self.versions.initial_versions
        active = next((name for name in owned if self.versions.is_owned_by(version, name)), "")
        return NotActive(
            f"Namespace: {namespace.name} is active in cluster: {active}, while current cluster {self.here} is a "
            "standby cluster.",
            packed(
                NamespaceNotActiveFailure(namespace=namespace.name, current_cluster=self.here, active_cluster=active)
            ),
        )
