"""What happens rarely, to the process as a whole: counted by name, since nothing is gained by being cheaper."""

from collections import Counter

from fairlead.telemetry.declaration import OTHER, Kind, Metric

# Of one event; label values come from few, but an error's text might slip in.
EVENT_SERIES_MAX = 100

MEMBERSHIP_CHANGED = Metric("membership_changed_count", Kind.COUNTER, (), "Times that the ring of hosts has changed.")
DYNAMIC_CONFIG_RELOADS = Metric(
    "dynamic_config_reloads", Kind.COUNTER, ("outcome",), "Times that the settings file was read again, by outcome."
)
PERSISTENCE_ERROR_WITH_TYPE = Metric(
    "persistence_error_with_type",
    Kind.COUNTER,
    ("operation", "error_type"),
    "Calls of the store that failed by its own fault, by kind: not reached, not writable, or outcome unknown.",
)
SHARD_LOST = Metric(
    "shard_closed_count", Kind.COUNTER, (), "Shards that this host has lost to another, or has to take anew."
)
TASK_ERRORS = Metric(
    "task_errors",
    Kind.COUNTER,
    ("queue", "task_type"),
    "Attempts at tasks of the shards' queues that failed; each is tried again.",
)
JOURNAL_RECORDS = Metric("journal_records", Kind.COUNTER, ("kind",), "Records that were written to the journal.")
JOURNAL_BYTES = Metric("journal_bytes", Kind.COUNTER, ("kind",), "Bytes of the journal that they became.")
JOURNAL_RECORDS_DROPPED = Metric(
    "journal_records_dropped",
    Kind.COUNTER,
    ("kind", "reason"),
    "Records that are missing in the journal: too many waited (full), they could not be written (disk), or they have "
    "no text (invalid).",
)
REPLICATION_TASKS_APPLIED = Metric(
    "replication_tasks_applied",
    Kind.COUNTER,
    ("source_cluster", "outcome"),
    "Batches and progress of other clusters that were taken in, by what became of them: created, applied, duplicate, "
    "forked, backfilled, rebuilt; gap: events before it were missing.",
)
REPLICATION_BATCHES_RESENT = Metric(
    "replication_batches_resent",
    Kind.COUNTER,
    ("source_cluster",),
    "Batches that were missing here and got from the other cluster apart from its stream.",
)
REPLICATION_TASKS_FAILED = Metric(
    "replication_tasks_failed",
    Kind.COUNTER,
    ("source_cluster",),
    "Attempts to take in what another cluster sent that failed; each is made again, or ends in a dead letter.",
)
REPLICATION_DLQ_ENQUEUED = Metric(
    "replication_dlq_enqueued",
    Kind.COUNTER,
    ("source_cluster",),
    "Tasks of other clusters that could not be taken in and are kept as dead letters.",
)
REPLICATION_TASKS_SKIPPED = Metric(
    "replication_tasks_skipped",
    Kind.COUNTER,
    ("target_cluster",),
    "Batches that can't be sent to another cluster because their runs have been deleted here meanwhile.",
)
REAPPLIED_LOST = Metric(
    "reapplied_events_lost",
    Kind.COUNTER,
    (),
    "Signals and updates of a line that has lost that no run can take: the workflow ended before its first workflow "
    "task.",
)
NAMESPACE_CONFLICTS = Metric(
    "namespace_replication_conflicts",
    Kind.COUNTER,
    ("source_cluster",),
    "Namespaces of other clusters that are not taken: their names or versions contradict what is known here.",
)
CLIENT_REDIRECTION_REQUESTS = Metric(
    "client_redirection_requests",
    Kind.COUNTER,
    ("target_cluster",),
    "Calls that were sent on to the cluster in which their namespace is active.",
)
REPLICATION_EVENTS = (
    *(REPLICATION_TASKS_APPLIED, REPLICATION_BATCHES_RESENT, REPLICATION_TASKS_FAILED),
    *(REPLICATION_DLQ_ENQUEUED, REPLICATION_TASKS_SKIPPED, REAPPLIED_LOST),
    *(NAMESPACE_CONFLICTS, CLIENT_REDIRECTION_REQUESTS),
)
EVENTS = (
    *(MEMBERSHIP_CHANGED, DYNAMIC_CONFIG_RELOADS, PERSISTENCE_ERROR_WITH_TYPE, SHARD_LOST, TASK_ERRORS),
    *(JOURNAL_RECORDS, JOURNAL_BYTES, JOURNAL_RECORDS_DROPPED),
)


class EventCounts:
    """Counts the events of one process, under each combination of label values."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Metric, Counter[tuple[str, ...]]] = {
            event: Counter() for event in (*EVENTS, *REPLICATION_EVENTS)
        }

    def count(self, event: Metric, *values: str, amount: int = 1) -> None:
        """Count an event, so many times; `values` are those of its labels, in their order."""
        if len(values) != len(event.labels):
            raise TypeError(f"{event.name} has the labels {event.labels}, and was counted with the values {values}")
        series = self._counts[event]
        if values not in series and len(series) >= EVENT_SERIES_MAX:
            values = (OTHER,) * len(values)
        series[values] += amount

    def read(self) -> dict[Metric, dict[tuple[str, ...], int]]:
        """What was counted until now; an event that has no labels is there before it first happens."""
        return {event: dict(series) or ({} if event.labels else {(): 0}) for event, series in self._counts.items()}
