"""The namespaces of the cluster, cached by every host."""

import asyncio
from collections.abc import Callable, Iterable

import msgspec
from temporalio.api.enums.v1 import NamespaceState
from temporalio.api.errordetails.v1 import NamespaceAlreadyExistsFailure, NamespaceInvalidStateFailure

from fairlead.aio.coalescer import Coalescer
from fairlead.aio.refresh_loop import refresh_forever
from fairlead.api.error_details import namespace_not_found, packed
from fairlead.api.errors import AlreadyExists, Exhausted, FailedPrecondition, InvalidArgument, NotFound
from fairlead.core.errors import FairleadError, GiveUp, RetryLater
from fairlead.storage.history import HistoryStore, StoredNamespace
from fairlead.storage.history_conflicts import NamespaceConflict
from fairlead.telemetry import get_log

NAME_BYTES_MAX = 1_000
# Maximum number of namespaces: every host holds all in memory and lists all at every refresh.
NAMESPACES_MAX = 10_000
PAYLOAD_BYTES_MAX = 64 * 1024
PAGE_MAX = 500
CHANGE_ATTEMPTS_MAX = 10
# Maximum number of unknown names that are remembered, and the seconds for which they are: polls with a wrong name must
# not read the store each time.
MISSED_NAMES_MAX = 1_000
MISSED_S_MAX = 1.0

REGISTERED = NamespaceState.NAMESPACE_STATE_REGISTERED
DEPRECATED = NamespaceState.NAMESPACE_STATE_DEPRECATED
DELETED = NamespaceState.NAMESPACE_STATE_DELETED
# A deprecated namespace allows everything except starting workflows.
USABLE_STATES = (REGISTERED, DEPRECATED)
_STATE_NAMES = {REGISTERED: "Registered", DEPRECATED: "Deprecated", DELETED: "Deleted"}
# Number of characters of the id that are appended to a deleted namespace's name; more if that name is in use.
_DELETED_ID_CHARACTERS = 5


_log = get_log("namespaces")


class NamespaceBusy(RetryLater):
    """Other hosts changed the namespace during each attempt."""


class UnreadableNamespace(GiveUp):
    """A stored namespace can't be decoded."""


class Namespace(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A namespace at one time, as it is stored: add fields only at the end, with a default."""

    id: str
    name: str
    retention_ns: int
    state: int = int(REGISTERED)
    description: str = ""
    owner_email: str = ""
    data: dict[str, str] = {}
    # Custom search attributes: name to the number of the `IndexedValueType`.
    search_attributes: dict[str, int] = {}
    is_global: bool = False
    active_cluster: str = "active"
    clusters: tuple[str, ...] = ("active",)
    # 0 for a local namespace.
    failover_version: int = 0
    created_ns: int = 0
    # Time from which a deleted namespace may be purged, if its runs have been deleted.
    purge_after_ns: int = 0
    # Version of the stored row; grows with every change.
    version: int = 0
    # Version of a global namespace's configuration; grows with every change except failovers, in every cluster.
    config_version: int = 0
    # During a handover: the time until which writes wait, and the target cluster. Not replicated.
    handover_until_ns: int = 0
    handover_to: str = ""
    # The latest failovers, ascending: (failover version, time in ns).
    failovers: tuple[tuple[int, int], ...] = ()
    # Serialized `WorkflowRule` messages by their ids.
    workflow_rules: dict[str, bytes] = {}
    # Clusters that were removed from a global namespace here, so that they learn of it. Not replicated.
    former_clusters: tuple[str, ...] = ()
    # For each of `failovers`: (failover version, the cluster that was active before, whether it was graceful).
    failover_origins: tuple[tuple[int, str, bool], ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Namespace).decode


class Namespaces:
    """Cache of all namespaces.

    Changes that this host makes are visible at once; changes of other hosts after at most `refresh_s`. An unknown name
    is looked up in the store, so that a new namespace can be used on all hosts at once.

    Many methods, because each kind of lookup and change has its own, over one cache.
    """

    def __init__(self, store: HistoryStore, *, clock: Callable[[], float], refresh_s: float = 5.0) -> None:
        self._store = store
        self._clock = clock
        self._refresh_s = refresh_s
        self._by_id: dict[str, Namespace] = {}
        self._by_name: dict[str, Namespace] = {}
        self._missed_s: dict[str, float] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshes = Coalescer(lambda _all: self.refresh())
        self._listeners: list[Callable[[Namespace], None]] = []
        self._gone_listeners: list[Callable[[Namespace], None]] = []

    def on_change(self, listener: Callable[[Namespace], None]) -> None:
        """Call `listener` with every namespace that is new to this host, or changed in any field."""
        self._listeners.append(listener)

    def on_gone(self, listener: Callable[[Namespace], None]) -> None:
        """Call `listener` with every namespace that the store no longer has."""
        self._gone_listeners.append(listener)

    async def open(self) -> None:
        """Load all namespaces, and start refreshing them."""
        await self.refresh()
        self._refreshing = asyncio.create_task(
            refresh_forever(self.refresh, interval_s=self._refresh_s, on_failure=self._log_failure)
        )

    async def close(self) -> None:
        """Stop refreshing."""
        await self._refreshes.close()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None

    async def find(self, name: str) -> Namespace:
        """The namespace with this name; raises an API error if it is deleted."""
        found = self._by_name.get(name)
        if found is None:
            found = await self._find_missing(name)
        if found.state == DELETED:
            raise _invalid_state(found, USABLE_STATES)
        return found

    async def find_registered(self, name: str) -> Namespace:
        """Like `find`, for starts of workflows: raises an API error also for a deprecated namespace."""
        found = self._by_name.get(name)
        if found is None:
            found = await self._find_missing(name)
        if found.state != REGISTERED:
            raise _invalid_state(found, (REGISTERED,))
        return found

    async def find_id(self, namespace_id: str) -> Namespace:
        """The namespace with an id, in any state: the runs of a deleted namespace continue until they are deleted."""
        found = self._by_id.get(namespace_id)
        return await self.read_id(namespace_id) if found is None else found

    def cached(self, name: str) -> Namespace | None:
        """A namespace by name, from the cache only."""
        return self._by_name.get(name)

    def cached_id(self, namespace_id: str) -> Namespace | None:
        """A namespace by id, from the cache only."""
        return self._by_id.get(namespace_id)

    def all(self) -> list[Namespace]:
        """All cached namespaces, including deleted ones."""
        return list(self._by_id.values())

    async def read(self, name: str) -> Namespace:
        """A namespace in any state, from the store."""
        check_name(name)
        stored = None if "\0" in name else await self._store.read_namespace(name=name)
        if stored is None:
            raise namespace_not_found(name)
        return self._keep(stored)

    async def read_id(self, namespace_id: str) -> Namespace:
        """A namespace by id, from the store."""
        stored = None if "\0" in namespace_id else await self._store.read_namespace(namespace_id=namespace_id)
        if stored is None:
            raise namespace_not_found(namespace_id)
        return self._keep(stored)

    async def list(self, *, after: str | None, limit: int) -> list[Namespace]:
        """The first `limit` namespaces with ids after `after`, ordered by id, from the store."""
        return [self._keep(stored) for stored in await self._store.list_namespaces(after=after, limit=limit)]

    async def create(self, namespace: Namespace) -> Namespace:
        """Create a namespace; its name and id must be new."""
        check_name(namespace.name)
        if "\0" in namespace.name:
            raise InvalidArgument("Namespace name contains a NUL character: remove it.")
        if len(self._by_id) >= NAMESPACES_MAX:
            raise Exhausted(f"The cluster has {len(self._by_id)} namespaces, the limit is {NAMESPACES_MAX}.")
        payload = _payload(namespace)
        try:
            await self._store.create_namespace(namespace.id, namespace.name, payload)
        except NamespaceConflict:
            raise already_exists(namespace.name) from None
        return self._keep(StoredNamespace(namespace.id, namespace.name, payload, 1))

    async def ensure(self, namespace: Namespace) -> Namespace:
        """The namespace with this name; created if it does not exist."""
        try:
            return await self.create(namespace)
        except AlreadyExists:
            return await self.read(namespace.name)

    async def update(self, name: str, change: Callable[[Namespace], Namespace]) -> Namespace:
        """Change a namespace, based on its stored state; `change` may be called several times."""
        return await self.change((await self.read(name)).id, change)

    async def change(self, namespace_id: str, change: Callable[[Namespace], Namespace]) -> Namespace:
        """Like `update`, with the namespace's id."""
        for _ in range(CHANGE_ATTEMPTS_MAX):
            present = await self.read_id(namespace_id)
            changed = change(present)
            if changed == present:
                return present
            payload = _payload(changed)
            try:
                version = await self._store.update_namespace(namespace_id, payload, expected_version=present.version)
            except NamespaceConflict:
                continue
            return self._keep(StoredNamespace(namespace_id, present.name, payload, version))
        raise NamespaceBusy(
            f"namespace {namespace_id}: concurrent changes in {CHANGE_ATTEMPTS_MAX} attempts: try again"
        )

    async def delete(self, namespace_id: str, *, purge_after_ns: int) -> Namespace:
        """Mark a namespace as deleted, and free its name. Its runs stay until `purge`."""

        def mark(namespace: Namespace) -> Namespace:
            return msgspec.structs.replace(namespace, state=int(DELETED), purge_after_ns=purge_after_ns)

        # Mark first, then rename: if the host stops between the two, the namespace is unusable, and deleting it again
        # completes the deletion.
        deleted = await self.change(namespace_id, mark)
        if f"-deleted-{namespace_id[:_DELETED_ID_CHARACTERS]}" in deleted.name:
            return deleted
        for characters in range(_DELETED_ID_CHARACTERS, len(namespace_id) + 1):
            name = f"{deleted.name}-deleted-{namespace_id[:characters]}"
            try:
                version = await self._store.rename_namespace(namespace_id, name, expected_version=deleted.version)
            except NamespaceConflict as conflict:
                if conflict.present is not None and conflict.present.namespace_id != namespace_id:
                    continue
                break
            return self._keep(StoredNamespace(namespace_id, name, _payload(deleted), version))
        raise NamespaceBusy(f"namespace {deleted.name!r} was changed during its deletion: try again")

    async def purge(self, namespace_id: str) -> None:
        """Delete the row of a deleted namespace without runs."""
        present = await self.read_id(namespace_id)
        if present.state != DELETED:
            raise InvalidArgument(f"namespace {present.name!r} is not deleted: delete it first")
        await self._store.delete_namespace(namespace_id, expected_version=present.version)
        self._note_gone(present)

    async def refresh_after_now(self) -> None:
        """Wait for a refresh that begins after this call; concurrent callers share it."""
        await self._refreshes.refresh("the store")

    async def refresh(self) -> None:
        """Read all namespaces from the store."""
        before = list(self._by_id.values())
        listed: set[str] = set()
        after: str | None = None
        while True:
            page = await self._store.list_namespaces(after=after, limit=PAGE_MAX)
            for stored in page:
                listed.add(stored.namespace_id)
                self._keep(stored)
            if len(page) < PAGE_MAX:
                break
            after = page[-1].namespace_id
        # A namespace created during the refresh is not in `before`, so it is not dropped here.
        for namespace in before:
            if namespace.id not in listed:
                self._note_gone(namespace)

    def _log_failure(self, failure: FairleadError) -> None:
        _log.warning("namespaces not refreshed", reason=str(failure))

    async def _find_missing(self, name: str) -> Namespace:
        if not name:
            raise InvalidArgument("Namespace is empty.")
        now_s = self._clock()
        if now_s - self._missed_s.get(name, -MISSED_S_MAX) < MISSED_S_MAX:
            raise namespace_not_found(name)
        try:
            return await self.read(name)
        except NotFound:
            if len(self._missed_s) >= MISSED_NAMES_MAX:
                self._missed_s.clear()
            self._missed_s[name] = now_s
            raise

    def _keep(self, stored: StoredNamespace) -> Namespace:
        present = self._by_id.get(stored.namespace_id)
        # This host may have written a newer version while the row was read.
        if present is not None and present.version >= stored.version:
            return present
        namespace = _decoded(stored)
        if present is not None and present.name != namespace.name:
            self._forget(present)
        self._by_id[namespace.id] = namespace
        self._by_name[namespace.name] = namespace
        for listener in self._listeners:
            listener(namespace)
        return namespace

    def _note_gone(self, namespace: Namespace) -> None:
        self._forget(namespace)
        for listener in self._gone_listeners:
            listener(namespace)

    def _forget(self, namespace: Namespace) -> None:
        self._by_id.pop(namespace.id, None)
        holder = self._by_name.get(namespace.name)
        if holder is not None and holder.id == namespace.id:
            del self._by_name[namespace.name]


def configured(before: Namespace, after: Namespace) -> Namespace:
    """The namespace to store after a change of its configuration; other clusters apply a higher config version."""
    if not after.is_global or after == before:
        return after
    return with_former_clusters(before, msgspec.structs.replace(after, config_version=before.config_version + 1))


def with_former_clusters(before: Namespace, after: Namespace) -> Namespace:
    """The namespace `after` a change, with all clusters that were ever removed from it and not added again."""
    left = before.clusters if before.is_global else ()
    former = {*before.former_clusters, *left}.difference(after.clusters)
    return msgspec.structs.replace(after, former_clusters=tuple(sorted(former)))


def check_name(name: str) -> None:
    """Raise an API error if the name is too long."""
    if len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidArgument("Namespace length exceeds limit.")


def already_exists(name: str) -> AlreadyExists:
    """The API error for a namespace name that is in use."""
    return AlreadyExists(f'Namespace "{name}" already exists', packed(NamespaceAlreadyExistsFailure()))


def _invalid_state(namespace: Namespace, allowed: Iterable[NamespaceState.ValueType]) -> FailedPrecondition:
    state = NamespaceState.ValueType(namespace.state)
    names = " or ".join(_STATE_NAMES[one] for one in allowed)
    failure = NamespaceInvalidStateFailure(namespace=namespace.name, state=state, allowed_states=allowed)
    message = f"Namespace has invalid state: {_STATE_NAMES[state]}. Must be {names}."
    return FailedPrecondition(message, packed(failure))


def _payload(namespace: Namespace) -> bytes:
    payload = _encode(namespace)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise InvalidArgument(
            f"Namespace {namespace.name} would have {len(payload)} bytes of description, data, search attributes and "
            f"workflow rules: the limit is {PAYLOAD_BYTES_MAX}."
        )
    return payload


def _decoded(stored: StoredNamespace) -> Namespace:
    try:
        namespace = _decode(stored.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableNamespace(
            f"namespace {stored.name!r} can't be read ({error}): if a newer release wrote it, run that release"
        ) from None
    return msgspec.structs.replace(namespace, id=stored.namespace_id, name=stored.name, version=stored.version)
