"""The worker deployments of the cluster, cached by every host."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from fairlead.aio.refresh_loop import refresh_forever
from fairlead.api.errors import Exhausted
from fairlead.api.worker_deployments.routing import Route, RouteKey, list_of, routes_of
from fairlead.api.worker_deployments.state import DRAINING, Deployment, VersionState, decode, encode
from fairlead.api.worker_versions import Version
from fairlead.core.errors import FairleadError, RetryLater
from fairlead.core.partitions import TaskQueueId
from fairlead.storage.history import HistoryStore, StoredMetadata
from fairlead.storage.history_conflicts import MetadataConflict
from fairlead.telemetry import get_log

T = TypeVar("T")

# Maximum number of deployments of a namespace, of versions of a deployment, and of task queues of a version.
DEPLOYMENTS_MAX = 100
VERSIONS_MAX = 100
TASK_QUEUES_MAX = 100
REFRESH_S = 2.0
CHANGE_ATTEMPTS_MAX = 20
_PREFIX = "worker-deployment/"
_PAGE_MAX = 100

_log = get_log("deployments")


class DeploymentBusy(RetryLater):
    """Other hosts changed the deployment during each attempt."""


class _Row(NamedTuple):
    """A stored deployment with the version of its row."""

    version: int
    payload: bytes
    deployment: Deployment


Rows: TypeAlias = list[_Row]


class Deployments:
    """Cache of the deployments, and the routes that follow from them.

    Changes that this host makes are visible at once; changes of other hosts after at most `refresh_s`. The owner of a
    run's shard routes the run's tasks by its own cached state.
    """

    def __init__(self, store: HistoryStore, *, clock_ns: Callable[[], int], refresh_s: float = REFRESH_S) -> None:
        self._store = store
        self._clock_ns = clock_ns
        self._refresh_s = refresh_s
        self._rows: dict[str, _Row] = {}
        self._routes: dict[RouteKey, Route] = {}
        self._refreshing: asyncio.Task[None] | None = None
        # Called with each deployment whose tasks may wait in a task queue of another version.
        self.on_moved: Callable[[Deployment], None] = lambda _: None

    async def open(self) -> None:
        """Load all deployments, and start refreshing them."""
        await self.refresh()
        self._refreshing = asyncio.create_task(
            refresh_forever(self.refresh, interval_s=self._refresh_s, on_failure=self._log_failure)
        )

    async def close(self) -> None:
        """Stop refreshing."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None

    # Routes

    def route(self, task_queue: TaskQueueId) -> Route | None:
        """The route for new tasks of a task queue; None if no deployment has the task queue."""
        return self._routes.get(task_queue) if self._routes else None

    def target(self, task_queue: TaskQueueId, workflow_id: str) -> Version | None:
        """The version that gets new tasks of a workflow."""
        route = self.route(task_queue)
        return None if route is None else route.target(workflow_id)

    def routed(self, task_queue: TaskQueueId, workflow_id: str) -> TaskQueueId:
        """The task queue for tasks of runs without a version."""
        return list_of(task_queue, self.target(task_queue, workflow_id)) if self._routes else task_queue

    def has_task_queue(self, task_queue: TaskQueueId, version: Version) -> bool:
        """Whether workers of a version have polled the task queue."""
        row = self._rows.get(_key(task_queue.namespace_id, version.deployment))
        state = None if row is None else row.deployment.versions.get(version.build_id)
        return state is not None and (task_queue.name, int(task_queue.type)) in state.task_queues

    def versions_of(self, task_queue: TaskQueueId) -> list[Version]:
        """All versions whose workers have polled the task queue, newest first."""
        queue_key = (task_queue.name, int(task_queue.type))
        found = [
            (state.created_ns, Version(row.deployment.name, build_id))
            for row in self._rows.values()
            if row.deployment.namespace_id == task_queue.namespace_id
            for build_id, state in row.deployment.versions.items()
            if queue_key in state.task_queues
        ]
        return [version for _, version in sorted(found, key=lambda one: one[0], reverse=True)]

    def all(self) -> list[Deployment]:
        """All cached deployments; callers must not change them."""
        return [row.deployment for row in self._rows.values()]

    # Changes

    async def read(self, namespace_id: str, name: str) -> Deployment | None:
        """Read a deployment from the store; None if it does not exist."""
        row = await self._read(_key(namespace_id, name))
        return None if row is None else row.deployment

    async def list(self, namespace_id: str) -> list[Deployment]:
        """The deployments of a namespace from the store, ordered by name."""
        prefix = f"{_PREFIX}{namespace_id}/"
        return [row.deployment for row in await self._read_all(prefix)]

    async def change(
        self, namespace_id: str, name: str, step: Callable[[Deployment | None], tuple[Deployment | None, T]]
    ) -> T:
        """Change a deployment, based on the stored state: `step` gets a copy, and may be called several times.

        `step` returns the deployment to store, None to delete it, and the result of this call. An unchanged deployment
        is not written.
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
        raise DeploymentBusy(
            f"worker deployment {name!r}: concurrent changes in {CHANGE_ATTEMPTS_MAX} attempts: try again"
        )

    async def register(self, task_queue: TaskQueueId, version: Version) -> None:
        """Record that workers of a version poll a task queue.

        Only the first call for each pair reads or writes the store.
        """
        if self.has_task_queue(task_queue, version):
            return
        now_ns, queue_key = self._clock_ns(), (task_queue.name, int(task_queue.type))
        namespace_id, name = task_queue.namespace_id, version.deployment
        known = sum(row.deployment.namespace_id == namespace_id for row in self._rows.values())

        def step(deployment: Deployment | None) -> tuple[Deployment, None]:
            if deployment is None:
                if known >= DEPLOYMENTS_MAX:
                    raise Exhausted(f"maximum number of Worker Deployments ({DEPLOYMENTS_MAX}) reached")
                deployment = Deployment(namespace_id, name, now_ns)
            state = add_version(deployment, version.build_id, now_ns)
            state.has_polled = True
            if queue_key not in state.task_queues:
                if len(state.task_queues) >= TASK_QUEUES_MAX:
                    raise Exhausted(
                        f"maximum number of task queues ({TASK_QUEUES_MAX}) have been registered in version"
                    )
                state.task_queues = sorted([*state.task_queues, queue_key])
                if state.is_active:
                    # The version now gets tasks of this task queue that other workers got before.
                    note_moved(deployment, [(*queue_key, "")], now_ns)
            return deployment, None

        await self.change(namespace_id, name, step)

    async def refresh(self) -> None:
        """Read all deployments from the store."""
        before = dict(self._rows)
        listed: set[str] = set()
        for row in await self._read_all(_PREFIX):
            listed.add(_key(row.deployment.namespace_id, row.deployment.name))
        # A deployment created during the refresh is not in `before`, so it is not dropped here.
        for key in before.keys() - listed:
            self._rows.pop(key, None)
        self._routes = routes_of(self.all())
        for deployment in self.all():
            if deployment.moved:
                self.on_moved(deployment)

    def _log_failure(self, failure: FairleadError) -> None:
        _log.warning("worker deployments not refreshed", reason=str(failure))

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
        # This host may have written a newer version during the read. A deployment that was deleted and created again
        # has another creation time, and the versions of its row begin at 1 again.
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
    """The version with this build id, added if it doesn't exist. At the limit, the oldest idle version is removed."""
    state = deployment.versions.get(build_id)
    if state is None:
        if len(deployment.versions) >= VERSIONS_MAX:
            idle = [one for one in deployment.versions.values() if not one.is_active and one.drainage != DRAINING]
            if not idle:
                raise Exhausted(f"cannot add version, already at max versions {VERSIONS_MAX}")
            del deployment.versions[min(idle, key=lambda one: one.created_ns).build_id]
        state = deployment.versions[build_id] = VersionState(build_id, now_ns)
    return state


def note_moved(deployment: Deployment, queue_keys: "list[tuple[str, int, str]]", now_ns: int) -> None:
    """Record that tasks in these task queues may belong to another version now."""
    deployment.moved = sorted({*deployment.moved, *queue_keys})
    deployment.moved_ns = now_ns


def _key(namespace_id: str, name: str) -> str:
    return f"{_PREFIX}{namespace_id}/{name}"
