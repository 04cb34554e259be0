"""Merges two clusters' records of one namespace: the result is the same in every cluster and for every order.

A namespace has two blocks that are replaced as a whole and independently, by the higher version of the block:
- the configuration (retention, state, descriptions, data, search attributes, clusters), by `config_version`. Two
  clusters may give the same version to different changes; then the one whose content has the greater digest wins,
  everywhere.
- the failover (active cluster), by `failover_version`. Each version belongs to one cluster, so blocks with the
  same version are equal.

The list of past failovers is the union of both. The values that belong to one cluster (a handover, the store's version)
are taken from the local record.
"""

import msgspec
import xxhash
from msgspec.structs import replace

from fairlead.api.namespaces import Namespace
from fairlead.core.errors import FixRequest

# Number of latest failovers that are kept, as in Temporal's server.
FAILOVERS_MAX = 10

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class DifferentNamespaces(FixRequest):
    """Two different namespaces have the same name, or the same id."""


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
    """The record as it is sent to other clusters: without the values that belong to one cluster."""
    return replace(namespace, version=0, purge_after_ns=0, handover_until_ns=0, handover_to="")


def united(ours: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The latest failovers of both lists; a failover in both lists gets the earlier time."""
    times: dict[int, int] = {}
    for version, time_ns in (*ours, *theirs):
        times[version] = min(time_ns, times.get(version, time_ns))
    return tuple(sorted(times.items())[-FAILOVERS_MAX:])


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
