"""Fair backlogs: at which level a task is written, which tasks are in memory, and when a task may be deleted."""

from fairlead.core.fairness.backlog import FairBacklog, IdNotAbove, Share
from fairlead.core.fairness.buffer import (
    BufferLimits,
    InvalidLimits,
    LevelNotAbove,
    Merge,
    NotUnderWay,
    Read,
    ReadBuffer,
    Write,
)
from fairlead.core.fairness.deletes import DeleteSchedule
from fairlead.core.fairness.ids import BlockExhausted, IdBlock
from fairlead.core.fairness.level import LEVEL_ZERO, Level
from fairlead.core.fairness.passes import PassCounter
from fairlead.core.fairness.sketch import PassSketch
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
    "DeleteSchedule",
    "FairBacklog",
    "IdBlock",
    "IdNotAbove",
    "InvalidFairnessKey",
    "InvalidLimits",
    "InvalidWeight",
    "Level",
    "LevelNotAbove",
    "Merge",
    "NotUnderWay",
    "PassCounter",
    "PassSketch",
    "Read",
    "ReadBuffer",
    "Share",
    "TooManyOverrides",
    "WeightOverrides",
    "Write",
    "check_key",
    "check_weight",
    "stride_of",
]
