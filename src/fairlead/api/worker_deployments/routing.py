"""Routing of tasks: the worker version that gets a task, and the task queue in which the task waits for it.

Each version has its own task queues, with the same names under another namespace id, which users can't choose. So a
poll reads only one task queue, and workers without a version need no special case.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo

from fairlead.api.worker_deployments.state import Deployment
from fairlead.api.worker_versions import Version
from fairlead.core.hashing import HASH_MAX, hash64
from fairlead.core.namespaces import QualifiedNamespaceId
from fairlead.core.partitions import TaskQueueId

_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
_WHOLE = 100.0

RouteKey = tuple[str, str, int]


class Route(NamedTuple):
    """The versions that get new tasks of a task queue; None means workers without a version."""

    current: Version | None = None
    ramping: Version | None = None
    percentage: float = 0.0
    revision: int = 0
    current_changed_ns: int = 0
    ramping_changed_ns: int = 0

    @property
    def has_ramping(self) -> bool:
        """Whether a version is ramping, even at 0 percent."""
        return self.ramping_changed_ns > 0

    def target(self, workflow_id: str) -> Version | None:
        """The version for a workflow; the same for each call until the route changes."""
        if self.percentage <= 0:
            return self.current
        if self.percentage >= _WHOLE or threshold(workflow_id) <= self.percentage:
            return self.ramping
        return self.current


def threshold(workflow_id: str) -> float:
    """The lowest ramp percentage at which a workflow goes to the ramping version."""
    return _WHOLE * hash64(workflow_id) / (HASH_MAX + 1)


def routes_of(deployments: Iterable[Deployment]) -> dict[RouteKey, Route]:
    """The routes of all task queues with a deployment.

    If two deployments have a task queue, the later change applies.
    """
    routes: dict[RouteKey, Route] = {}
    for deployment in deployments:
        for queue_key in _route_keys(deployment, deployment.current):
            known = routes.get(queue_key, Route())
            if deployment.current_changed_ns > known.current_changed_ns:
                routes[queue_key] = known._replace(
                    current=deployment.version(deployment.current),
                    revision=deployment.revision,
                    current_changed_ns=deployment.current_changed_ns,
                )
        if deployment.ramping is None:
            continue
        # A ramp to unversioned workers applies to the task queues of the current version.
        for queue_key in _route_keys(deployment, deployment.ramping or deployment.current):
            known = routes.get(queue_key, Route())
            if deployment.ramping_changed_ns > known.ramping_changed_ns:
                routes[queue_key] = known._replace(
                    ramping=deployment.version(deployment.ramping),
                    percentage=deployment.ramp_percentage,
                    revision=deployment.revision,
                    ramping_changed_ns=deployment.ramping_changed_ns,
                )
    return routes


def _route_keys(deployment: Deployment, build_id: str) -> Iterable[RouteKey]:
    version = deployment.versions.get(build_id)
    if version is not None:
        for name, task_type in version.task_queues:
            yield deployment.namespace_id, name, task_type


def list_of(task_queue: TaskQueueId, version: Version | None) -> TaskQueueId:
    """The task queue in which tasks wait for workers of a version."""
    if version is None:
        return task_queue
    qualified = QualifiedNamespaceId.of_version(
        task_queue.namespace_id, deployment=version.deployment, build_id=version.build_id
    )
    return task_queue._replace(namespace_id=str(qualified))


@lru_cache(maxsize=4096)
def version_of(worker: bytes) -> Version | None:
    """The version in a serialized PollerInfo; None if the worker has none."""
    if not worker:
        return None
    try:
        options = PollerInfo.FromString(worker).deployment_options
    except DecodeError:
        return None
    return version_in(options)


def version_in(options: WorkerDeploymentOptions) -> Version | None:
    """The version in a worker's deployment options; None if the worker has none."""
    if options.worker_versioning_mode != _VERSIONED or not options.deployment_name:
        return None
    return Version(options.deployment_name, options.build_id)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """In place of a worker's PollerInfo in a review's polls: the task queue and the version that are reviewed."""

    name: str
    type: int
    version: Version | None


_MARK_PREFIX = b"\xffreview:"
_encode_mark = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(Mark).decode


def encode_mark(mark: Mark) -> bytes:
    """Encode a mark for matching; its prefix distinguishes it from every worker's PollerInfo."""
    return _MARK_PREFIX + _encode_mark(mark)


def decode_mark(worker: bytes) -> Mark | None:
    """Decode the mark in a poll of the server itself; None if the poll is a worker's."""
    return _decode_mark(worker[len(_MARK_PREFIX) :]) if worker.startswith(_MARK_PREFIX) else None
