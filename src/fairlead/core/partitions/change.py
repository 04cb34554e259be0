"""The one door through which a partition configuration changes, by hand or by the scaler."""

from collections.abc import Collection

from fairlead.core.errors import FixRequest, RetryLater
from fairlead.core.partitions.config import AboveMaximum, PartitionConfig
from fairlead.core.partitions.drain import DrainReport, lowest_read


class WriteNotLowered(FixRequest):
    """A partition would leave read and write at once: a decrease has two phases."""


class NotDrained(RetryLater):
    """A partition would leave read while it may still hold a task."""


def change(
    current: PartitionConfig,
    *,
    read: int,
    write: int,
    maximum: int,
    reports: Collection[DrainReport] = (),
    force: bool = False,
) -> PartitionConfig:
    """Decide the next configuration: version + 1, or `current` itself if nothing would change, or a typed refusal.

    An increase takes one change. A decrease takes two: first `write` is lowered, and then, when the partitions outside
    it are drained by the rule of `drain`, `read`. A count above `maximum` may stay or go down, but not up: so a
    maximum that was lowered under the present counts does not stop the way down.

    `force` is for an operator alone. It leaves out the two phases and the drain rule, and nothing else. What it risks:
    tasks that a removed partition holds, or that a writer with an older configuration still appends there, are not
    delivered until `read` includes it again.
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


def _check_maximum(kind: str, wanted: int, current: int, *, maximum: int) -> None:
    if wanted > max(current, maximum):
        raise AboveMaximum(f"{wanted} {kind} partitions are more than the maximum of {maximum}: ask for fewer")


def _check_two_phases(current: PartitionConfig, *, read: int) -> None:
    if read < current.write:
        raise WriteNotLowered(
            f"{read} read partitions would take away partitions {read} to {current.write - 1}, "
            f"which take new tasks now: lower write to {read} first and leave read at {current.read}, "
            "then wait until they are drained, then lower read"
        )


def _check_drained(current: PartitionConfig, *, read: int, reports: Collection[DrainReport]) -> None:
    allowed = lowest_read(current, reports)
    if read < allowed:
        raise NotDrained(
            f"partition {allowed - 1} is not known to be drained at version {current.version}: "
            f"read can be lowered to {allowed} now; wait for the rest, then ask for {read} again"
        )
