"""Writes series as text, in both formats that Prometheus reads.

The exposition of Prometheus' library formats and escapes every label of every line again. On a host with a thousand
partitions that takes most of a second, for which requests have to wait; this module takes a seventh of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from fairlead.telemetry.buckets import LATENCY_BOUNDS_S, BucketCounts
from fairlead.telemetry.declaration import Kind, Metric

Labels = Sequence[str]


class NamespaceLabels(NamedTuple):
    """Label values of a namespace id: the name, and the worker version or an empty string."""

    namespace: str
    worker_version: str


_BOUNDS = (*(str(bound_s) for bound_s in LATENCY_BOUNDS_S), "+Inf")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Page:
    """The text of one scrape."""

    __slots__ = ("_is_openmetrics", "_label_texts", "_lines", "_namespaces")

    def __init__(self, *, is_openmetrics: bool, namespaces: Mapping[str, NamespaceLabels] | None = None) -> None:
        """`namespaces` maps namespace ids to label values; other ids are written as they are."""
        self._is_openmetrics = is_openmetrics
        self._namespaces = namespaces or {}
        self._lines: list[str] = []
        self._label_texts: dict[tuple[Labels, Labels], str] = {}

    def values(self, metric: Metric, series: Iterable[tuple[Labels, float]]) -> None:
        """Write a counter or a gauge, under each of its names."""
        written = [f"{self._braces(metric.labels, values)} {_number(value)}\n" for values, value in series]
        for name in metric.spellings:
            self._begin(name, metric)
            self._lines += [f"{name}{line}" for line in written]

    def histogram(self, metric: Metric, series: Iterable[tuple[Labels, BucketCounts]]) -> None:
        """Write a histogram; series without observations are left out, since there would be many of them."""
        name = metric.name
        self._begin(name, metric)
        for values, buckets in series:
            counts = tuple(accumulate(buckets.counts))
            if not counts[-1]:
                continue
            text = self._text(metric.labels, values)
            self._lines += [
                f'{name}_bucket{{{text},le="{bound}"}} {count}\n' for bound, count in zip(_BOUNDS, counts, strict=True)
            ]
            self._lines.append(
                f"{name}_count{{{text}}} {counts[-1]}\n{name}_sum{{{text}}} {_number(buckets.total_s)}\n"
            )

    def encode(self) -> bytes:
        """Encode the text."""
        # UTF-8 can't encode lone surrogates. No task queue's name should have one, but if one does, the scrape must not
        # fail.
        return "".join(self._lines).encode(errors="backslashreplace")

    def _begin(self, name: str, metric: Metric) -> None:
        kind = metric.kind.value
        if metric.kind is Kind.COUNTER and self._is_openmetrics:
            # OpenMetrics demands that counters end in "_total", but Temporal's dashboards expect names without it. A
            # metric of unknown type keeps its name, and Prometheus' rate() works on it too.
            kind = "unknown"
        self._lines.append(f"# HELP {name} {metric.about}\n# TYPE {name} {kind}\n")

    def _braces(self, names: Labels, values: Labels) -> str:
        return f"{{{self._text(names, values)}}}" if names else ""

    def _text(self, names: Labels, values: Labels) -> str:
        """Format labels; cached, so that they are escaped once for all metrics that have them."""
        text = self._label_texts.get((names, values))
        if text is None:
            pairs = list(zip(names, values, strict=True))
            if names and names[0] == "namespace" and (shown := self._namespaces.get(values[0])) is not None:
                pairs[0] = ("namespace", shown.namespace)
                if shown.worker_version:
                    pairs.append(("worker_version", shown.worker_version))
            text = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
            self._label_texts[names, values] = text
        return text


def _number(value: float) -> str:
    if isinstance(value, int) or math.isfinite(value):
        return str(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
