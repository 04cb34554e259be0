"""Fair backlogs: the level of a new task, the tasks in memory, and when a task may be deleted."""

from fairlead.core.fairness.backlog import FairBacklog, IdNotAbove, InvalidWrite, Share, StoredKey
from fairlead.core.fairness.buffer import ReadBuffer
from fairlead.core.fairness.buffer_limits import BufferLimits, InvalidLimits
from fairlead.core.fairness.buffer_operations import (
    InvalidPage,
    LevelNotAbove,
    Merge,
    NotUnderWay,
    Read,
    Write,
)
from fairlead.core.fairness.deletes import Delete, DeleteNotUnderWay, DeleteSchedule
from fairlead.core.fairness.ids import BlockExhausted, IdBlock, InvalidIds
from fairlead.core.fairness.level import LEVEL_ZERO, Level
from fairlead.core.fairness.passes import PassCounter
from fairlead.core.fairness.sketch import PassSketch
from fairlead.core.fairness.turns import FairTurns
from fairlead.core.fairness.weights import (
    InvalidFairnessKey,
    InvalidWeight,
    TooManyOverrides,
    WeightOverrides,
    check_key,
    check_weight,
    stride_of,
)

__all__ = [
    "LEVEL_ZERO",
    "BlockExhausted",
    "BufferLimits",
    "Delete",
    "DeleteNotUnderWay",
    "DeleteSchedule",
    "FairBacklog",
    "FairTurns",
    "IdBlock",
    "IdNotAbove",
    "InvalidFairnessKey",
    "InvalidIds",
    "InvalidLimits",
    "InvalidPage",
    "InvalidWeight",
    "InvalidWrite",
    "Level",
    "LevelNotAbove",
    "Merge",
    "NotUnderWay",
    "PassCounter",
    "PassSketch",
    "Read",
    "ReadBuffer",
    "Share",
    "StoredKey",
    "TooManyOverrides",
    "WeightOverrides",
    "Write",
    "check_key",
    "check_weight",
    "stride_of",
]
