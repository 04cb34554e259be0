"""Counters of rare events of the whole process; they are looked up by name, since their cost doesn't matter."""

from collections import Counter

from fairlead.telemetry.declaration import OTHER, Kind, Metric

# Maximum number of series of one event: labels should have few values, but code may use an error's text by mistake.
EVENT_SERIES_MAX = 150

MEMBERSHIP_CHANGED = Metric("membership_changed_count", Kind.COUNTER, (), "Changes of the ring of hosts.")
DYNAMIC_CONFIG_RELOADS = Metric(
    "dynamic_config_reloads", Kind.COUNTER, ("outcome",), "Reloads of the settings file, by outcome."
)
PERSISTENCE_ERROR_WITH_TYPE = Metric(
    "persistence_error_with_type",
    Kind.COUNTER,
    ("operation", "error_type"),
    "Calls of the store that failed because of the store, by kind: not reached, not writable, or outcome unknown.",
)
SHARD_LOST = Metric(
    "shard_closed_count", Kind.COUNTER, (), "Shards that this host has lost to another host, or has to acquire again."
)
TASK_ERRORS = Metric(
    "task_errors",
    Kind.COUNTER,
    ("queue", "task_type"),
    "Failed attempts to execute tasks of the shards' queues; each is retried.",
)
ACTIVITY_STARTS_LIMITED = Metric(
    "activity_starts_limited",
    Kind.COUNTER,
    ("limit",),
    "Starts of activities that a limit on running activities delayed: the limit of the fairness key (key) or of the "
    "task queue.",
)
JOURNAL_RECORDS = Metric("journal_records", Kind.COUNTER, ("kind",), "Records written to the journal.")
JOURNAL_BYTES = Metric("journal_bytes", Kind.COUNTER, ("kind",), "Bytes written to the journal.")
JOURNAL_RECORDS_DROPPED = Metric(
    "journal_records_dropped",
    Kind.COUNTER,
    ("kind", "reason"),
    "Records missing in the journal: too many waited (full), the write failed (disk), or a string in them can't be "
    "encoded (invalid).",
)
REPLICATION_TASKS_APPLIED = Metric(
    "replication_tasks_applied",
    Kind.COUNTER,
    ("source_cluster", "outcome"),
    "Replication tasks of other clusters that were applied, by outcome: created, applied, duplicate, forked, "
    "backfilled, rebuilt; gap: earlier events were missing.",
)
REPLICATION_BATCHES_RESENT = Metric(
    "replication_batches_resent",
    Kind.COUNTER,
    ("source_cluster",),
    "Missing batches that were read from the other cluster outside its stream.",
)
REPLICATION_TASKS_FAILED = Metric(
    "replication_tasks_failed",
    Kind.COUNTER,
    ("source_cluster",),
    "Failed attempts to apply replication tasks of another cluster; each is retried or becomes a dead letter.",
)
REPLICATION_DLQ_ENQUEUED = Metric(
    "replication_dlq_enqueued",
    Kind.COUNTER,
    ("source_cluster",),
    "Replication tasks of other clusters that could not be applied and became dead letters.",
)
REPLICATION_TASKS_SKIPPED = Metric(
    "replication_tasks_skipped",
    Kind.COUNTER,
    ("target_cluster",),
    "Batches that were not sent to another cluster because their runs are already deleted here.",
)
REAPPLIED_LOST = Metric(
    "reapplied_events_lost",
    Kind.COUNTER,
    (),
    "Signals and updates of a losing branch that could not be reapplied to any run: the workflow ended before its "
    "first workflow task.",
)
NAMESPACE_CONFLICTS = Metric(
    "namespace_replication_conflicts",
    Kind.COUNTER,
    ("source_cluster",),
    "Namespaces of other clusters that are not replicated: their names or versions conflict with those known here.",
)
CLIENT_REDIRECTION_REQUESTS = Metric(
    "client_redirection_requests",
    Kind.COUNTER,
    ("target_cluster",),
    "Calls that were forwarded to the cluster in which their namespace is active.",
)
# Metrics of a supervisor (`--processes`), which adds them to the pages of its processes.
PROCESS_UP = Metric("process_up", Kind.GAUGE, ("process",), "1 if the process serves, otherwise 0.")
PROCESS_RESTARTS = Metric("process_restarts", Kind.COUNTER, ("process",), "Restarts of a process that had died.")
SUPERVISOR = (PROCESS_UP, PROCESS_RESTARTS)
HTTP_SERVICE_REQUESTS = Metric(
    "http_service_requests",
    Kind.COUNTER,
    ("operation",),
    "Requests to the HTTP API, by method; `unknown` for paths without a method.",
)
SERVICE_ERRORS_UNAUTHORIZED = Metric(
    "service_errors_unauthorized",
    Kind.COUNTER,
    ("operation",),
    "Calls that were refused because their caller is not known or may not call the method.",
)
SERVICE_ERRORS_AUTHORIZE_FAILED = Metric(
    "service_errors_authorize_failed",
    Kind.COUNTER,
    ("operation",),
    "Calls that were refused because the authorizer or the claim mapper failed.",
)
SECURITY_EVENTS = (SERVICE_ERRORS_UNAUTHORIZED, SERVICE_ERRORS_AUTHORIZE_FAILED)
REPLICATION_EVENTS = (
    *(REPLICATION_TASKS_APPLIED, REPLICATION_BATCHES_RESENT, REPLICATION_TASKS_FAILED),
    *(REPLICATION_DLQ_ENQUEUED, REPLICATION_TASKS_SKIPPED, REAPPLIED_LOST),
    *(NAMESPACE_CONFLICTS, CLIENT_REDIRECTION_REQUESTS),
)
# Events with one counter for each other cluster. The counters are created at 0 when the cluster becomes known: a
# counter that is created by its first event has no rate yet, so alerts would miss that event.
CLUSTER_EVENTS = tuple(event for event in REPLICATION_EVENTS if len(event.labels) == 1)
EVENTS = (
    *(MEMBERSHIP_CHANGED, DYNAMIC_CONFIG_RELOADS, PERSISTENCE_ERROR_WITH_TYPE, SHARD_LOST, TASK_ERRORS),
    ACTIVITY_STARTS_LIMITED,
    *(JOURNAL_RECORDS, JOURNAL_BYTES, JOURNAL_RECORDS_DROPPED),
    HTTP_SERVICE_REQUESTS,
)


class EventCounts:
    """Counts the events of one process, under each combination of label values."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Metric, Counter[tuple[str, ...]]] = {
            event: Counter() for event in (*EVENTS, *SECURITY_EVENTS, *REPLICATION_EVENTS)
        }

    def expect(self, event: Metric, *values: str) -> None:
        """Create the series at 0, before its first event."""
        self.count(event, *values, amount=0)

    def count(self, event: Metric, *values: str, amount: int = 1) -> None:
        """Count an event `amount` times; `values` are the values of its labels, in order."""
        if len(values) != len(event.labels):
            raise TypeError(f"{event.name} has the labels {event.labels}, and was counted with the values {values}")
        series = self._counts[event]
        if values not in series and len(series) >= EVENT_SERIES_MAX:
            values = (OTHER,) * len(values)
        series[values] += amount

    def read(self) -> dict[Metric, dict[tuple[str, ...], int]]:
        """Counts until now; an event without labels is reported as 0 before it first happens."""
        return {event: dict(series) or ({} if event.labels else {(): 0}) for event, series in self._counts.items()}
