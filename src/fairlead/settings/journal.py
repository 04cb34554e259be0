"""The dynamic settings of the journal, for those processes that keep one."""

from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.kinds import Duration, Int

_OURS = "Fairlead's own: no other server keeps a journal."

FLUSH_INTERVAL = Setting(
    key="journal.flushInterval",
    kind=Duration(0.01, 60.0),
    default=0.5,
    reach=Reach.GLOBAL,
    about="How often what happened is brought to the disk. A crash loses what matching did since then, but no history.",
    deviation=_OURS,
)
SEGMENT_BYTES = Setting(
    key="journal.segmentBytes",
    kind=Int(1 << 10, 1 << 30),
    default=64 << 20,
    reach=Reach.GLOBAL,
    about="A segment is sealed, so that the pipeline reads it, when it has this many bytes.",
    deviation=_OURS,
)
SEGMENT_INTERVAL = Setting(
    key="journal.segmentInterval",
    kind=Duration(0.1, 86_400.0),
    default=60.0,
    reach=Reach.GLOBAL,
    about="Likewise, when it is this old.",
    deviation=_OURS,
)
QUEUE_RECORDS = Setting(
    key="journal.queueRecords",
    kind=Int(1, 10_000_000),
    default=100_000,
    reach=Reach.GLOBAL,
    about="Records of matching that may wait for the disk, some 500 bytes each, fixed at the start; more are dropped.",
    deviation=_OURS,
)
BACKLOG_INTERVAL = Setting(
    key="journal.backlogInterval",
    kind=Duration(0.1, 3600.0),
    default=10.0,
    reach=Reach.GLOBAL,
    about="How often the backlog of every partition is written down.",
    deviation=_OURS,
)
