"""Partitions of a task list: their names, their tree, their configuration and when one may be taken away."""

from fairlead.core.partitions.change import NotDrained, WriteNotLowered, change
from fairlead.core.partitions.config import (
    INITIAL_CONFIG,
    AboveMaximum,
    ConflictingConfig,
    InvalidVersion,
    NoWritePartition,
    PartitionConfig,
    ReadBelowWrite,
    accept,
)
from fairlead.core.partitions.drain import DrainReport, is_drained, lowest_read
from fairlead.core.partitions.names import (
    NAME_CHARACTERS_MAX,
    PARTITION_NAME_CHARACTERS_MAX,
    PARTITIONS_MAX,
    RESERVED_PREFIX,
    STICKY,
    InvalidName,
    Partition,
    TaskList,
    TaskType,
    check_user_name,
    parse_partition_name,
    partition_name,
)
from fairlead.core.partitions.tree import InvalidTree, children, parent, path_to_root

__all__ = [
    "INITIAL_CONFIG",
    "NAME_CHARACTERS_MAX",
    "PARTITIONS_MAX",
    "PARTITION_NAME_CHARACTERS_MAX",
    "RESERVED_PREFIX",
    "STICKY",
    "AboveMaximum",
    "ConflictingConfig",
    "DrainReport",
    "InvalidName",
    "InvalidTree",
    "InvalidVersion",
    "NoWritePartition",
    "NotDrained",
    "Partition",
    "PartitionConfig",
    "ReadBelowWrite",
    "TaskList",
    "TaskType",
    "WriteNotLowered",
    "accept",
    "change",
    "check_user_name",
    "children",
    "is_drained",
    "lowest_read",
    "parent",
    "parse_partition_name",
    "partition_name",
    "path_to_root",
]
