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
    """The owner of one partition: what it believes, what it lets in, and what its table holds."""

    number: int
    config: PartitionConfig
    in_flight: int = 0
    stored: int = 0

    def start_append(self) -> bool:
        """The check for writability, on which the append relies from then on."""
        if self.number >= self.config.write:
            return False
        self.in_flight += 1
        return True

    def land(self) -> None:
        self.in_flight -= 1
        self.stored += 1


@dataclass
class Reading:
    """A report that is being made: the values that were read so far, by name."""

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


def test_drained_needs_all_that_the_design_names() -> None:
    """Design, 'Adaptive scaler': acknowledged the version, appends finished, and the database holds no task."""
    assert is_drained(report(), CURRENT)
    assert not is_drained(report(version=4), CURRENT)
    assert not is_drained(report(version=6), CURRENT)
    assert not is_drained(report(in_flight=1), CURRENT)
    assert not is_drained(report(stored=1), CURRENT)


def test_a_freshly_loaded_manager_that_has_read_nothing_is_not_drained() -> None:
    """Facts, Cadence matching §3, 'Reads': a fresh manager's hint is 0 before its first read. Ours says None."""
    assert not is_drained(report(stored=None), CURRENT)
    assert lowest_read(CURRENT, [report(5, stored=None)]) == 6


def test_a_partition_that_still_takes_writes_is_never_drained() -> None:
    """Facts, Temporal matching §3, 'Hole': ids in [target, write) accept writes and must not be cleared."""
    target = 2
    for partition in range(target, CURRENT.write):
        assert not is_drained(report(partition), CURRENT)
    everyone = [report(partition) for partition in range(CURRENT.read)]
    assert lowest_read(CURRENT, everyone) == CURRENT.write


def test_an_append_past_the_write_check_keeps_its_partition_until_it_has_landed_and_left() -> None:
    """Facts, Cadence matching §3, 'Reads': appends past the check can land after removal. Invariant 6 of its (b)."""
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


def test_an_older_acknowledgement_proves_nothing_though_the_partition_was_not_writable_in_it() -> None:
    """The partition was writable again in between, and believes that it still is: it takes a task after its report."""
    lowered = PartitionConfig(version=1, read=2, write=1)
    raised = change(lowered, read=2, write=2, maximum=9)
    lowered_again = change(raised, read=2, write=1, maximum=9)
    owner = Owner(number=1, config=lowered)
    early = report_of(owner)
    assert is_drained(early, lowered)

    owner.config = accept(owner.config, raised)  # The push of version 2 came late; that of version 3 is on its way.
    assert owner.start_append()
    assert not is_drained(early, lowered_again)
    assert lowest_read(lowered_again, [early]) == 2

    owner.config = accept(owner.config, lowered_again)
    assert lowest_read(lowered_again, [early, report_of(owner)]) == 2
    owner.land()
    owner.stored = 0
    assert lowest_read(lowered_again, [early, report_of(owner)]) == 1


def interleavings(first: tuple[str, ...], second: tuple[str, ...]) -> Iterator[list[str]]:
    """All sequences that keep the order within both."""
    total = len(first) + len(second)
    for places in combinations(range(total), len(first)):
        one, other = iter(first), iter(second)
        yield [next(one) if place in places else next(other) for place in range(total)]


def lies(order: tuple[str, ...]) -> list[list[str]]:
    """The interleavings in which a report that was read in this order calls a partition drained that gets a task."""
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
def test_only_readings_in_the_documented_order_cannot_lie(order: tuple[str, ...]) -> None:
    assert (lies(order) == []) == (order == IN_ORDER)


def test_read_goes_down_to_the_first_that_is_not_drained() -> None:
    said = [report(5), report(4, stored=2), report(3)]
    assert lowest_read(CURRENT, said) == 5
    assert lowest_read(CURRENT, [report(5), report(3)]) == 5
    assert lowest_read(CURRENT, [report(4), report(3)]) == 6
    assert lowest_read(CURRENT, [report(5), report(4), report(3)]) == CURRENT.write
    assert lowest_read(CURRENT, []) == 6


def test_a_later_repetition_of_an_earlier_report_does_not_undo_a_drained_one() -> None:
    assert lowest_read(CURRENT, [report(5, stored=9), report(5), report(5, in_flight=1)]) == 5


class World:
    """The root and one more partition, and a network that loses, repeats, delays and reorders pushes and reports.

    One partition is enough: the rule judges each by itself, and how they add up is a test of its own, above.
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
        self.go_on(self.readings[-1])

    def continue_reports(self) -> None:
        for reading in list(self.readings):
            self.go_on(reading)

    def go_on(self, reading: Reading) -> None:
        reading.read(IN_ORDER[len(reading.values)])
        if len(reading.values) == len(IN_ORDER):
            self.readings = [other for other in self.readings if other is not reading]
            self.sent.append(reading.report())

    def take_over(self) -> None:
        """The new lease fences the appends and the readings of the old owner; the new one loads the root's row."""
        self.readings.clear()
        self.owner = Owner(number=1, config=self.root, stored=self.owner.stored)

    def check(self) -> None:
        assert self.root.read >= self.root.write >= 1
        if self.root.read == 1:
            assert self.owner.stored == 0
            assert self.owner.in_flight == 0
            assert self.owner.number >= self.owner.config.write


# Each as often as it is listed, so that the way down is gone often and interrupted often.
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
def test_no_task_is_or_can_get_where_nobody_reads(seed: int) -> None:
    """Facts, Cadence matching, invariants 4, 5 and 6; Temporal matching, invariant 10."""
    source, world = Random(seed), World()
    for _ in range(500):
        source.choice(STEPS)(world)
        world.check()
