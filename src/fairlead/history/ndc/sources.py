"""Checks that events come from a cluster of their namespace."""

from fairlead.api.namespaces import Namespace
from fairlead.core.errors import RetryLater
from fairlead.history.messages.ndc import ReplicatedBatch, ReplicatedProgress
from fairlead.history.shard.context import OperationContext


class NotShared(RetryLater):
    """A cluster sends events of a namespace that is not shared with it, as far as is known here."""


async def shared_namespace(context: OperationContext, replicated: ReplicatedBatch | ReplicatedProgress) -> Namespace:
    """The namespace, if the source of the events is one of its clusters; otherwise it raises `NotShared`."""
    namespaces = context.services.namespaces
    known = namespaces.cached_id(context.namespace.id) or context.namespace
    if not _includes(known, replicated.source):
        # The cluster may just have been added on another host.
        known = await namespaces.read_id(known.id)
    if not _includes(known, replicated.source):
        kind = f"of the clusters {', '.join(known.clusters)}" if known.is_global else "local"
        raise NotShared(
            f"cluster {replicated.source!r} sends events of namespace {known.name!r}, which is {kind} here: add "
            f"{replicated.source!r} to the namespace, or purge the dead letters"
        )
    return known


def _includes(namespace: Namespace, cluster: str) -> bool:
    return namespace.is_global and cluster in namespace.clusters
