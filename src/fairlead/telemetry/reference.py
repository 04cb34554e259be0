"""The reference of all metrics, as docs/metrics.md holds it."""

from fairlead.core.partitions import STICKY
from fairlead.telemetry.buckets import LATENCY_BOUNDS_S
from fairlead.telemetry.calls import CALLS
from fairlead.telemetry.declaration import OTHER, Metric
from fairlead.telemetry.events import EVENTS, REPLICATION_EVENTS
from fairlead.telemetry.gauges import (
    CONFIGS,
    HISTORY,
    LOADED_PARTITIONS,
    PARTITION_GAUGES,
    REPLICATION,
    SCALER,
    Component,
)
from fairlead.telemetry.metrics import FOLDED_PARTITIONS, OMITTED_CONFIGS, PARTITION_SERIES_MAX
from fairlead.telemetry.partition import (
    LATENCIES,
    PARTITION_COUNTERS,
    PARTITION_SCALE_EVENTS,
    TASK_DISPATCH_LATENCY,
)

SECTIONS = {
    "Tasks, polls and matches": (*PARTITION_COUNTERS, PARTITION_SCALE_EVENTS),
    "Latencies": (*LATENCIES, TASK_DISPATCH_LATENCY),
    "Partitions at this moment": (*PARTITION_GAUGES, LOADED_PARTITIONS),
    "Partition configurations and the scaler": (*CONFIGS, *SCALER),
    "Workflows": HISTORY,
    "Replication": (*REPLICATION, *REPLICATION_EVENTS),
    "Requests": CALLS,
    "The process": (*EVENTS, FOLDED_PARTITIONS, OMITTED_CONFIGS),
}
METRICS = tuple(metric for section in SECTIONS.values() for metric in section)

_COMPONENTS = ", ".join(f"`{component}`" for component in Component)
_HEAD = f"""\
# Metrics

<!-- Written by `fairlead.telemetry.reference()`: change the declarations in src/fairlead/telemetry, then run
     .venv/bin/python -c "from fairlead.telemetry import reference; print(reference(), end='')" > docs/metrics.md -->

Every process serves them at `/metrics`, as Prometheus text or OpenMetrics, and says at `/healthz` whether it serves.
The names are those of Cadence's and Temporal's own metrics and dashboards, where these have one.

- Counters have no `_total` at the end, as Temporal's have none. OpenMetrics has no such counters, so there they are of
  unknown type; `rate()` works on both.
- `namespace`, `taskqueue`, `task_type` (`Workflow`, `Activity`, `Nexus`) and `partition` (its number, 0 is the root)
  say where. All sticky task lists of a namespace are one, `{STICKY}`. Of more than {PARTITION_SERIES_MAX:,} partitions
  the rest are counted together, as `{OTHER}`.
- A partition keeps its series when it is unloaded. Only where room is needed does the series of the one that was
  unloaded longest ago end.
- Latencies are in seconds, with the bounds {", ".join(f"{bound_s:g}" for bound_s in LATENCY_BOUNDS_S)}.
- `component` is who goes by a partition configuration: {_COMPONENTS}. Under normal conditions the values of all agree.
- Beside these there are `fairlead_build_info` and the usual `process_*` and `python_info`.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(title, metrics) for title, metrics in SECTIONS.items())])


def _section(title: str, metrics: tuple[Metric, ...]) -> str:
    rows = [_row(metric) for metric in metrics]
    return "\n".join([f"## {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|", *rows, ""])


def _row(metric: Metric) -> str:
    names = ", also ".join(f"`{name}`" for name in metric.spellings)
    labels = ", ".join(metric.labels) or "-"
    return f"| {names} | {metric.kind} | {labels} | {metric.about} |"
