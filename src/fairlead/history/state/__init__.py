"""The state of a run as plain values: what it is, what it waits for, what follows; and the arithmetic of retries."""

from fairlead.history.state.codec import decode, encode, without_live
from fairlead.history.state.errors import (
    BadCommand,
    BadRequest,
    Busy,
    EventCannotFollow,
    NotPending,
    RunClosed,
    UnreadableState,
)
from fairlead.history.state.limits import DEFAULT_LIMITS, Limits
from fairlead.history.state.pending import (
    ActivityProgress,
    PendingActivity,
    PendingChild,
    PendingExternal,
    PendingNexusOperation,
    PendingTimer,
    UpdateRecord,
)
from fairlead.history.state.run import LiveState, Origin, Parent, RunIdentity, RunState
from fairlead.history.state.workflow_task import TaskKind, WorkflowTask

__all__ = [
    "DEFAULT_LIMITS",
    "ActivityProgress",
    "BadCommand",
    "BadRequest",
    "Busy",
    "EventCannotFollow",
    "Limits",
    "LiveState",
    "NotPending",
    "Origin",
    "Parent",
    "PendingActivity",
    "PendingChild",
    "PendingExternal",
    "PendingNexusOperation",
    "PendingTimer",
    "RunClosed",
    "RunIdentity",
    "RunState",
    "TaskKind",
    "UnreadableState",
    "UpdateRecord",
    "WorkflowTask",
    "decode",
    "encode",
    "without_live",
]
