"""How many partitions a task list has, and which of two configurations an observer believes."""

from dataclasses import dataclass

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.partitions.names import PARTITIONS_MAX


class NoWritePartition(FixRequest):
    """Fewer than one write partition: nobody could add a task."""


class ReadBelowWrite(FixRequest):
    """Fewer read than write partitions: tasks would be written where nobody looks."""


class AboveMaximum(FixRequest):
    """More partitions than are allowed."""


class InvalidVersion(FixRequest):
    """A version of a partition configuration is negative."""


class ConflictingConfig(GiveUp):
    """Two different configurations carry the same version: the root's row was written by two owners at once."""


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """Partitions 0 to `read - 1` are polled, 0 to `write - 1` also take new tasks; only `change` makes the next one."""

    version: int
    read: int
    write: int

    def __post_init__(self) -> None:
        """Refuse what no observer may ever see: `read >= write >= 1` holds in every state."""
        if self.version < 0:
            raise InvalidVersion(f"partition configuration has version {self.version}: versions start at 0")
        if self.write < 1:
            raise NoWritePartition(f"{self.write} write partitions: at least 1 is needed, the root")
        if self.read < self.write:
            raise ReadBelowWrite(
                f"{self.read} read partitions are fewer than {self.write} write partitions: "
                "raise read or lower write, since a partition that takes tasks must be read"
            )
        if self.read > PARTITIONS_MAX:
            raise AboveMaximum(f"{self.read} read partitions are more than any task list may have: {PARTITIONS_MAX}")


# What a task list has before anyone changed it, and what a caller assumes who knows nothing: the root answers.
INITIAL_CONFIG = PartitionConfig(version=0, read=1, write=1)


def accept(current: PartitionConfig, incoming: PartitionConfig) -> PartitionConfig:
    """Decide which of the two to believe: the higher version, so that pushes may be lost, repeated and reordered."""
    if incoming.version == current.version and incoming != current:
        raise ConflictingConfig(
            f"version {current.version} is known with {current.read} read and {current.write} write partitions, "
            f"and now came with {incoming.read} and {incoming.write}: kept the first; look at the root's stored row"
        )
    return incoming if incoming.version > current.version else current
