from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import (
    DrainReport,
    NotDrained,
    PartitionConfig,
    WriteNotLowered,
    accept,
    change,
    is_drained,
    lowest_read,
)

CURRENT = PartitionConfig(version=5, read=6, write=3)


@dataclass
class Owner:
    """The owner of one partition: its configuration, its appends in flight, and its stored tasks."""

    number: int
    config: PartitionConfig
    in_flight: int = 0
    stored: int = 0

    def start_append(self) -> bool:
        """Check that the partition is writable; the append relies on this check until it lands."""
        if self.number >= self.config.write:
            return False
        self.in_flight += 1
        return True

    def land(self) -> None:
        self.in_flight -= 1
        self.stored += 1


@dataclass
class Reading:
    """A report in progress: the values read so far, by name."""

    owner: Owner
    values: dict[str, int] = field(default_factory=dict)

    def read(self, name: str) -> None:
        owner = self.owner
        now = {"version": owner.config.version, "in_flight": owner.in_flight, "stored": owner.stored}
        self.values[name] = now[name]

    def report(self) -> DrainReport:
        return DrainReport(
            partition=self.owner.number,
            acknowledged_version=self.values["version"],
            appends_in_flight=self.values["in_flight"],
            stored_tasks=self.values["stored"],
        )


IN_ORDER = ("version", "in_flight", "stored")


def report_of(owner: Owner) -> DrainReport:
    reading = Reading(owner)
    for name in IN_ORDER:
        reading.read(name)
    return reading.report()


def report(partition: int = 5, *, version: int = 5, in_flight: int = 0, stored: int | None = 0) -> DrainReport:
    return DrainReport(partition, version, appends_in_flight=in_flight, stored_tasks=stored)


def test_a_partition_is_drained_only_under_all_three_conditions() -> None:
    """FL-26: the version acknowledged, no append in flight, and no task in the database."""
    assert is_drained(report(), CURRENT)
    assert not is_drained(report(version=4), CURRENT)
    assert not is_drained(report(version=6), CURRENT)
    assert not is_drained(report(in_flight=1), CURRENT)
    assert not is_drained(report(stored=1), CURRENT)


def test_a_partition_whose_stored_tasks_were_not_counted_is_not_drained() -> None:
    """FL-26: the count of stored tasks is None, not 0, until the database was read."""
    assert not is_drained(report(stored=None), CURRENT)
    assert lowest_read(CURRENT, [report(5, stored=None)]) == 6


def test_a_write_partition_is_never_drained() -> None:
    """FL-26: a write partition accepts tasks and must stay."""
    target = 2
    for partition in range(target, CURRENT.write):
        assert not is_drained(report(partition), CURRENT)
    everyone = [report(partition) for partition in range(CURRENT.read)]
    assert lowest_read(CURRENT, everyone) == CURRENT.write


def test_an_append_after_its_write_check_keeps_its_partition_until_the_task_is_dispatched() -> None:
    """FL-26: an append that passed the write check may land after the report."""
    writable = PartitionConfig(version=1, read=2, write=2)
    lowered = change(writable, read=2, write=1, maximum=9)
    owner = Owner(number=1, config=writable)
    assert owner.start_append()
    owner.config = accept(owner.config, lowered)
    assert not owner.start_append()
    assert lowest_read(lowered, [report_of(owner)]) == 2
    owner.land()
    assert lowest_read(lowered, [report_of(owner)]) == 2
    owner.stored = 0
    assert lowest_read(lowered, [report_of(owner)]) == 1


def test_an_acknowledgement_of_an_older_version_does_not_prove_a_drain() -> None:
    """The partition was writable again in between, and hasn't got the next push: it takes a task after its report."""
    lowered = PartitionConfig(version=1, read=2, write=1)
    raised = change(lowered, read=2, write=2, maximum=9)
    lowered_again = change(raised, read=2, write=1, maximum=9)
    owner = Owner(number=1, config=lowered)
    early = report_of(owner)
    assert is_drained(early, lowered)

    owner.config = accept(
        owner.config, raised
    )  # The push of version 2 arrived late; the push of version 3 is still on its way.
    assert owner.start_append()
    assert not is_drained(early, lowered_again)
    assert lowest_read(lowered_again, [early]) == 2

    owner.config = accept(owner.config, lowered_again)
    assert lowest_read(lowered_again, [early, report_of(owner)]) == 2
    owner.land()
    owner.stored = 0
    assert lowest_read(lowered_again, [early, report_of(owner)]) == 1


def interleavings(first: tuple[str, ...], second: tuple[str, ...]) -> Iterator[list[str]]:
    """All interleavings of the two sequences."""
    total = len(first) + len(second)
    for positions in combinations(range(total), len(first)):
        one, other = iter(first), iter(second)
        yield [next(one) if position in positions else next(other) for position in range(total)]


def false_drains(order: tuple[str, ...]) -> list[list[str]]:
    """The interleavings in which this order of reading reports a partition as drained although it has a stored task."""
    writable = PartitionConfig(version=1, read=2, write=2)
    lowered = change(writable, read=2, write=1, maximum=9)
    found = []
    for events in (("append", "acknowledge", "land"), ("append", "land", "acknowledge")):
        for steps in interleavings(events, order):
            owner = Owner(number=1, config=writable)
            reading = Reading(owner)
            for step in steps:
                if step == "append":
                    assert owner.start_append()
                elif step == "acknowledge":
                    owner.config = accept(owner.config, lowered)
                elif step == "land":
                    owner.land()
                else:
                    reading.read(step)
            if is_drained(reading.report(), lowered) and owner.stored:
                found.append(steps)
    return found


@pytest.mark.parametrize("order", list(permutations(IN_ORDER)))
def test_only_the_documented_order_of_reading_gives_no_false_report(order: tuple[str, ...]) -> None:
    assert (false_drains(order) == []) == (order == IN_ORDER)


def test_read_is_lowered_only_over_drained_partitions() -> None:
    said = [report(5), report(4, stored=2), report(3)]
    assert lowest_read(CURRENT, said) == 5
    assert lowest_read(CURRENT, [report(5), report(3)]) == 5
    assert lowest_read(CURRENT, [report(4), report(3)]) == 6
    assert lowest_read(CURRENT, [report(5), report(4), report(3)]) == CURRENT.write
    assert lowest_read(CURRENT, []) == 6


def test_a_repeated_old_report_does_not_override_a_report_of_a_drained_partition() -> None:
    assert lowest_read(CURRENT, [report(5, stored=9), report(5), report(5, in_flight=1)]) == 5


class World:
    """The root and one more partition, with a network that loses, repeats, delays and reorders pushes and reports.

    One partition is enough, because the rule decides for each partition separately.
    """

    def __init__(self) -> None:
        self.root = PartitionConfig(version=1, read=2, write=2)
        self.previous = self.root
        self.owner = Owner(number=1, config=self.root)
        self.readings: list[Reading] = []
        self.sent: list[DrainReport] = []

    def put(self, *, read: int, write: int) -> None:
        following = change(self.root, read=read, write=write, maximum=2, reports=self.sent)
        assert following.version == self.root.version + (following != self.root)
        if following != self.root:
            self.previous, self.root = self.root, following

    def raise_both(self) -> None:
        self.put(read=2, write=2)

    def lower_write(self) -> None:
        self.put(read=self.root.read, write=1)

    def lower_read_if_allowed(self) -> None:
        if lowest_read(self.root, self.sent) == 1:
            self.put(read=1, write=1)
        else:
            with pytest.raises((NotDrained, WriteNotLowered)):
                self.put(read=1, write=1)

    def push(self) -> None:
        self.owner.config = accept(self.owner.config, self.root)

    def push_late(self) -> None:
        self.owner.config = accept(self.owner.config, self.previous)

    def append(self) -> None:
        self.owner.start_append()

    def land(self) -> None:
        while self.owner.in_flight:
            self.owner.land()

    def dispatch(self) -> None:
        self.owner.stored = 0

    def begin_report(self) -> None:
        self.readings.append(Reading(self.owner))
        self.continue_report(self.readings[-1])

    def continue_reports(self) -> None:
        for reading in list(self.readings):
            self.continue_report(reading)

    def continue_report(self, reading: Reading) -> None:
        reading.read(IN_ORDER[len(reading.values)])
        if len(reading.values) == len(IN_ORDER):
            self.readings = [other for other in self.readings if other is not reading]
            self.sent.append(reading.report())

    def take_over(self) -> None:
        """A new owner takes the lease, which fences the old one's appends and reports, and loads the root's row."""
        self.readings.clear()
        self.owner = Owner(number=1, config=self.root, stored=self.owner.stored)

    def check(self) -> None:
        assert self.root.read >= self.root.write >= 1
        if self.root.read == 1:
            assert self.owner.stored == 0
            assert self.owner.in_flight == 0
            assert self.owner.number >= self.owner.config.write


# A step is drawn as often as it is listed, so that partitions are often removed, and the removal often interrupted.
STEPS = [
    World.raise_both,
    *[World.lower_write] * 2,
    *[World.lower_read_if_allowed] * 3,
    *[World.push] * 2,
    World.push_late,
    *[World.append] * 2,
    World.land,
    World.dispatch,
    *[World.begin_report] * 2,
    *[World.continue_reports] * 4,
    World.take_over,
]


@pytest.mark.sim
@given(st.integers(0, 2**32 - 1))
def test_no_task_is_stored_or_accepted_outside_the_read_partitions(seed: int) -> None:
    """SC-1, FL-19, FL-26."""
    source, world = Random(seed), World()
    for _ in range(500):
        source.choice(STEPS)(world)
        world.check()
