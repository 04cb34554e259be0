"""The tasks that history adds to matching, and the request to start such a task for a worker."""

from functools import lru_cache
from typing import NamedTuple

import msgspec
from temporalio.api.common.v1 import WorkerVersionStamp
from temporalio.api.taskqueue.v1 import PollerInfo

# Maximum number of characters that are kept of an SDK's name and of its version.
SDK_LENGTH_MAX = 100


class Matched(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Identifies the run or entity of a task."""

    namespace_id: str
    workflow_id: str
    run_id: str


class MatchedWorkflowTask(Matched, frozen=True, array_like=True, tag=True):
    """A workflow task. If `sticky`, it is in the sticky task queue, whose worker needs only the new events.

    `version` is the failover version of the scheduled event, as in `MatchedActivityTask`.
    """

    scheduled_event_id: int
    attempt: int
    sticky: bool = False
    version: int = 0


class MatchedActivityTask(Matched, frozen=True, array_like=True, tag=True):
    """An attempt of an activity. A task whose `stamp` differs from the activity's is outdated."""

    scheduled_event_id: int
    attempt: int
    stamp: int
    version: int = 0


class MatchedQuery(Matched, frozen=True, array_like=True, tag=True):
    """A query task."""

    query_id: str


class MatchedEntityTask(Matched, frozen=True, array_like=True, tag=True):
    """A task of an entity, such as a standalone activity; `name` is the operation that starts the task."""

    name: str
    data: bytes


AnyMatched = MatchedWorkflowTask | MatchedActivityTask | MatchedQuery | MatchedEntityTask


class Sdk(NamedTuple):
    """Name and version of an SDK; empty if the worker does not report them."""

    name: str = ""
    version: str = ""


NO_SDK = Sdk()


def with_sdk(worker: PollerInfo, sdk: Sdk) -> PollerInfo:
    """Put the SDK into the worker's `identity` field, which is unused: the poll has the identity in another field."""
    if sdk.name:
        worker.identity = f"{sdk.name[:SDK_LENGTH_MAX]} {sdk.version[:SDK_LENGTH_MAX]}"
    return worker


def sdk_of(worker: PollerInfo) -> Sdk:
    """The SDK that `with_sdk` put into the worker's `identity` field."""
    name, _, version = worker.identity.partition(" ")
    return Sdk(name, version)


# Number of workers whose description is kept decoded; a worker sends the same description with each poll.
_WORKERS_MAX = 1024


@lru_cache(maxsize=_WORKERS_MAX)
def worker_stamp(worker: bytes) -> WorkerVersionStamp | None:
    """The build id in an encoded `PollerInfo`, or None. Don't change the result: it is cached."""
    if not worker:
        return None
    said = PollerInfo.FromString(worker)
    version = said.worker_version_capabilities
    build_id = version.build_id or said.deployment_options.build_id
    return WorkerVersionStamp(build_id=build_id, use_versioning=version.use_versioning) if build_id else None


@lru_cache(maxsize=_WORKERS_MAX)
def _sdk_in(worker: bytes) -> Sdk:
    return sdk_of(PollerInfo.FromString(worker))


class StartMatched(msgspec.Struct, frozen=True, array_like=True):
    """Start a task for a worker. `worker` is its encoded `PollerInfo`, possibly empty."""

    task: AnyMatched
    identity: str
    worker: bytes

    @property
    def worker_version(self) -> WorkerVersionStamp | None:
        """The build id of the worker, if it reports one."""
        return worker_stamp(self.worker)

    @property
    def sdk(self) -> Sdk:
        """The worker's SDK; empty if the worker does not report it."""
        return _sdk_in(self.worker) if self.worker else NO_SDK

    @property
    def namespace_id(self) -> str:
        """The namespace id of the task's run."""
        return self.task.namespace_id

    @property
    def workflow_id(self) -> str:
        """The workflow id of the task's run."""
        return self.task.workflow_id


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMatched).decode

_NAMES: dict[type[Matched], str] = {
    MatchedWorkflowTask: "StartWorkflowTask",
    MatchedActivityTask: "StartActivityTask",
    MatchedQuery: "StartQuery",
}


def encode_matched(task: AnyMatched) -> bytes:
    """Encode a task as the payload that matching stores."""
    return _encode(task)


def read_matched(payload: bytes) -> AnyMatched:
    """Decode the payload of a task."""
    task: AnyMatched = _decode(payload)
    return task


def decode_matched(payload: bytes, identity: str, worker: bytes) -> tuple[str, StartMatched] | None:
    """The operation that starts the task, and its request; None if the task does not belong to history."""
    try:
        task = read_matched(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    name = task.name if isinstance(task, MatchedEntityTask) else _NAMES[type(task)]
    return name, StartMatched(task, identity, worker)
