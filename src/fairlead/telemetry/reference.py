"""Generates the reference of all metrics, docs/metrics.md."""

from fairlead.core.namespaces import UNREGISTERED
from fairlead.core.partitions import STICKY
from fairlead.telemetry.buckets import LATENCY_BOUNDS_S
from fairlead.telemetry.calls import CALLS
from fairlead.telemetry.declaration import OTHER, Metric
from fairlead.telemetry.events import EVENTS, REPLICATION_EVENTS, SECURITY_EVENTS, SUPERVISOR
from fairlead.telemetry.gauges import (
    CERTIFICATES,
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
    "Requests": (*CALLS, *SECURITY_EVENTS),
    "Certificates": CERTIFICATES,
    "The process": (*EVENTS, FOLDED_PARTITIONS, OMITTED_CONFIGS),
    "Several processes": SUPERVISOR,
}
# Metrics of each process; those of a supervisor are on its own page only.
METRICS = tuple(metric for section in SECTIONS.values() for metric in section if metric not in SUPERVISOR)

_COMPONENTS = ", ".join(f"`{component}`" for component in Component)
_HEAD = f"""\
# Metrics

<!-- Written by `fairlead.telemetry.reference()`: change the declarations in src/fairlead/telemetry, then run
     .venv/bin/python -c "from fairlead.telemetry import reference; print(reference(), end='')" > docs/metrics.md -->

Every process with `metrics.listen` serves its metrics at `/metrics`, as Prometheus text or OpenMetrics, and its health
at `/healthz`. The names are those of Cadence's and Temporal's metrics and dashboards, where these have one.

- Counters don't end in `_total`, as in Temporal. OpenMetrics has no such counters, so there their type is unknown;
  `rate()` works on both.
- The labels `namespace`, `taskqueue`, `task_type` (`Workflow`, `Activity`, `Nexus`) and `partition` (its number; 0 is
  the root) say where. `namespace` is the name of a registered namespace. Without a registered namespace, it is the id,
  or the string that a client of matching alone has given; ` {UNREGISTERED.strip()}` follows if a namespace has that
  string as its name. Task queues of one worker version also have `worker_version`, which is
  `<deployment>:<build id>`. All sticky task queues of a namespace share one series, `{STICKY}`. Partitions beyond
  {PARTITION_SERIES_MAX:,} are counted together, as `{OTHER}`.
- A partition keeps its series when it is unloaded. At the limit, the series of the partition that was unloaded longest
  ago ends.
- Latencies are in seconds, with the bounds {", ".join(f"{bound_s:g}" for bound_s in LATENCY_BOUNDS_S)}.
- `component` is the user of a partition configuration: {_COMPONENTS}. Normally the values of all agree.
  The process that runs the client (frontend and history) reports its pollers and producers, with an empty
  `partition`. A client drops task queues that it used least recently when it knows thousands of them.
- In a cluster of several hosts, up to half of the polls of a sticky task queue wait at the frontend. Workflow tasks
  that history starts for these polls don't reach matching, and its metrics don't count them.
- There are also `fairlead_build_info` and the usual `process_*` and `python_info`.
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
