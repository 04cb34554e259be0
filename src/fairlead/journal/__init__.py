"""What a server did, written down for the pipeline: append-only segments that survive a crash."""

from fairlead.journal.durable import CannotRecord, DurableQueue
from fairlead.journal.journal import CannotOpenJournal, Journal, TaskJournal
from fairlead.journal.records import (
    SCHEMA_VERSION,
    Happening,
    HistoryRecord,
    Kind,
    TaskRecord,
    VersionItem,
    encode_records,
)
from fairlead.journal.segments import BadSegment, NoSegment, SegmentName, UnknownSchema, read_segment, recover
from fairlead.journal.telemetry import PartitionJournal

__all__ = [
    "SCHEMA_VERSION",
    "BadSegment",
    "CannotOpenJournal",
    "CannotRecord",
    "DurableQueue",
    "Happening",
    "HistoryRecord",
    "Journal",
    "Kind",
    "NoSegment",
    "PartitionJournal",
    "SegmentName",
    "TaskJournal",
    "TaskRecord",
    "UnknownSchema",
    "VersionItem",
    "encode_records",
    "read_segment",
    "recover",
]
