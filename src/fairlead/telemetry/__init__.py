"""Metrics, logs and health of the process."""

from fairlead.telemetry.buckets import LATENCY_BOUNDS_S, Buckets
from fairlead.telemetry.calls import CallMetrics
from fairlead.telemetry.declaration import OTHER, Kind, Metric
from fairlead.telemetry.endpoint import MetricsEndpoint
from fairlead.telemetry.events import (
    ACTIVITY_STARTS_LIMITED,
    CLIENT_REDIRECTION_REQUESTS,
    CLUSTER_EVENTS,
    DYNAMIC_CONFIG_RELOADS,
    HTTP_SERVICE_REQUESTS,
    JOURNAL_BYTES,
    JOURNAL_RECORDS,
    JOURNAL_RECORDS_DROPPED,
    MEMBERSHIP_CHANGED,
    NAMESPACE_CONFLICTS,
    PERSISTENCE_ERROR_WITH_TYPE,
    REAPPLIED_LOST,
    REPLICATION_BATCHES_RESENT,
    REPLICATION_DLQ_ENQUEUED,
    REPLICATION_TASKS_APPLIED,
    REPLICATION_TASKS_FAILED,
    REPLICATION_TASKS_SKIPPED,
    SERVICE_ERRORS_AUTHORIZE_FAILED,
    SERVICE_ERRORS_UNAUTHORIZED,
    SHARD_LOST,
    TASK_ERRORS,
)
from fairlead.telemetry.exposition import render
from fairlead.telemetry.gauges import (
    CertificateGauges,
    Component,
    ConfigGauges,
    HistoryGauges,
    PartitionGauges,
    ReplicationGauges,
    ScalerGauges,
    Source,
)
from fairlead.telemetry.listen_errors import CannotListen, refusal
from fairlead.telemetry.logs import InvalidLogSetting, Log, LogFormat, configure_logs, get_log
from fairlead.telemetry.metrics import PARTITION_SERIES_MAX, Metrics, Snapshot
from fairlead.telemetry.partition import PartitionMetrics
from fairlead.telemetry.reference import METRICS, reference

__all__ = [
    "ACTIVITY_STARTS_LIMITED",
    "CLIENT_REDIRECTION_REQUESTS",
    "CLUSTER_EVENTS",
    "DYNAMIC_CONFIG_RELOADS",
    "HTTP_SERVICE_REQUESTS",
    "JOURNAL_BYTES",
    "JOURNAL_RECORDS",
    "JOURNAL_RECORDS_DROPPED",
    "LATENCY_BOUNDS_S",
    "MEMBERSHIP_CHANGED",
    "METRICS",
    "NAMESPACE_CONFLICTS",
    "OTHER",
    "PARTITION_SERIES_MAX",
    "PERSISTENCE_ERROR_WITH_TYPE",
    "REAPPLIED_LOST",
    "REPLICATION_BATCHES_RESENT",
    "REPLICATION_DLQ_ENQUEUED",
    "REPLICATION_TASKS_APPLIED",
    "REPLICATION_TASKS_FAILED",
    "REPLICATION_TASKS_SKIPPED",
    "SERVICE_ERRORS_AUTHORIZE_FAILED",
    "SERVICE_ERRORS_UNAUTHORIZED",
    "SHARD_LOST",
    "TASK_ERRORS",
    "Buckets",
    "CallMetrics",
    "CannotListen",
    "CertificateGauges",
    "Component",
    "ConfigGauges",
    "HistoryGauges",
    "InvalidLogSetting",
    "Kind",
    "Log",
    "LogFormat",
    "Metric",
    "Metrics",
    "MetricsEndpoint",
    "PartitionGauges",
    "PartitionMetrics",
    "ReplicationGauges",
    "ScalerGauges",
    "Snapshot",
    "Source",
    "configure_logs",
    "get_log",
    "reference",
    "refusal",
    "render",
]
