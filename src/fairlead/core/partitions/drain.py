"""When a partition may leave the read partitions: the drain rule.

A partition that is no longer read is where tasks are lost, so it leaves only when no task is there and none can arrive.
A `DrainReport` is the partition's own word on that, and it is true only if the owner takes its readings **in the order
of the fields**, each after the one before:

1. The version that it has accepted. From here on it refuses new tasks, if that version says so.
2. The appends in flight: those that passed the check for writability before, and have not reached the database or
   failed for certain. One whose outcome is unknown is in flight until it is known, or until a new lease fences it.
   A task that is written again under a new id counts as well.
3. The tasks in the database, *read from the database under the owner's lease*: all of them, so what has been dispatched
   is deleted first. What happens to be in memory is no substitute: a manager that was just loaded has nothing there
   and has all the tasks to come.

In any other order a report can lie: 3 before 2 misses the append that lands in between, 2 before 1 misses the one that
starts in between. In this order, and judged against the root's *current* version, "drained" stays true until the next
change of the configuration. So reports may be late, repeated or out of order: each that says "drained" suffices.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fairlead.core.partitions.config import PartitionConfig


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a partition says of itself, read in the order of the fields."""

    partition: int
    acknowledged_version: int
    appends_in_flight: int
    stored_tasks: int | None  # None until the database was asked

    @property
    def is_empty(self) -> bool:
        """Nothing is there and nothing is on its way in."""
        return self.appends_in_flight == 0 and self.stored_tasks == 0


def is_drained(report: DrainReport, config: PartitionConfig) -> bool:
    """Decide whether the report proves that its partition has no task and can get none while `config` is in force.

    `config` is the root's own. An acknowledgement of an older version proves nothing, even of one in which the
    partition was not writable: it may have been writable again in between, and may still believe that it is.
    """
    is_outside_write = report.partition >= config.write
    return is_outside_write and report.acknowledged_version == config.version and report.is_empty


def lowest_read(config: PartitionConfig, reports: Collection[DrainReport]) -> int:
    """The fewest read partitions that the reports allow: from the highest down, to the first that is not drained."""
    drained = {report.partition for report in reports if is_drained(report, config)}
    read = config.read
    # Ends at `write` at the latest: what takes new tasks is never drained.
    while read - 1 in drained:
        read -= 1
    return read
