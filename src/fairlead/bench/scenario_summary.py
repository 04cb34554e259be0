"""The result of a scenario, with the items of the summary of Cadence's matching simulation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from fairlead.bench.partition_counts import PartitionCounts
from fairlead.bench.picture import draw
from fairlead.bench.result import BenchResult, Measure
from fairlead.bench.scenarios import Scenario
from fairlead.bench.series import configs_table, timeline_table
from fairlead.bench.server_counts import ServerCounts
from fairlead.bench.summary import (
    add_rate_per_s,
    duration_s,
    failures_table,
    headline,
    loss_measures,
    receive_rate_per_s,
    share,
)
from fairlead.bench.tally import ConfigSeen, Tally
from fairlead.bench.waits import Waits, milliseconds
from fairlead.report import Cell, Table

# The counters of a partition that are shown, by column name.
PARTITION_COUNTERS_SHOWN = {
    "tasks_taken": "tasks_added",
    "forwards_in": "forwarded",
    "tasks_up": "forwarded_tasks",
    "polls_up": "forwarded_polls",
    "sync_matches": "sync_matches",
    "async_matches": "backlog_matches",
}


def summarise_scenario(
    scenario: Scenario,
    tally: Tally,
    counts: Mapping[int, PartitionCounts],
    server: ServerCounts | None,
    parameters: Mapping[str, Cell],
) -> BenchResult:
    """Return the result of a scenario. `server` has the counters of its own cluster; None for an existing server."""
    tables = [operations_table(tally), partitions_table(counts, server), failures_table(tally)]
    if scenario.scaler is not None:
        tables.insert(1, configs_table(tally))
    return BenchResult(
        subject=scenario.name,
        headline=headline(tally),
        parameters=parameters,
        totals=[*load_measures(tally), *server_measures(tally, server), *scaling_measures(scenario, tally)],
        tables=tables,
        series=[timeline_table(tally), *([] if scenario.scaler is not None else [configs_table(tally)])],
        lost=tally.lost,
        unexplained=tally.outstanding - tally.lost,
        failed=tally.failed,
        draw=lambda figure: draw(figure, tally),
    )


def load_measures(tally: Tally) -> list[Measure]:
    """Return the measures of the load itself."""
    waits = tally.task_waits
    latencies: list[tuple[str, str, float | None]] = [
        ("avg", "average", waits.mean_s),
        *((f"p{percentile}", f"P{percentile}", waits.at_s(percentile)) for percentile in (50, 75, 95, 99)),
        ("max", "maximum", waits.max_s if waits.count else None),
    ]
    return [
        Measure(
            "generate_duration_s", "task generate duration, s", round(tally.since_start_s(tally.last_answered_s), 3)
        ),
        Measure("duration_s", "simulation duration, s", duration_s(tally)),
        Measure("tasks_generated", "tasks generated", tally.acknowledged),
        Measure("tasks_preloaded", "tasks of the initial backlog", tally.preloaded),
        Measure("tasks_polled", "tasks polled", tally.received),
        Measure("adds_per_s", "tasks generated per second", round(add_rate_per_s(tally), 1)),
        Measure("dispatches_per_s", "tasks polled per second", round(receive_rate_per_s(tally), 1)),
        *loss_measures(tally),
        *(
            Measure(f"latency_{name}_ms", f"task latency {label}, ms", milliseconds(wait_s))
            for name, label, wait_s in latencies
        ),
        Measure("polls_with_task", "polls that returned a task", tally.poll_with_task_waits.count),
        Measure("polls_with_forwarded_task", "polls that returned a forwarded task", tally.received_forwarded),
        Measure("polls_empty", "polls that returned no task", tally.polls_empty),
        Measure("sync_matches", "sync matches", tally.started_at_once),
        Measure("sync_matches_forwarded", "sync matches, task was forwarded", tally.started_forwarded),
        Measure("async_matches", "async matches", tally.received_later),
    ]


def server_measures(tally: Tally, server: ServerCounts | None) -> list[Measure]:
    """Return the measures of the cluster; with an existing server, only an estimate of its database writes."""
    if server is None:
        return [Measure("db_writes", "tasks written to the database", tally.acknowledged - tally.started_at_once)]
    return [
        Measure("db_writes", "tasks written to the database", server.tasks_written),
        Measure("poll_forwards", "poll forward attempts", server.total("forwarded_polls")),
        Measure("poll_forwards_with_task", "of them returned a task", server.total("forwarded_polls_matched")),
        Measure("polls_sent_down", "polls sent down to a backlog", server.total("polls_sent_down")),
        Measure("polls_sent_down_with_task", "of them returned a task", server.total("polls_sent_down_matched")),
        Measure("task_forwards", "task forward attempts", server.total("forwarded_tasks")),
        Measure("task_forwards_started", "of them were started", server.total("forwarded_tasks_matched")),
    ]


def scaling_measures(scenario: Scenario, tally: Tally) -> list[Measure]:
    """Return how the number of partitions followed the load; empty without a scaler."""
    ideal = scenario.ideal_write_partitions
    if ideal is None:
        return []
    writes = [seen.config.write for seen in tally.configs]
    highest = max(writes, default=1)
    return [
        Measure("partitions_max", "most write partitions", highest),
        Measure("partitions_ideal", "ideal write partitions for the highest rate", ideal),
        Measure("partitions_overshoot", "above the ideal", max(0, highest - ideal)),
        Measure("partition_changes", "changes of the partition configuration", max(0, len(writes) - 1)),
        Measure("partition_turns", "changes from fewer to more partitions", turns(tally.configs)),
    ]


def turns(configs: Sequence[ConfigSeen]) -> int:
    """Return how often partitions were removed and then added again: often, if the scaler oscillates."""
    steps = [later.config.write - earlier.config.write for earlier, later in pairwise(configs)]
    moves = [step for step in steps if step]
    return sum(earlier < 0 < later for earlier, later in pairwise(moves))


def operations_table(tally: Tally) -> Table:
    """Return the count, failures and durations of each operation."""
    operations: tuple[tuple[str, Waits, int, int], ...] = (
        ("add", tally.add_waits, tally.add_waits.count, tally.add_failures.total()),
        ("poll", tally.poll_waits, tally.polls + tally.poll_failures.total(), tally.poll_failures.total()),
        ("poll that returned a task", tally.poll_with_task_waits, tally.poll_with_task_waits.count, 0),
    )
    rows = []
    for name, waits, times, failed in operations:
        failed_share = share(100 * failed, times)
        max_s = waits.max_s if waits.count else None
        rows.append((name, times, failed, failed_share, milliseconds(waits.mean_s), milliseconds(max_s)))
    return Table(
        name="operations",
        title="Operations",
        columns=("operation", "times", "failed", "failed_percent", "avg_ms", "max_ms"),
        rows=rows,
    )


def partitions_table(counts: Mapping[int, PartitionCounts], server: ServerCounts | None) -> Table:
    """Return requests and matches of each partition. Only a scenario's own cluster reports forwarded requests."""
    counters = {} if server is None else PARTITION_COUNTERS_SHOWN
    served = {} if server is None else server.partitions
    rows: list[tuple[Cell, ...]] = []
    for number in sorted(counts.keys() | served.keys()):
        asked, did = counts.get(number, PartitionCounts()), served.get(number, Counter[str]())
        rows.append(
            (number, asked.adds, asked.polls, asked.polls_with_task, *(did[counter] for counter in counters.values()))
        )
    return Table(
        name="partitions",
        title="Partitions",
        columns=("partition", "adds", "polls", "polls_with_task", *counters),
        rows=rows,
    )
