"""Metrics of one method of a service: requests, errors by kind, and latency."""

from typing import NamedTuple

from fairlead.telemetry.buckets import BucketCounts, Buckets
from fairlead.telemetry.declaration import CALL_LABELS, OTHER, Kind, Metric

ERROR_KINDS_MAX = 50

SERVICE_REQUESTS = Metric(
    "service_requests", Kind.COUNTER, CALL_LABELS, "Requests that were answered, including those with an error."
)
SERVICE_ERRORS = Metric("service_errors", Kind.COUNTER, CALL_LABELS, "Requests that were answered with an error.")
SERVICE_ERROR_WITH_TYPE = Metric(
    "service_error_with_type",
    Kind.COUNTER,
    (*CALL_LABELS, "error_type"),
    "Requests that were answered with an error, by its kind.",
)
SERVICE_LATENCY = Metric("service_latency", Kind.HISTOGRAM, CALL_LABELS, "Seconds until a request was answered.")
CALLS = (SERVICE_REQUESTS, SERVICE_ERRORS, SERVICE_ERROR_WITH_TYPE, SERVICE_LATENCY)


class CallCounts(NamedTuple):
    """Counts of one method until now."""

    service: str
    operation: str
    requests: int
    errors: dict[str, int]
    latency: BucketCounts


class CallMetrics:
    """Counts the calls of one method. Create it once, where the method is registered, not for every request."""

    __slots__ = ("_errors", "_latency", "_operation", "_requests", "_service")

    def __init__(self, service: str, operation: str) -> None:
        self._service = service
        self._operation = operation
        self._requests = 0
        self._errors: dict[str, int] = {}
        self._latency = Buckets()

    def answered(self, latency_s: float) -> None:
        """Count a request that was answered."""
        self._requests += 1
        self._latency.observe(latency_s)

    def failed(self, kind: str, latency_s: float) -> None:
        """Count a request that was answered with an error. `kind` is its gRPC code or its class, of which there are
        few.
        """
        self.answered(latency_s)
        if kind not in self._errors and len(self._errors) >= ERROR_KINDS_MAX:
            kind = OTHER
        self._errors[kind] = self._errors.get(kind, 0) + 1

    def read(self) -> CallCounts:
        """Counts until now."""
        return CallCounts(self._service, self._operation, self._requests, dict(self._errors), self._latency.read())
