"""Series as lines of text, in both formats that Prometheus reads.

The library's own exposition spells out and escapes every label of every line again. On a host with a thousand
partitions that takes most of a second of the interpreter's time, which requests then wait for; here, a seventh of it.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from fairlead.telemetry.buckets import LATENCY_BOUNDS_S, BucketCounts
from fairlead.telemetry.declaration import Kind, Metric

Labels = Sequence[str]

_BOUNDS = (*(str(bound_s) for bound_s in LATENCY_BOUNDS_S), "+Inf")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Page:
    """What is written of a scrape so far."""

    __slots__ = ("_is_openmetrics", "_label_texts", "_lines")

    def __init__(self, *, is_openmetrics: bool) -> None:
        self._is_openmetrics = is_openmetrics
        self._lines: list[str] = []
        self._label_texts: dict[tuple[Labels, Labels], str] = {}

    def values(self, metric: Metric, series: Iterable[tuple[Labels, float]]) -> None:
        """Write a counter or a gauge, under each of its names."""
        written = [f"{self._braces(metric.labels, values)} {_number(value)}\n" for values, value in series]
        for name in metric.spellings:
            self._begin(name, metric)
            self._lines += [f"{name}{line}" for line in written]

    def histogram(self, metric: Metric, series: Iterable[tuple[Labels, BucketCounts]]) -> None:
        """Write a histogram; what was never observed is left out: there is nothing to see, in many series."""
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
        """All that was written."""
        # A lone surrogate has no place in UTF-8. No task list has one in its name, but a scrape must not fail of it.
        return "".join(self._lines).encode(errors="backslashreplace")

    def _begin(self, name: str, metric: Metric) -> None:
        kind = metric.kind.value
        if metric.kind is Kind.COUNTER and self._is_openmetrics:
            # OpenMetrics would have every counter end in "_total", and then no dashboard of Temporal's would find it.
            # A metric of unknown kind keeps its name, and Prometheus takes its rate all the same.
            kind = "unknown"
        self._lines.append(f"# HELP {name} {metric.about}\n# TYPE {name} {kind}\n")

    def _braces(self, names: Labels, values: Labels) -> str:
        return f"{{{self._text(names, values)}}}" if names else ""

    def _text(self, names: Labels, values: Labels) -> str:
        """The labels, escaped once for all metrics that have them."""
        text = self._label_texts.get((names, values))
        if text is None:
            pairs = zip(names, values, strict=True)
            text = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)
            self._label_texts[names, values] = text
        return text


def _number(value: float) -> str:
    if isinstance(value, int) or math.isfinite(value):
        return str(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
