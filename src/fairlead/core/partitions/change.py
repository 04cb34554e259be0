"""Changes of a partition configuration, by hand or by the scaler. All changes go through `change`."""

from collections.abc import Collection

from fairlead.core.errors import FixRequest, RetryLater
from fairlead.core.partitions.config import AboveMaximum, PartitionConfig, PartitionCounts
from fairlead.core.partitions.drain import DrainReport, lowest_read
from fairlead.core.partitions.names import PARTITIONS_MAX


class WriteNotLowered(FixRequest):
    """A partition would stop being readable and writable in one change: a decrease needs two."""


class NotDrained(RetryLater):
    """A partition would stop being readable while it may still hold a task."""


def change(
    current: PartitionConfig,
    *,
    read: int,
    write: int,
    maximum: int,
    reports: Collection[DrainReport] = (),
    force: bool = False,
) -> PartitionConfig:
    """Return the next configuration: version + 1, or `current` if nothing changes; raise if the change is not allowed.

    An increase takes one change. A decrease takes two: first lower `write`, then, when the partitions outside it are
    drained by the rule of `drain`, lower `read`. A count above `maximum` may stay or be lowered, but not raised, so a
    maximum that was set below the present counts does not block a decrease.

    `force` is for operators only. It skips the two phases and the drain rule, and nothing else. A removed partition
    may still hold tasks, and a writer with an older configuration may still append some. No worker polls them there:
    the root has to drain the partition.
    """
    if (read, write) == (current.read, current.write):
        return current
    following = PartitionConfig(version=current.version + 1, read=read, write=write)
    _check_maximum("write", write, current.write, maximum=maximum)
    _check_maximum("read", read, current.read, maximum=maximum)
    if not force:
        _check_two_phases(current, read=read)
        _check_drained(current, read=read, reports=reports)
    return following


def approach(
    current: PartitionConfig, target: PartitionCounts, reports: Collection[DrainReport] = ()
) -> PartitionConfig:
    """Return the next configuration on the way to `target`; `current` if partitions have to be drained first.

    `write` takes its new value at once, and so does a higher `read`. A lower `read` follows in a later step, as far
    as `reports` prove that the leaving partitions are drained.
    """
    first = change(current, read=max(current.read, target.read), write=target.write, maximum=PARTITIONS_MAX)
    if first != current:
        return first
    read = max(target.read, lowest_read(current, reports))
    return change(current, read=read, write=target.write, maximum=PARTITIONS_MAX, reports=reports)


def _check_maximum(kind: str, wanted: int, current: int, *, maximum: int) -> None:
    if wanted > max(current, maximum):
        raise AboveMaximum(f"{wanted} {kind} partitions are more than the maximum of {maximum}: ask for fewer")


def _check_two_phases(current: PartitionConfig, *, read: int) -> None:
    if read < current.write:
        raise WriteNotLowered(
            f"{read} read partitions would remove partitions {read} to {current.write - 1}, "
            f"which get new tasks now: lower write to {read} first and leave read at {current.read}, "
            "then wait until they are drained, then lower read"
        )


def _check_drained(current: PartitionConfig, *, read: int, reports: Collection[DrainReport]) -> None:
    allowed = lowest_read(current, reports)
    if read < allowed:
        raise NotDrained(
            f"partition {allowed - 1} is not known to be drained at version {current.version}: "
            f"read can be lowered to {allowed} now; wait for the rest, then ask for {read} again"
        )
