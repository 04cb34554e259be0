"""The records of the journal, schema version 1: one JSON object per line, without empty fields.

A change that readers of version 1 would misunderstand needs a new version, which is part of the segments' names.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

SCHEMA_VERSION = 1


class Kind(StrEnum):
    """Content of a segment: records of matching, committed event batches, or decisions of authorization."""

    TASK = "task"
    HISTORY = "history"
    AUDIT = "audit"


class Happening(StrEnum):
    """The `kind` of a task record."""

    ADDED = "added"
    MATCHED = "matched"
    FORWARDED = "forwarded"
    ACKED = "acked"
    POLL_EMPTY = "poll_empty"
    CONFIG = "config"
    BACKLOG = "backlog"


class TaskRecord(msgspec.Struct, omit_defaults=True, gc=False):
    """Something that happened at a partition. Arguments are positional for speed: a server makes tens of thousands of
    records per second.

    `namespace_id` ends with `#<deployment>:<build id>` if the task queue belongs to one worker version; `namespace` is
    the name of the namespace, if the server knows it. `task_type` is 1 for workflow, 2 for activity, 3 for Nexus tasks.
    `wait_us` is the time since the task was first added for a match, and the wait of the poll for an empty poll.
    `age_us` is the age of the oldest task of a backlog.
    """

    time_us: int
    kind: str
    namespace_id: str
    task_list: str
    task_type: int
    partition: int
    host: str
    fairness_key: str | None = None
    weight: float | None = None
    priority: int | None = None
    pass_number: int | None = msgspec.field(default=None, name="pass")
    was_sync: bool | None = None
    was_forwarded: bool | None = None
    wait_us: int | None = None
    tasks: int | None = None
    age_us: int | None = None
    pollers: int | None = None
    read: int | None = None
    write: int | None = None
    version: int | None = None
    namespace: str | None = None


class VersionItem(msgspec.Struct, frozen=True):
    """An item of a version history: the last event of consecutive events with one version."""

    event_id: int
    version: int


class HistoryRecord(msgspec.Struct, omit_defaults=True):
    """A committed batch of events, and the state of its run after the batch.

    `status` is Temporal's WorkflowExecutionStatus. `event_types`, `event_digests` and `signals` are left out if the run
    was deleted before its batch was read. `payload` is the serialized History in base64 with
    `journal.payloads: true`; `outline` is the same without the data of payloads, with `journal.payloads: keys`.
    `namespace` is the name of the namespace, if it is known.
    """

    time_us: int
    namespace_id: str
    workflow_id: str
    run_id: str
    tree_id: str
    branch_id: str
    first_event_id: int
    last_event_id: int
    version: int
    items: list[VersionItem]
    task_id: int
    status: int
    event_types: list[int] | None = None
    event_digests: list[str] | None = None
    signals: list[str] | None = None
    new_run_id: str | None = None
    payload: str | None = None
    namespace: str | None = None
    outline: str | None = None


class AuditRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A decision of authorization: every refusal, and every call that changes what operators are responsible for.

    `principal` is the name of the caller, empty if it is not known, and `principal_kind` is its means of
    authentication: jwt, api-key, certificate, cluster, host. `object` names the object of the call, such as a workflow
    id. Records have no payloads.

    A record with `left_out` stands for that many refusals of one caller, its `object`, from `first_us` to `time_us`.
    """

    time_us: int
    method: str
    host: str
    is_allowed: bool
    principal_kind: str = ""
    principal: str = ""
    namespace: str = ""
    object: str = ""
    reason: str = ""
    peer: str = ""
    left_out: int = 0
    first_us: int = 0


_encode_lines = msgspec.json.Encoder().encode_lines


def encode_records(records: Sequence[msgspec.Struct]) -> bytes:
    """Encode the records as lines of JSON."""
    return _encode_lines(records)
