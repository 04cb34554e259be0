"""Lists of schedules."""

from collections.abc import Mapping

from temporalio.api.common.v1 import Memo, Payload, SearchAttributes
from temporalio.api.schedule.v1 import ScheduleListEntry, ScheduleListInfo

from fairlead.api.search.names import KEYWORD
from fairlead.storage.visibility import VisibilityRow

# Search attributes that schedules have in addition to custom ones.
SCHEDULE_ID = "ScheduleId"
PAUSED = "TemporalSchedulePaused"
FOUND_BY = {SCHEDULE_ID: KEYWORD}
# Memo field in which the visibility row stores the list entry.
_INFO = "ScheduleInfo"


def entry_of(row: VisibilityRow, payloads: Mapping[str, Payload]) -> ScheduleListEntry:
    """The list entry of a schedule; `payloads` are its custom search attributes."""
    memo = Memo.FromString(row.memo)
    info = ScheduleListInfo.FromString(memo.fields[_INFO].data)
    del memo.fields[_INFO]
    entry = ScheduleListEntry(schedule_id=row.workflow_id, memo=memo, info=info)
    if payloads:
        entry.search_attributes.CopyFrom(SearchAttributes(indexed_fields=payloads))
    return entry


ARCHETYPE = "schedule"
# Example of the time suffix of workflow ids, for the validation of ids in advance.
TIME_SUFFIX_EXAMPLE = "-2009-11-10T23:00:00Z"
