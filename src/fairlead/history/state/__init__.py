"""The state of a run as plain values: its facts, pending items and tasks."""

from fairlead.api.limits import DEFAULT_LIMITS, Limits
from fairlead.history.state.codec import decode, encode, without_live
from fairlead.history.state.errors import (
    BadCommand,
    BadRequest,
    EventCannotFollow,
    NotPending,
    RunClosed,
    TooManySignals,
    UnreadableState,
)
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
    "TooManySignals",
    "UnreadableState",
    "UpdateRecord",
    "WorkflowTask",
    "decode",
    "encode",
    "without_live",
]
