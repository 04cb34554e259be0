"""Failover versions: the cluster that owns a version, the version after a failover, and who may write at a version.

A global namespace has one version. The version determines the active cluster (its remainder by the shared increment)
and which of two changes is later (the higher version). A local namespace, which exists in one cluster only, has
`LOCAL_VERSION`, which belongs to no cluster and is below all other versions; so a local namespace can become a global
one later, and its histories continue with higher versions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fairlead.core.errors import FixRequest, GiveUp, RetryElsewhere

LOCAL_VERSION = 0


class InvalidClusters(FixRequest):
    """The clusters' initial versions are invalid, or two clusters have the same."""


class UnknownCluster(FixRequest):
    """The named cluster is not configured."""


class UnownedVersion(GiveUp):
    """A version belongs to none of the configured clusters."""


class NamespaceNotActive(RetryElsewhere):
    """The namespace is not active in the cluster that got the write, but in another one."""

    def __init__(self, current_cluster: str, active_cluster: str, namespace_version: int) -> None:
        # All values are arguments of the exception, so that it can be pickled.
        super().__init__(current_cluster, active_cluster, namespace_version)
        self.current_cluster = current_cluster
        self.active_cluster = active_cluster
        self.namespace_version = namespace_version

    def __str__(self) -> str:
        return (
            f"the namespace is active in cluster {self.active_cluster!r} (version {self.namespace_version}), "
            f"not in {self.current_cluster!r}: send the request to {self.active_cluster!r}"
        )


class NamespaceVersionStale(RetryElsewhere):
    """A workflow's last event has a higher version than the namespace has in this cluster."""

    def __init__(self, current_cluster: str, namespace_version: int, last_event_version: int) -> None:
        super().__init__(current_cluster, namespace_version, last_event_version)
        self.current_cluster = current_cluster
        self.namespace_version = namespace_version
        self.last_event_version = last_event_version

    def __str__(self) -> str:
        return (
            f"the workflow's last event has version {self.last_event_version}, newer than the namespace's version "
            f"{self.namespace_version} that cluster {self.current_cluster!r} knows: the namespace has failed over "
            f"since; load it again, then retry in its active cluster"
        )


@dataclass(frozen=True, slots=True)
class ClusterVersions:
    """The clusters that share global namespaces: each version from 1 on belongs to one of them or to none."""

    increment: int
    initial_versions: Mapping[str, int]
    _names: Mapping[int, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.initial_versions:
            raise InvalidClusters("no cluster is configured: name at least one with its initial version")
        names: dict[int, str] = {}
        for name, initial in self.initial_versions.items():
            if not name:
                raise InvalidClusters(f"the cluster with initial version {initial} has no name")
            if not 0 < initial < self.increment:
                raise InvalidClusters(
                    f"cluster {name!r} has initial version {initial}: it must be above 0 and below the shared "
                    f"increment {self.increment}"
                )
            if initial in names:
                raise InvalidClusters(
                    f"clusters {names[initial]!r} and {name!r} both have initial version {initial}: make them differ"
                )
            names[initial] = name
        object.__setattr__(self, "initial_versions", MappingProxyType(dict(self.initial_versions)))
        object.__setattr__(self, "_names", MappingProxyType(names))

    def next_version(self, *, to: str, current: int) -> int:
        """Return the namespace's version after a failover: the lowest one that is at least `current` and owned by `to`.

        A failover to the active cluster changes nothing. So a cluster that has lost committed events must not continue
        at its version: two events would have the same id and version. Fail over to another cluster, or add the
        increment by hand. A new namespace starts from `current=LOCAL_VERSION`.
        """
        if to not in self.initial_versions:
            raise UnknownCluster(f"cluster {to!r} is not configured: use one of {', '.join(self.initial_versions)}")
        if current < LOCAL_VERSION:
            raise UnownedVersion(f"version {current} is negative: versions start at {LOCAL_VERSION}")
        return current + (self.initial_versions[to] - current) % self.increment

    def is_owned_by(self, version: int, cluster: str) -> bool:
        """Whether `cluster` owns `version`; False if no cluster does."""
        return self._owner(version) == cluster

    def owner(self, version: int) -> str:
        """Return the cluster that owns `version`, the only one that writes events at it."""
        name = self._owner(version)
        if name is None:
            raise UnownedVersion(
                f"version {version} belongs to no configured cluster (initial versions "
                f"{dict(self.initial_versions)}, increment {self.increment}): configure its cluster, or look where "
                "it came from"
            )
        return name

    def _owner(self, version: int) -> str | None:
        # A negative number has a remainder as well, but no cluster writes at it.
        return self._names.get(version % self.increment) if version > LOCAL_VERSION else None

    def check_mutation(self, *, cluster: str, namespace_version: int, last_event_version: int) -> None:
        """Raise an error unless the namespace is active in `cluster` and no event has a higher version.

        For the start of a run, `last_event_version` is the version of the workflow id's current run, or `LOCAL_VERSION`
        if there is none: a new run must not begin at a lower version than the run that it follows.
        """
        if namespace_version != LOCAL_VERSION:
            active = self.owner(namespace_version)
            if active != cluster:
                raise NamespaceNotActive(cluster, active, namespace_version)
        if last_event_version > namespace_version:
            raise NamespaceVersionStale(cluster, namespace_version, last_event_version)
