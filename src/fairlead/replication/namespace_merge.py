"""Merges two clusters' records of one namespace: the result is the same in every cluster and for every order.

A namespace has two blocks that are replaced as a whole and independently, by the higher version of the block:
- the configuration (retention, state, descriptions, data, search attributes, clusters), by `config_version`. Two
  clusters may give the same version to different changes; then the one whose content has the greater digest wins,
  everywhere.
- the failover (active cluster), by `failover_version`. Each version belongs to one cluster, so blocks with the
  same version are equal.

The list of past failovers is the union of both. Values of one cluster only (a handover, the store's version) are kept.

A record counts only if it comes from a cluster of the namespace: `accepted` compares the sender with the present list
of clusters, since the arriving one says what its sender likes.
"""

from typing import TypeAlias

import msgspec
import xxhash
from msgspec.structs import replace

from fairlead.api.namespaces import Namespace, with_former_clusters
from fairlead.core.errors import FixRequest, GiveUp

# Number of latest failovers that are kept, as in Temporal's server.
FAILOVERS_MAX = 10

# Version of a failover, the cluster that was active before it, and whether it was graceful.
Origin: TypeAlias = tuple[int, str, bool]

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class DifferentNamespaces(FixRequest):
    """Two different namespaces have the same name, or the same id."""


class NotShared(GiveUp):
    """A cluster sends a namespace that is not shared with it."""


def accepted(present: Namespace | None, arriving: Namespace, *, sender: str, here: str) -> Namespace:
    """The record after merging one that `sender` has sent to the cluster `here`; `NotShared` if it has no say in it.

    A new namespace must include both clusters. In a present one, the sender must be among the present clusters.
    """
    if present is None:
        if sender not in arriving.clusters or here not in arriving.clusters:
            raise NotShared(
                f"cluster {sender!r} sends namespace {arriving.name!r} of the clusters {', '.join(arriving.clusters)}: "
                f"a new namespace must include both {sender!r} and {here!r}; add them in a cluster of the namespace"
            )
        return merge(None, arriving)
    if not present.is_global or sender not in present.clusters:
        kind = f"one of {', '.join(present.clusters)}" if present.is_global else "local"
        raise NotShared(
            f"cluster {sender!r} sends namespace {present.name!r}, which is {kind} here, not one of {sender!r}: if it "
            f"was removed from {sender!r}, remove it there as well; if {sender!r} shall have it, add it here"
        )
    if here not in arriving.clusters:
        return with_former_clusters(present, _without_here(present, arriving, here=here))
    return with_former_clusters(present, merge(present, arriving))


def told_to(cluster: str, namespace: Namespace) -> Namespace:
    """The record as it is sent to a cluster: one that was removed only learns of the clusters and the active one."""
    record = replicated(namespace)
    if cluster in namespace.clusters:
        return record
    return replace(record, description="", owner_email="", data={}, search_attributes={}, workflow_rules={})


def merge(present: Namespace | None, arriving: Namespace) -> Namespace:
    """The record after merging one from another cluster; `present` is the local record, None if there is none."""
    if present is None:
        return replicated(arriving)
    if (present.id, present.name) != (arriving.id, arriving.name):
        raise DifferentNamespaces(
            f"namespace {present.name!r} has id {present.id} here, but {arriving.name!r} has id {arriving.id} in the "
            "other cluster: rename one of them, or delete one that is not used"
        )
    merged = replace(
        present,
        is_global=present.is_global or arriving.is_global,
        failovers=united(present.failovers, arriving.failovers),
        failover_origins=united_origins(present.failover_origins, arriving.failover_origins),
    )
    if _config_order(arriving) > _config_order(present):
        merged = replace(
            merged,
            config_version=arriving.config_version,
            retention_ns=arriving.retention_ns,
            state=arriving.state,
            description=arriving.description,
            owner_email=arriving.owner_email,
            data=arriving.data,
            search_attributes=arriving.search_attributes,
            workflow_rules=arriving.workflow_rules,
            clusters=arriving.clusters,
        )
    if arriving.failover_version > present.failover_version:
        merged = replace(
            merged,
            failover_version=arriving.failover_version,
            active_cluster=arriving.active_cluster,
            # The handover was started under the older version, so it ends.
            handover_until_ns=0,
            handover_to="",
        )
    return merged


def replicated(namespace: Namespace) -> Namespace:
    """The record without the values of one cluster only: as it is sent, and as it is first stored elsewhere."""
    return replace(namespace, version=0, purge_after_ns=0, handover_until_ns=0, handover_to="", former_clusters=())


def _without_here(present: Namespace, arriving: Namespace, *, here: str) -> Namespace:
    """The record after the removal of this cluster: it keeps its own configuration, except for the list of clusters.

    At equal versions the removal wins, since the other clusters ignore this cluster's change from then on.
    """
    versions = arriving.config_version, present.config_version
    if versions[0] > versions[1] or (versions[0] == versions[1] and here in present.clusters):
        present = replace(present, clusters=arriving.clusters, config_version=arriving.config_version)
    failover = replace(
        present,
        failover_version=arriving.failover_version,
        active_cluster=arriving.active_cluster,
        failovers=arriving.failovers,
    )
    return merge(present, failover)


def united(ours: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The latest failovers of both lists; a failover in both lists gets the earlier time."""
    times: dict[int, int] = {}
    for version, time_ns in (*ours, *theirs):
        times[version] = min(time_ns, times.get(version, time_ns))
    return tuple(sorted(times.items())[-FAILOVERS_MAX:])


def united_origins(ours: tuple[Origin, ...], theirs: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """The origins of the latest failovers of both lists; two origins of one version can only differ by a race."""
    by_version: dict[int, Origin] = {}
    for origin in sorted((*ours, *theirs)):
        by_version.setdefault(origin[0], origin)
    return tuple(by_version[version] for version in sorted(by_version)[-FAILOVERS_MAX:])


def digest_of(namespaces: list[Namespace]) -> int:
    """A digest of the namespaces in their order."""
    hashed = xxhash.xxh3_64()
    for namespace in namespaces:
        hashed.update(_encode(namespace))
    return hashed.intdigest()


def _config_order(namespace: Namespace) -> tuple[int, int]:
    content = (
        namespace.retention_ns,
        namespace.state,
        namespace.description,
        namespace.owner_email,
        namespace.data,
        namespace.search_attributes,
        namespace.workflow_rules,
        namespace.clusters,
    )
    return namespace.config_version, xxhash.xxh3_64_intdigest(_encode(content))
