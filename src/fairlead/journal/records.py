"""What a line of the journal says: schema version 1. A field without a value is left out.

A change that a reader of version 1 would misunderstand is another version, and another name of the segments.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

SCHEMA_VERSION = 1


class Kind(StrEnum):
    """What a segment holds: what matching did, or the batches of events that were committed."""

    TASK = "task"
    HISTORY = "history"


class Happening(StrEnum):
    """What a line of kind `task` tells."""

    ADDED = "added"
    MATCHED = "matched"
    FORWARDED = "forwarded"
    ACKED = "acked"
    POLL_EMPTY = "poll_empty"
    CONFIG = "config"
    BACKLOG = "backlog"


class TaskRecord(msgspec.Struct, omit_defaults=True, gc=False):
    """Something that happened at a partition. Positional where it is made: tens of thousands are, every second.

    `task_type` is 1 for workflow, 2 for activity, 3 for Nexus tasks. `wait_us` of a match is since the task was first
    added, of an empty poll how long that waited. `age_us` is of the oldest task of a backlog.
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


class VersionItem(msgspec.Struct, frozen=True):
    """The last event of those that were written in a row at one version."""

    event_id: int
    version: int


class HistoryRecord(msgspec.Struct, omit_defaults=True):
    """A batch of events that was committed, and its run after it.

    `status` is Temporal's WorkflowExecutionStatus. `event_types`, `event_digests` and `signals` are left out where the
    run was deleted before its batch was read. `payload` is the serialized History in base64, by setting.
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


_encode_lines = msgspec.json.Encoder().encode_lines


def encode_records(records: Sequence[msgspec.Struct]) -> bytes:
    """The records as lines of JSON."""
    return _encode_lines(records)
