"""Reasons why a segment, an exported file or a run can't be read."""

import time
from enum import StrEnum

from fairlead.journal.frames import FRAME_REASONS, FrameFault

# Earliest plausible time of a record, in µs: 2010-01-01. No server that writes a journal is older.
TIME_US_MIN = 1_262_304_000_000_000
# Maximum seconds that a record's time may be ahead of the reader's clock: clocks of clusters may differ by hours.
TIME_AHEAD_S_MAX = 86_400.0


class Fault(StrEnum):
    """Reasons why a segment can't be read."""

    EMPTY = "empty"
    TRUNCATED = FrameFault.TRUNCATED.value
    DAMAGED = FrameFault.DAMAGED.value
    UNCHECKED = FrameFault.UNCHECKED.value
    TOO_LARGE = FrameFault.TOO_LARGE.value
    NOT_RECORDS = "not_records"
    INCOMPLETE = "incomplete"
    IMPLAUSIBLE_TIME = "implausible_time"
    OTHER_SCHEMA = "other_schema"
    NO_EXPORT = "no_export"
    CUT_EXPORT = "cut_export"
    NO_RUN = "no_run"


REASONS = {
    Fault.EMPTY: "the segment has no frame",
    **{Fault(fault.value): reason for fault, reason in FRAME_REASONS.items()},
    Fault.NOT_RECORDS: "a line is not a JSON object with the fields of the schema",
    Fault.INCOMPLETE: "a record lacks a required field, or has an invalid time",
    Fault.IMPLAUSIBLE_TIME: "a record's time is implausible: before 2010, or more than a day after it was read",
    Fault.OTHER_SCHEMA: "its schema version needs another release, for which the segment waits in quarantine",
    Fault.NO_EXPORT: "the file is not an export of histories, or it is damaged",
    Fault.CUT_EXPORT: "the file ends within a history",
    Fault.NO_RUN: "a history does not begin with the first event of a run, or has gaps",
}


class Faulty(Exception):
    """The rest of the segment can't be read."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(REASONS[fault])
        self.fault = fault


def check_times(first_us: int, last_us: int) -> None:
    """Raise `Faulty` for times that no correct clock shows: one such record would stretch every time range."""
    if not TIME_US_MIN <= first_us <= last_us <= (time.time() + TIME_AHEAD_S_MAX) * 1e6:
        raise Faulty(Fault.IMPLAUSIBLE_TIME)
