"""The tasks that history hands to matching, and what it is asked when a poll takes one."""

import msgspec
from temporalio.api.common.v1 import WorkerVersionStamp
from temporalio.api.taskqueue.v1 import PollerInfo


class Matched(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Which run a task is of."""

    namespace_id: str
    workflow_id: str
    run_id: str


class MatchedWorkflowTask(Matched, frozen=True, array_like=True, tag=True):
    """A workflow task. `sticky`: it went to the worker that knows the run, which needs only what is new.

    `version` is that of the event with which it was scheduled; an activity's likewise.
    """

    scheduled_event_id: int
    attempt: int
    sticky: bool = False
    version: int = 0


class MatchedActivityTask(Matched, frozen=True, array_like=True, tag=True):
    """An attempt of an activity. `stamp` is the one it was made for."""

    scheduled_event_id: int
    attempt: int
    stamp: int
    version: int = 0


class MatchedQuery(Matched, frozen=True, array_like=True, tag=True):
    """A query that a worker answers on its own."""

    query_id: str


class MatchedEntityTask(Matched, frozen=True, array_like=True, tag=True):
    """A task of an entity, such as an activity that stands alone: `name` is the operation that starts it."""

    name: str
    data: bytes


AnyMatched = MatchedWorkflowTask | MatchedActivityTask | MatchedQuery | MatchedEntityTask


class StartMatched(msgspec.Struct, frozen=True, array_like=True):
    """Start a task for a worker: `identity` is what it calls itself, `worker` what else it says of itself."""

    task: AnyMatched
    identity: str
    worker: bytes

    @property
    def worker_version(self) -> WorkerVersionStamp | None:
        """The build that the worker is of, if it says so."""
        if not self.worker:
            return None
        said = PollerInfo.FromString(self.worker)
        version = said.worker_version_capabilities
        build_id = version.build_id or said.deployment_options.build_id
        return WorkerVersionStamp(build_id=build_id, use_versioning=version.use_versioning) if build_id else None

    @property
    def namespace_id(self) -> str:
        """Where the run is."""
        return self.task.namespace_id

    @property
    def workflow_id(self) -> str:
        """Which workflow it is of."""
        return self.task.workflow_id


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMatched).decode

_NAMES: dict[type[Matched], str] = {
    MatchedWorkflowTask: "StartWorkflowTask",
    MatchedActivityTask: "StartActivityTask",
    MatchedQuery: "StartQuery",
}


def encode_matched(task: AnyMatched) -> bytes:
    """The payload that matching keeps."""
    return _encode(task)


def read_matched(payload: bytes) -> AnyMatched:
    """The task that is in a payload."""
    task: AnyMatched = _decode(payload)
    return task


def decode_matched(payload: bytes, identity: str, worker: bytes) -> tuple[str, StartMatched]:
    """The operation that starts the task, and its request."""
    task = read_matched(payload)
    name = task.name if isinstance(task, MatchedEntityTask) else _NAMES[type(task)]
    return name, StartMatched(task, identity, worker)
