"""The server's journal for the pipeline: append-only segments that survive a crash."""

from fairlead.journal.durable import CannotRecord, DurableQueue
from fairlead.journal.journal import CannotOpenJournal, Journal, TaskJournal
from fairlead.journal.records import (
    SCHEMA_VERSION,
    AuditRecord,
    Happening,
    HistoryRecord,
    Kind,
    TaskRecord,
    VersionItem,
    encode_records,
)
from fairlead.journal.segments import (
    BadSegment,
    NoSegment,
    SegmentLabel,
    SegmentName,
    UnknownSchema,
    read_segment,
    recover,
)
from fairlead.journal.telemetry import PartitionJournal

__all__ = [
    "SCHEMA_VERSION",
    "AuditRecord",
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
    "SegmentLabel",
    "SegmentName",
    "TaskJournal",
    "TaskRecord",
    "UnknownSchema",
    "VersionItem",
    "encode_records",
    "read_segment",
    "recover",
]
