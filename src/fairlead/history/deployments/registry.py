"""The worker deployments of the cluster, as every host of it sees them."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from fairlead.core.errors import FairleadError, RetryLater
from fairlead.core.partitions import TaskList
from fairlead.history.deployments.routing import Route, RouteKey, list_of, routes_of
from fairlead.history.deployments.state import DRAINING, Deployment, VersionState, decode, encode
from fairlead.history.refusals import Refused, refused
from fairlead.history.state.versioning import Version
from fairlead.rpc import Code
from fairlead.storage.history_contract import HistoryStore, MetadataConflict, StoredMetadata
from fairlead.telemetry import get_log

T = TypeVar("T")

# Of one namespace; likewise versions of a deployment, and task queues of a version.
DEPLOYMENTS_MAX = 100
VERSIONS_MAX = 100
TASK_QUEUES_MAX = 100
REFRESH_S = 2.0
CHANGE_ATTEMPTS_MAX = 20
_PREFIX = "worker-deployment/"
_PAGE_MAX = 100

_log = get_log("deployments")


class DeploymentBusy(RetryLater):
    """Others change the deployment all the time."""


class _Row(NamedTuple):
    """A deployment as it is in the store, at a version of its row."""

    version: int
    payload: bytes
    deployment: Deployment


Rows: TypeAlias = list[_Row]


class Deployments:
    """The deployments, and the routes that follow from them.

    What this host changes it sees at once; what others change, after `refresh_s` at most. Where tasks go is decided by
    the owner of their run's shard, by what it knows at that moment.
    """

    def __init__(self, store: HistoryStore, *, clock_ns: Callable[[], int], refresh_s: float = REFRESH_S) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._refresh_s = refresh_s
        self._rows: dict[str, _Row] = {}
        self._routes: dict[RouteKey, Route] = {}
        self._refreshing: asyncio.Task[None] | None = None
        # Told of deployments with tasks that may wait in the wrong place.
        self.on_moved: Callable[[Deployment], None] = lambda _: None

    async def open(self) -> None:
        """Load all of them, and keep up with what others change."""
        await self.refresh()
        self._refreshing = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        """Know nothing new any more."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None

    # Routes

    def route(self, task_list: TaskList) -> Route | None:
        """Where new work of a task list goes; None if no deployment has it."""
        return self._routes.get(task_list) if self._routes else None

    def target(self, task_list: TaskList, workflow_id: str) -> Version | None:
        """The version that new work of a workflow goes to."""
        route = self.route(task_list)
        return None if route is None else route.target(workflow_id)

    def routed(self, task_list: TaskList, workflow_id: str) -> TaskList:
        """The task list where what has no version of its own waits."""
        return list_of(task_list, self.target(task_list, workflow_id)) if self._routes else task_list

    def has_task_queue(self, task_list: TaskList, version: Version) -> bool:
        """Whether workers of a version have polled the task list."""
        row = self._rows.get(_key(task_list.namespace_id, version.deployment))
        state = None if row is None else row.deployment.versions.get(version.build_id)
        return state is not None and (task_list.name, int(task_list.type)) in state.task_queues

    def versions_of(self, task_list: TaskList) -> list[Version]:
        """All versions whose workers have polled the task list, the newest first."""
        place = (task_list.name, int(task_list.type))
        found = [
            (state.created_ns, Version(row.deployment.name, build_id))
            for row in self._rows.values()
            if row.deployment.namespace_id == task_list.namespace_id
            for build_id, state in row.deployment.versions.items()
            if place in state.task_queues
        ]
        return [version for _, version in sorted(found, key=lambda one: one[0], reverse=True)]

    def all(self) -> list[Deployment]:
        """All that this host knows; not to be changed."""
        return [row.deployment for row in self._rows.values()]

    # Changes

    async def read(self, namespace_id: str, name: str) -> Deployment | None:
        """A deployment as the store has it now, to look at; None if there is none."""
        row = await self._read(_key(namespace_id, name))
        return None if row is None else row.deployment

    async def list(self, namespace_id: str) -> list[Deployment]:
        """Those of a namespace as the store has them now, by name."""
        prefix = f"{_PREFIX}{namespace_id}/"
        return [row.deployment for row in await self._read_all(prefix)]

    async def change(
        self, namespace_id: str, name: str, step: Callable[[Deployment | None], tuple[Deployment | None, T]]
    ) -> T:
        """Change a deployment, from what the store has now: `step` gets its own copy, and may be called several times.

        It returns what is to be stored, None to delete it, and what this returns. What is equal is not written.
        """
        key = _key(namespace_id, name)
        for _ in range(CHANGE_ATTEMPTS_MAX):
            row = await self._read(key)
            changed, result = step(None if row is None else decode(row.payload))
            try:
                await self._write(key, row, changed)
            except MetadataConflict:
                continue
            return result
        raise DeploymentBusy(f"worker deployment {name!r}: others changed it {CHANGE_ATTEMPTS_MAX} times: try again")

    async def register(self, task_list: TaskList, version: Version) -> None:
        """Take note that workers of a version poll a task list. Costs nothing but the first time."""
        if self.has_task_queue(task_list, version):
            return
        now_ns, place = self._clock_ns(), (task_list.name, int(task_list.type))
        namespace_id, name = task_list.namespace_id, version.deployment
        known = sum(row.deployment.namespace_id == namespace_id for row in self._rows.values())

        def step(deployment: Deployment | None) -> tuple[Deployment, None]:
            if deployment is None:
                if known >= DEPLOYMENTS_MAX:
                    raise _too_many(f"maximum number of Worker Deployments ({DEPLOYMENTS_MAX}) reached")
                deployment = Deployment(namespace_id, name, now_ns)
            state = add_version(deployment, version.build_id, now_ns)
            state.has_polled = True
            if place not in state.task_queues:
                if len(state.task_queues) >= TASK_QUEUES_MAX:
                    raise _too_many(
                        f"maximum number of task queues ({TASK_QUEUES_MAX}) have been registered in version"
                    )
                state.task_queues = sorted([*state.task_queues, place])
                if state.is_active:
                    # It has work from now on that went elsewhere until now.
                    note_moved(deployment, [(*place, "")], now_ns)
            return deployment, None

        await self.change(namespace_id, name, step)

    async def refresh(self) -> None:
        """Look at all of them."""
        before = dict(self._rows)
        listed: set[str] = set()
        for row in await self._read_all(_PREFIX):
            listed.add(_key(row.deployment.namespace_id, row.deployment.name))
        # Those that were created while this looked are not among the ones from before.
        for key in before.keys() - listed:
            self._rows.pop(key, None)
        self._routes = routes_of(self.all())
        for deployment in self.all():
            if deployment.moved:
                self.on_moved(deployment)

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
                    _log.warning("worker deployments not refreshed", reason=str(failure))
                is_failing = True

    async def _read(self, key: str) -> _Row | None:
        stored = await self._store.read_metadata(key)
        if stored is None:
            if self._rows.pop(key, None) is not None:
                self._routes = routes_of(self.all())
            return None
        return self._keep(stored)

    async def _read_all(self, prefix: str) -> Rows:
        found: Rows = []
        after: str | None = None
        while True:
            page = await self._store.list_metadata(prefix=prefix, after=after, limit=_PAGE_MAX)
            found += [self._keep(stored) for stored in page]
            if len(page) < _PAGE_MAX:
                return found
            after = page[-1].key

    async def _write(self, key: str, row: _Row | None, changed: Deployment | None) -> None:
        if changed is None:
            if row is not None:
                await self._store.delete_metadata(key, expected_version=row.version)
                self._rows.pop(key, None)
                self._routes = routes_of(self.all())
            return
        payload = encode(changed)
        if row is not None and payload == row.payload:
            return
        expected = 0 if row is None else row.version
        version = await self._store.write_metadata(key, payload, expected_version=expected)
        self._keep(StoredMetadata(key, payload, version))
        if changed.moved:
            self.on_moved(changed)

    def _keep(self, stored: StoredMetadata) -> _Row:
        present = self._rows.get(stored.key)
        if present is not None and present.payload == stored.payload:
            return present
        deployment = decode(stored.payload)
        # What was read may have been overtaken by what this host wrote meanwhile. One that was deleted and made again
        # counts its versions from the beginning.
        if (
            present is not None
            and present.version >= stored.version
            and present.deployment.created_ns == deployment.created_ns
        ):
            return present
        row = self._rows[stored.key] = _Row(stored.version, stored.payload, deployment)
        self._routes = routes_of(self.all())
        return row


def add_version(deployment: Deployment, build_id: str, now_ns: int) -> VersionState:
    """A version of a deployment, made if it is not there; the oldest that nobody needs makes room."""
    state = deployment.versions.get(build_id)
    if state is None:
        if len(deployment.versions) >= VERSIONS_MAX:
            idle = [one for one in deployment.versions.values() if not one.is_active and one.drainage != DRAINING]
            if not idle:
                raise _too_many(f"cannot add version, already at max versions {VERSIONS_MAX}")
            del deployment.versions[min(idle, key=lambda one: one.created_ns).build_id]
        state = deployment.versions[build_id] = VersionState(build_id, now_ns)
    return state


def note_moved(deployment: Deployment, places: "list[tuple[str, int, str]]", now_ns: int) -> None:
    """Tasks that wait in these places may belong elsewhere from now on."""
    deployment.moved = sorted({*deployment.moved, *places})
    deployment.moved_ns = now_ns


def _key(namespace_id: str, name: str) -> str:
    return f"{_PREFIX}{namespace_id}/{name}"


def _too_many(message: str) -> Refused:
    return refused(Code.RESOURCE_EXHAUSTED, message)
