"""The partition configuration of a task queue, and the rule for choosing between two configurations."""

from dataclasses import dataclass

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.partitions.names import PARTITIONS_MAX


class NoWritePartition(FixRequest):
    """Fewer than one write partition: no task could be added."""


class ReadBelowWrite(FixRequest):
    """Fewer read than write partitions: tasks would be written to partitions without polls."""


class AboveMaximum(FixRequest):
    """More partitions than the maximum."""


class InvalidVersion(FixRequest):
    """A version of a partition configuration is negative."""


class ConflictingConfig(GiveUp):
    """Two different configurations have the same version: two owners wrote the root's row at once."""


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The number of read and write partitions, without a version."""

    read: int
    write: int

    def __post_init__(self) -> None:
        _check_counts(self.read, self.write)


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """Partitions 0 to `read - 1` are polled, 0 to `write - 1` also get new tasks. Only `change` makes a new version."""

    version: int
    read: int
    write: int

    def __post_init__(self) -> None:
        """Raise an error unless `version >= 0` and `read >= write >= 1`, which hold in every state."""
        if self.version < 0:
            raise InvalidVersion(f"partition configuration has version {self.version}: versions start at 0")
        _check_counts(self.read, self.write)

    @property
    def counts(self) -> PartitionCounts:
        """The counts of this configuration."""
        return PartitionCounts(self.read, self.write)


def _check_counts(read: int, write: int) -> None:
    if write < 1:
        raise NoWritePartition(f"{write} write partitions: at least 1 is needed, the root")
    if read < write:
        raise ReadBelowWrite(
            f"{read} read partitions are fewer than {write} write partitions: "
            "raise read or lower write, since a partition that gets new tasks must be read"
        )
    if read > PARTITIONS_MAX:
        raise AboveMaximum(f"{read} read partitions are more than any task queue may have: {PARTITIONS_MAX}")


# Configuration of a new task queue, and of a caller that has cached none: with it, the caller asks the root.
INITIAL_CONFIG = PartitionConfig(version=0, read=1, write=1)


def accept(current: PartitionConfig, incoming: PartitionConfig) -> PartitionConfig:
    """Return the configuration with the higher version, so that pushes may be lost, repeated and reordered."""
    if incoming.version == current.version and incoming != current:
        raise ConflictingConfig(
            f"version {current.version} is known with {current.read} read and {current.write} write partitions, "
            f"and now came with {incoming.read} and {incoming.write}: kept the first; look at the root's stored row"
        )
    return incoming if incoming.version > current.version else current
