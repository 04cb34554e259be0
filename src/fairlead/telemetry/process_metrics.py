"""Metrics of the process itself, from Prometheus' client library."""

from collections.abc import Callable, Iterable

from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import InfoMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE_TEXT
from prometheus_client.exposition import gzip_accepted
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from fairlead import __version__

__all__ = ["CONTENT_TYPE_OPENMETRICS", "CONTENT_TYPE_TEXT", "gzip_accepted", "render_process"]


class _Process:
    """The library's metrics of the process, and the version of Fairlead."""

    def __init__(self) -> None:
        self._collectors = (ProcessCollector(registry=None), PlatformCollector(registry=None))

    def collect(self) -> Iterable[Family]:
        yield InfoMetricFamily("fairlead_build", "Version of the running server.", {"version": __version__})
        for collector in self._collectors:
            yield from collector.collect()


_PROCESS = _Process()
# Typed here: the library has no types for this function.
_openmetrics: Callable[[_Process], bytes] = generate_openmetrics


def render_process(*, is_openmetrics: bool) -> bytes:
    """Render the metrics of this process as OpenMetrics or as Prometheus text."""
    return _openmetrics(_PROCESS) if is_openmetrics else generate_latest(_PROCESS)
