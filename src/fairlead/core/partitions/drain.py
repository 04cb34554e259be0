"""The drain rule: when a partition may leave the read partitions.

A task in a partition that is no longer read is lost, so a partition leaves only when it has no task and can get none.
A `DrainReport` proves that only if the owner reads its values **in the order of the fields**, one after the other:

1. The configuration version that it uses. From here on it rejects new tasks, if that version makes it unwritable.
2. The appends in flight: appends that passed the check for writability earlier, and have neither reached the database
   nor certainly failed. An append with an unknown outcome is in flight until the outcome is known, or until a new lease
   fences it. A task that is written again under a new id counts as well.
3. The tasks in the database, *read from the database under the owner's lease*. Dispatched tasks are deleted first. The
   tasks in memory are no substitute: a manager that was just loaded has none in memory and all of them to come.

In any other order a report can be wrong: 3 before 2 misses an append that ends in between, 2 before 1 misses one that
begins in between. In this order, and compared with the root's *current* version, "drained" stays true until the next
change of the configuration. So reports may be late, repeated or out of order: one that says "drained" is enough.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fairlead.core.partitions.config import PartitionConfig


@dataclass(frozen=True, slots=True)
class DrainReport:
    """A partition's report on its drain, with values read in the order of the fields."""

    partition: int
    acknowledged_version: int
    appends_in_flight: int
    stored_tasks: int | None  # None until the database was read

    @property
    def is_empty(self) -> bool:
        """Whether the partition has no stored task and no append in flight."""
        return self.appends_in_flight == 0 and self.stored_tasks == 0


def is_drained(report: DrainReport, config: PartitionConfig) -> bool:
    """Decide whether the report proves that its partition has no task and can get none while `config` is in force.

    `config` is the root's own. An acknowledgement of an older version proves nothing, even of one in which the
    partition was not writable: it may have been writable again in between, and may still believe that it is.
    """
    is_outside_write = report.partition >= config.write
    return is_outside_write and report.acknowledged_version == config.version and report.is_empty


def lowest_read(config: PartitionConfig, reports: Collection[DrainReport]) -> int:
    """Return the lowest number of read partitions that the reports allow: drained partitions leave from the top."""
    drained = {report.partition for report in reports if is_drained(report, config)}
    read = config.read
    # Ends at `write` at the latest: a write partition is never drained.
    while read - 1 in drained:
        read -= 1
    return read
