"""How two clusters' views of one namespace become one: the same in every cluster, whatever the order they come in.

A namespace has two blocks that are replaced as wholes, each by its own version, independently of the other:

- the configuration (retention, state, descriptions, data, search attributes, clusters), by `config_version`. Two
  clusters may give the same version to different changes; then the one whose content has the greater digest wins,
  everywhere.
- the failover (active cluster), by `failover_version`. A version belongs to one cluster: equal ones say the same.

The list of past failovers is the union of both. What is of one cluster only (a hand-over, the store's version) stays.
"""

import msgspec
import xxhash
from msgspec.structs import replace

from fairlead.core.errors import FixRequest
from fairlead.history.namespaces import Namespace

# As many of the latest failovers as Temporal's server keeps.
FAILOVERS_MAX = 10

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class DifferentNamespaces(FixRequest):
    """Two namespaces have one name, or one id, and are not the same."""


def merge(present: Namespace | None, arriving: Namespace) -> Namespace:
    """What a cluster has of a namespace when it hears of it from another one; `present` is what it had."""
    if present is None:
        return replicated(arriving)
    if (present.id, present.name) != (arriving.id, arriving.name):
        raise DifferentNamespaces(
            f"namespace {present.name!r} has id {present.id} here, and {arriving.name!r} has {arriving.id} in the "
            "cluster it came from: rename one of them, or delete one that is not used"
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
            clusters=arriving.clusters,
        )
    if arriving.failover_version > present.failover_version:
        merged = replace(
            merged,
            failover_version=arriving.failover_version,
            active_cluster=arriving.active_cluster,
            # Whatever was being handed over went at an older version.
            handover_until_ns=0,
            handover_to="",
        )
    return merged


def replicated(namespace: Namespace) -> Namespace:
    """A namespace without what is of one cluster only: as it is sent, and as it is when it arrives at first."""
    return replace(namespace, version=0, purge_after_ns=0, handover_until_ns=0, handover_to="")


def united(ours: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The latest failovers that either knows of; of one that both carried out, the earlier time."""
    times: dict[int, int] = {}
    for version, time_ns in (*ours, *theirs):
        times[version] = min(time_ns, times.get(version, time_ns))
    return tuple(sorted(times.items())[-FAILOVERS_MAX:])


def digest_of(namespaces: list[Namespace]) -> int:
    """The same for the same namespaces in the same order, and for hardly any others."""
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
        namespace.clusters,
    )
    return namespace.config_version, xxhash.xxh3_64_intdigest(_encode(content))
