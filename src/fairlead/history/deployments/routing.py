"""Where tasks go: to which version of the workers, and in which task list they wait for it.

Each version has task lists of its own, of the same names, under a namespace id that no user can name. So a poll looks
in one place only, and workers without a version work as if there were none.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

import msgspec
from google.protobuf.message import DecodeError
from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo

from fairlead.core.hashing import HASH_MAX, hash64
from fairlead.core.partitions import TaskList
from fairlead.history.deployments.state import Deployment
from fairlead.history.state.versioning import Version

_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
_WHOLE = 100.0

RouteKey = tuple[str, str, int]


class Route(NamedTuple):
    """The versions that new work of a task queue goes to; None is for workers without a version."""

    current: Version | None = None
    ramping: Version | None = None
    percentage: float = 0.0
    revision: int = 0
    current_changed_ns: int = 0
    ramping_changed_ns: int = 0

    def target(self, workflow_id: str) -> Version | None:
        """The version for a workflow: the same one whenever it is asked for, until the route changes."""
        if self.percentage <= 0:
            return self.current
        if self.percentage >= _WHOLE or threshold(workflow_id) <= self.percentage:
            return self.ramping
        return self.current


def threshold(workflow_id: str) -> float:
    """From which percentage on a workflow is among those that go to the ramping version."""
    return _WHOLE * hash64(workflow_id) / (HASH_MAX + 1)


def routes_of(deployments: Iterable[Deployment]) -> dict[RouteKey, Route]:
    """The routes of all task queues that have any. Of two deployments that claim a task queue, the later has it."""
    routes: dict[RouteKey, Route] = {}
    for deployment in deployments:
        for place in _places(deployment, deployment.current):
            known = routes.get(place, Route())
            if deployment.current_changed_ns > known.current_changed_ns:
                routes[place] = known._replace(
                    current=deployment.version(deployment.current),
                    revision=deployment.revision,
                    current_changed_ns=deployment.current_changed_ns,
                )
        if deployment.ramping is None:
            continue
        # Where it ramps to workers without a version, what is current says which task queues that is about.
        for place in _places(deployment, deployment.ramping or deployment.current):
            known = routes.get(place, Route())
            if deployment.ramping_changed_ns > known.ramping_changed_ns:
                routes[place] = known._replace(
                    ramping=deployment.version(deployment.ramping),
                    percentage=deployment.ramp_percentage,
                    revision=deployment.revision,
                    ramping_changed_ns=deployment.ramping_changed_ns,
                )
    return routes


def _places(deployment: Deployment, build_id: str) -> Iterable[RouteKey]:
    version = deployment.versions.get(build_id)
    if version is not None:
        for name, task_type in version.task_queues:
            yield deployment.namespace_id, name, task_type


def list_of(task_list: TaskList, version: Version | None) -> TaskList:
    """The task list in which tasks wait for workers of a version."""
    if version is None:
        return task_list
    suffix = f"{quote(version.deployment, safe='')}:{quote(version.build_id, safe='')}"
    return task_list._replace(namespace_id=f"{task_list.namespace_id}#{suffix}")


@lru_cache(maxsize=4096)
def version_of(worker: bytes) -> Version | None:
    """The version of a worker, from what it says of itself; None if it has none."""
    if not worker:
        return None
    try:
        options = PollerInfo.FromString(worker).deployment_options
    except DecodeError:
        return None
    return version_in(options)


def version_in(options: WorkerDeploymentOptions) -> Version | None:
    """The version that a worker says it is of; None if it has none."""
    if options.worker_versioning_mode != _VERSIONED or not options.deployment_name:
        return None
    return Version(options.deployment_name, options.build_id)


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """Whoever reviews a task list says so in place of a worker: which one it is, and for which version."""

    name: str
    type: int
    version: Version | None


_MARK_PREFIX = b"\xffreview:"
_encode_mark = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(Mark).decode


def encode_mark(mark: Mark) -> bytes:
    """What matching is given for the worker; no worker says that of itself."""
    return _MARK_PREFIX + _encode_mark(mark)


def decode_mark(worker: bytes) -> Mark | None:
    """The mark of a review; None if a worker asks."""
    return _decode_mark(worker[len(_MARK_PREFIX) :]) if worker.startswith(_MARK_PREFIX) else None
