"""The stream of the audit: refusals take at most half of its queue."""

from fairlead.journal import AuditRecord
from fairlead.journal.journal import AuditJournal
from fairlead.journal.telemetry import RecordQueue


def test_refusals_never_take_the_room_of_records_of_allowed_calls() -> None:
    dropped: list[str] = []
    queue = RecordQueue(on_full=lambda: dropped.append("queue"), records_max=1_000)
    journal = AuditJournal(queue, refusals_max=500, on_full=lambda: dropped.append("refusal"))
    # The disk is stuck: nothing is taken from the queue.
    for number in range(2_000):
        journal.put_refusal(AuditRecord(time_us=number, method="m", host="h", is_allowed=False))
    assert dropped == ["refusal"] * 1_500
    for number in range(500):
        journal.put(AuditRecord(time_us=number, method="m", host="h", is_allowed=True))
    assert len(dropped) == 1_500
    assert queue.take(10_000, records_min=1).records == 1_000
