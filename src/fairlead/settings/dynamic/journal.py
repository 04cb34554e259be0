"""Dynamic settings of the journal."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Duration, Int

_OURS = "Fairlead's own: no other server keeps a journal."

FLUSH_INTERVAL = Setting(
    key="journal.flushInterval",
    kind=Duration(0.01, 60.0),
    default=0.5,
    reach=Reach.GLOBAL,
    about="Time between writes of the journal to disk. A crash loses matching's records since then, but no history.",
    deviation=_OURS,
)
SEGMENT_BYTES = Setting(
    key="journal.segmentBytes",
    kind=Int(1 << 10, 1 << 30),
    default=64 << 20,
    reach=Reach.GLOBAL,
    about="Bytes at which a segment is sealed; the pipeline reads sealed segments only.",
    deviation=_OURS,
)
SEGMENT_INTERVAL = Setting(
    key="journal.segmentInterval",
    kind=Duration(0.1, 86_400.0),
    default=30.0,
    reach=Reach.GLOBAL,
    about="Age at which a segment is sealed; `fairlead pipeline stream` writes its records to tables after that.",
    deviation=_OURS,
)
QUEUE_RECORDS = Setting(
    key="journal.queueRecords",
    kind=Int(1, 10_000_000),
    default=100_000,
    reach=Reach.GLOBAL,
    about="Records of matching that wait for the disk, some 500 bytes each; more are dropped. Read once, at the start.",
    deviation=_OURS,
)
BACKLOG_INTERVAL = Setting(
    key="journal.backlogInterval",
    kind=Duration(0.1, 3600.0),
    default=10.0,
    reach=Reach.GLOBAL,
    about="Time between records of every partition's backlog.",
    deviation=_OURS,
)
