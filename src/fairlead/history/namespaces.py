"""The namespaces of the cluster, as every host of it sees them."""

import asyncio
from collections.abc import Callable, Iterable

import msgspec
from temporalio.api.enums.v1 import IndexedValueType, NamespaceState
from temporalio.api.errordetails.v1 import NamespaceAlreadyExistsFailure, NamespaceInvalidStateFailure

from fairlead.cluster.turns import Turns
from fairlead.core.errors import FairleadError, GiveUp, RetryLater
from fairlead.history.refusals import Refused, invalid, namespace_not_found, refused
from fairlead.rpc import Code
from fairlead.storage.history_contract import HistoryStore, NamespaceConflict, StoredNamespace
from fairlead.telemetry import get_log

NAME_BYTES_MAX = 1_000
# All of them are held in memory, by every host, and looked through at every refresh.
NAMESPACES_MAX = 10_000
PAYLOAD_BYTES_MAX = 64 * 1024
PAGE_MAX = 500
CHANGE_ATTEMPTS_MAX = 10
# Names that were asked for and are not there: a worker that polls with a wrong name must not cost a read each time.
MISSED_NAMES_MAX = 1_000
MISSED_S_MAX = 1.0

REGISTERED = NamespaceState.NAMESPACE_STATE_REGISTERED
DEPRECATED = NamespaceState.NAMESPACE_STATE_DEPRECATED
DELETED = NamespaceState.NAMESPACE_STATE_DELETED
# Everything but to start a workflow is still allowed in a namespace that is deprecated.
USABLE_STATES = (REGISTERED, DEPRECATED)
_STATE_NAMES = {REGISTERED: "Registered", DEPRECATED: "Deprecated", DELETED: "Deleted"}
# As many characters of its id as a deleted namespace has at the end of its name, at first.
_DELETED_ID_CHARACTERS = 5

KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
KEYWORD_LIST = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST
INT = IndexedValueType.INDEXED_VALUE_TYPE_INT
DATETIME = IndexedValueType.INDEXED_VALUE_TYPE_DATETIME
BOOL = IndexedValueType.INDEXED_VALUE_TYPE_BOOL

# What every namespace has: nobody can add or remove these.
SYSTEM_SEARCH_ATTRIBUTES: dict[str, IndexedValueType.ValueType] = {
    "BatcherNamespace": KEYWORD,
    "BatcherUser": KEYWORD,
    "BinaryChecksums": KEYWORD_LIST,
    "BuildIds": KEYWORD_LIST,
    "CloseTime": DATETIME,
    "ExecutionDuration": INT,
    "ExecutionStatus": KEYWORD,
    "ExecutionTime": DATETIME,
    "HistoryLength": INT,
    "HistorySizeBytes": INT,
    "ParentRunId": KEYWORD,
    "ParentWorkflowId": KEYWORD,
    "RootRunId": KEYWORD,
    "RootWorkflowId": KEYWORD,
    "RunId": KEYWORD,
    "StartTime": DATETIME,
    "StateTransitionCount": INT,
    "TaskQueue": KEYWORD,
    "TemporalChangeVersion": KEYWORD_LIST,
    "TemporalExternalPayloadCount": INT,
    "TemporalExternalPayloadSizeBytes": INT,
    "TemporalNamespaceDivision": KEYWORD,
    "TemporalPauseInfo": KEYWORD_LIST,
    "TemporalReportedProblems": KEYWORD_LIST,
    "TemporalSchedulePaused": BOOL,
    "TemporalScheduledById": KEYWORD,
    "TemporalScheduledStartTime": DATETIME,
    "TemporalUsedWorkerDeploymentVersions": KEYWORD_LIST,
    "TemporalWorkerDeployment": KEYWORD,
    "TemporalWorkerDeploymentVersion": KEYWORD,
    "TemporalWorkflowVersioningBehavior": KEYWORD,
    "WorkflowId": KEYWORD,
    "WorkflowType": KEYWORD,
}

_log = get_log("namespaces")


class NamespaceBusy(RetryLater):
    """Others changed a namespace as often as this host tried to."""


class UnreadableNamespace(GiveUp):
    """What is stored of a namespace is not what this code wrote."""


class Namespace(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A namespace at one moment. It is stored as this: fields are added at the end only, with a default."""

    id: str
    name: str
    retention_ns: int
    state: int = int(REGISTERED)
    description: str = ""
    owner_email: str = ""
    data: dict[str, str] = {}
    # Custom ones: name to the number of its `IndexedValueType`.
    search_attributes: dict[str, int] = {}
    is_global: bool = False
    active_cluster: str = "active"
    clusters: tuple[str, ...] = ("active",)
    # 0 in a namespace that is of one cluster only.
    failover_version: int = 0
    created_ns: int = 0
    # Of a deleted one: from when on the namespace itself may go, once its runs are gone.
    purge_after_ns: int = 0
    # The store's: it grows with every change.
    version: int = 0
    # Of a global one: grows with every change of what is not the failover, in whatever cluster it is made.
    config_version: int = 0
    # Until when writes wait, and for which cluster: the namespace is being handed over. Of this cluster only.
    handover_until_ns: int = 0
    handover_to: str = ""
    # The latest failovers: the version that each gave, and when. Ascending.
    failovers: tuple[tuple[int, int], ...] = ()

    def attribute_type(self, name: str) -> int | None:
        """The number of a search attribute's `IndexedValueType`, the system's own included; None if there is none."""
        found = self.search_attributes.get(name)
        return SYSTEM_SEARCH_ATTRIBUTES.get(name) if found is None else found


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Namespace).decode


class Namespaces:
    """Finds namespaces without asking the store.

    What this host changes it sees at once; what others change, after `refresh_s` at most. A name that is not known
    here is looked up in the store, so that a new namespace can be used everywhere at once.
    """

    def __init__(self, store: HistoryStore, *, clock: Callable[[], float], refresh_s: float = 5.0) -> None:
        self._store = store
        self._clock = clock
        self._refresh_s = refresh_s
        self._by_id: dict[str, Namespace] = {}
        self._by_name: dict[str, Namespace] = {}
        self._missed_s: dict[str, float] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._looks = Turns(lambda _all: self.refresh())
        self._listeners: list[Callable[[Namespace], None]] = []

    def on_change(self, listener: Callable[[Namespace], None]) -> None:
        """Tell `listener` of every namespace that is new to this host, or changed in any field."""
        self._listeners.append(listener)

    async def open(self) -> None:
        """Load all, and keep them fresh from now on."""
        await self.refresh()
        self._refreshing = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        """Stop looking."""
        await self._looks.close()
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None

    async def find(self, name: str) -> Namespace:
        """The namespace that a request names, unless it is deleted."""
        found = self._by_name.get(name)
        if found is None:
            found = await self._find_missing(name)
        if found.state == DELETED:
            raise _invalid_state(found, USABLE_STATES)
        return found

    async def find_registered(self, name: str) -> Namespace:
        """As `find`, for what starts workflows: a deprecated namespace takes no new ones."""
        found = self._by_name.get(name)
        if found is None:
            found = await self._find_missing(name)
        if found.state != REGISTERED:
            raise _invalid_state(found, (REGISTERED,))
        return found

    async def find_id(self, namespace_id: str) -> Namespace:
        """The namespace with an id, whatever its state: what runs in it goes on until it is deleted as well."""
        found = self._by_id.get(namespace_id)
        return await self.read_id(namespace_id) if found is None else found

    def cached(self, name: str) -> Namespace | None:
        """A namespace by its name, without waiting."""
        return self._by_name.get(name)

    def cached_id(self, namespace_id: str) -> Namespace | None:
        """A namespace by its id, without waiting."""
        return self._by_id.get(namespace_id)

    def all(self) -> list[Namespace]:
        """All that this host knows, deleted ones too."""
        return list(self._by_id.values())

    async def read(self, name: str) -> Namespace:
        """A namespace in any state, as the store has it now."""
        check_name(name)
        stored = None if "\0" in name else await self._store.read_namespace(name=name)
        if stored is None:
            raise namespace_not_found(name)
        return self._keep(stored)

    async def read_id(self, namespace_id: str) -> Namespace:
        """A namespace by its id, as the store has it now."""
        stored = None if "\0" in namespace_id else await self._store.read_namespace(namespace_id=namespace_id)
        if stored is None:
            raise namespace_not_found(namespace_id)
        return self._keep(stored)

    async def list(self, *, after: str | None, limit: int) -> list[Namespace]:
        """The first of all namespaces whose id is after `after`, by id, as the store has them now."""
        return [self._keep(stored) for stored in await self._store.list_namespaces(after=after, limit=limit)]

    async def create(self, namespace: Namespace) -> Namespace:
        """Add a namespace; its name and id must be new."""
        check_name(namespace.name)
        if "\0" in namespace.name:
            raise invalid("Namespace has a character of code 0 in its name: leave it out.")
        if len(self._by_id) >= NAMESPACES_MAX:
            raise refused(
                Code.RESOURCE_EXHAUSTED, f"There are {len(self._by_id)} namespaces, the most are {NAMESPACES_MAX}."
            )
        payload = _payload(namespace)
        try:
            await self._store.create_namespace(namespace.id, namespace.name, payload)
        except NamespaceConflict:
            raise already_exists(namespace.name) from None
        return self._keep(StoredNamespace(namespace.id, namespace.name, payload, 1))

    async def ensure(self, namespace: Namespace) -> Namespace:
        """The namespace of this name; it is created if it is not there."""
        try:
            return await self.create(namespace)
        except Refused as refusal:
            if refusal.code != Code.ALREADY_EXISTS:
                raise
        return await self.read(namespace.name)

    async def update(self, name: str, change: Callable[[Namespace], Namespace]) -> Namespace:
        """Change a namespace, from what the store has now; `change` may be called several times."""
        return await self.change((await self.read(name)).id, change)

    async def change(self, namespace_id: str, change: Callable[[Namespace], Namespace]) -> Namespace:
        """As `update`, by the id."""
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
        raise NamespaceBusy(f"namespace {namespace_id}: others changed it {CHANGE_ATTEMPTS_MAX} times: try again")

    async def delete(self, namespace_id: str, *, purge_after_ns: int) -> Namespace:
        """Mark a namespace deleted, and free its name. Its runs are there until `purge`."""

        def mark(namespace: Namespace) -> Namespace:
            return msgspec.structs.replace(namespace, state=int(DELETED), purge_after_ns=purge_after_ns)

        # In this order: a host that stops in between leaves a namespace that nobody can use, and that can be deleted.
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
        raise NamespaceBusy(f"namespace {deleted.name!r} was changed while it was deleted: try again")

    async def purge(self, namespace_id: str) -> None:
        """Let a deleted namespace go for good: its runs are gone."""
        present = await self.read_id(namespace_id)
        if present.state != DELETED:
            raise invalid(f"namespace {present.name!r} is not deleted: delete it first")
        await self._store.delete_namespace(namespace_id, expected_version=present.version)
        self._forget(present)

    async def look_again(self) -> None:
        """Return after a look at all of them that was begun after this call; all who wait for one share it."""
        await self._looks.take("the store")

    async def refresh(self) -> None:
        """Look at all of them."""
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
        # Those that were created while this looked are not among the ones from before.
        for namespace in before:
            if namespace.id not in listed:
                self._forget(namespace)

    async def _refresh_forever(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(self._refresh_s)
            try:
                await self.refresh()
                is_failing = False
            except FairleadError as failure:
                # What is known stays in use.
                if not is_failing:
                    _log.warning("namespaces not refreshed", reason=str(failure))
                is_failing = True

    async def _find_missing(self, name: str) -> Namespace:
        if not name:
            raise invalid("Namespace is empty.")
        now_s = self._clock()
        if now_s - self._missed_s.get(name, -MISSED_S_MAX) < MISSED_S_MAX:
            raise namespace_not_found(name)
        try:
            return await self.read(name)
        except Refused as refusal:
            if refusal.code == Code.NOT_FOUND:
                if len(self._missed_s) >= MISSED_NAMES_MAX:
                    self._missed_s.clear()
                self._missed_s[name] = now_s
            raise

    def _keep(self, stored: StoredNamespace) -> Namespace:
        present = self._by_id.get(stored.namespace_id)
        # What was read may have been overtaken by what this host wrote meanwhile.
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

    def _forget(self, namespace: Namespace) -> None:
        self._by_id.pop(namespace.id, None)
        holder = self._by_name.get(namespace.name)
        if holder is not None and holder.id == namespace.id:
            del self._by_name[namespace.name]


def configured(before: Namespace, after: Namespace) -> Namespace:
    """What is stored of a change of the configuration: other clusters take it for newer than what was before."""
    if not after.is_global or after == before:
        return after
    return msgspec.structs.replace(after, config_version=before.config_version + 1)


def check_name(name: str) -> None:
    """Refuse a name that is longer than any namespace's."""
    if len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX:
        raise invalid("Namespace length exceeds limit.")


def already_exists(name: str) -> Refused:
    """The refusal of a name that is taken."""
    return refused(Code.ALREADY_EXISTS, f'Namespace "{name}" already exists', NamespaceAlreadyExistsFailure())


def _invalid_state(namespace: Namespace, allowed: Iterable[NamespaceState.ValueType]) -> Refused:
    state = NamespaceState.ValueType(namespace.state)
    names = " or ".join(_STATE_NAMES[one] for one in allowed)
    return refused(
        Code.FAILED_PRECONDITION,
        f"Namespace has invalid state: {_STATE_NAMES[state]}. Must be {names}.",
        NamespaceInvalidStateFailure(namespace=namespace.name, state=state, allowed_states=allowed),
    )


def _payload(namespace: Namespace) -> bytes:
    payload = _encode(namespace)
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise invalid(
            f"Namespace {namespace.name} would have {len(payload)} bytes of description, data and search attributes: "
            f"the most are {PAYLOAD_BYTES_MAX}."
        )
    return payload


def _decoded(stored: StoredNamespace) -> Namespace:
    try:
        namespace = _decode(stored.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableNamespace(
            f"namespace {stored.name!r} can't be read ({error}): is it of a newer release?"
        ) from None
    return msgspec.structs.replace(namespace, id=stored.namespace_id, name=stored.name, version=stored.version)
