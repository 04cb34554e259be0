"""Which other clusters a namespace is shared with, without telling anybody which namespaces exist."""

from collections.abc import Awaitable, Callable

from fairlead.api.errors import ApiError
from fairlead.api.namespaces import DELETED, Namespace, Namespaces


async def is_shared(namespaces: Namespaces, name: str, cluster: str) -> bool:
    """Whether the namespace with a name is global, not deleted, and includes `cluster`."""
    return await _is_shared(namespaces.cached(name), lambda: namespaces.read(name), cluster, is_usable=True)


async def is_shared_id(namespaces: Namespaces, namespace_id: str, cluster: str) -> bool:
    """Whether the namespace with an id is global, in any state, and includes `cluster`.

    If `cluster` is empty, the namespace only has to be global.
    """
    return await _is_shared(
        namespaces.cached_id(namespace_id), lambda: namespaces.read_id(namespace_id), cluster, is_usable=False
    )


async def _is_shared(
    cached: Namespace | None, read: Callable[[], Awaitable[Namespace]], cluster: str, *, is_usable: bool
) -> bool:
    if cached is not None and _includes(cached, cluster, is_usable=is_usable):
        return True
    # Also for a namespace that is cached: otherwise a refusal would take longer if there is no such namespace.
    try:
        return _includes(await read(), cluster, is_usable=is_usable)
    except ApiError:
        return False


def _includes(namespace: Namespace, cluster: str, *, is_usable: bool) -> bool:
    if not namespace.is_global or (is_usable and namespace.state == DELETED):
        return False
    return not cluster or cluster in namespace.clusters
