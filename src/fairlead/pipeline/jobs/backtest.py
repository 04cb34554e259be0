"""`fairlead pipeline backtest`: replays recorded traffic under other settings of the adaptive scaler."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from fairlead.core.errors import GiveUp
from fairlead.core.namespaces import split_version
from fairlead.core.partitions import TaskType
from fairlead.core.scaling import ScalerSettings
from fairlead.pipeline.arrow import arrow_limits
from fairlead.pipeline.increments.origin import Plan, origin_of, plan_run, rows_of
from fairlead.pipeline.increments.replays import continuation, new_arrivals, with_checkpoint
from fairlead.pipeline.job import JobContext, Summary, left_out_alarm
from fairlead.pipeline.kernels.scaler import BUCKETS_TO_RATE, Candidate, Model, buckets_per_tick, effective, grid
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.namespaces import known_names
from fairlead.pipeline.queries import Row, queries_on
from fairlead.pipeline.stages.backtest import (
    Span,
    arrivals,
    is_too_long,
    replayed,
    span_of,
    timeline,
    timeline_step_s,
    trials,
)
from fairlead.pipeline.stages.backtest_verdicts import Objective, overall, with_verdicts
from fairlead.settings import SETTINGS, DynamicSettings, Plain, parse_file
from fairlead.settings.dynamic import matching

# Maximum number of task queues that get their own rule in a settings file (the busiest ones): people must be able to
# read the file.
TASK_QUEUES_SHOWN = 100
TABLES = ("backtest", "backtest_settings", "backtest_timeline")
# Holds the state of each replay, from which the next run continues it; it has no other reader.
PARTIAL = "backtest_partial"
# Share of the rows that may be newer than the last replay, if the recording is longer than a replay: then the replayed
# time range begins later with each run, and a replay can't be continued.
NEW_SHARE_MAX = 0.05
LEFT_OUT_HINT = "the recording is too long, so only its end was replayed: choose an earlier part with --until"
PARTITION_RPS = 500.0
WAIT_S_MAX = 1.0
_CHOICES: dict[str, tuple[float, ...]] = {
    "upscale_rps": (100.0, 200.0, 400.0),
    "upscale_sustained_s": (30.0, 60.0, 120.0),
    "downscale_sustained_s": (60.0, 120.0, 300.0),
    "downscale_factor": (0.5, 0.75, 0.9),
    "interval_s": (15.0, 30.0),
}
_HELP = {
    "upscale_rps": "Tasks per second and partition above which partitions are added",
    "upscale_sustained_s": "Seconds above that threshold before partitions are added",
    "downscale_sustained_s": "Seconds below the lower threshold before partitions are removed",
    "downscale_factor": "Lower threshold, as a share of the upper one",
    "interval_s": "Seconds between two decisions of the scaler",
}


class UnusableRecommendation(GiveUp):
    """The recommended settings do not form a valid settings file."""


OPTIONS = [
    *(
        click.option(
            f"--{name.removesuffix('_s').replace('_', '-')}",
            name,
            type=float,
            multiple=True,
            default=choices,
            show_default=True,
            help=f"{_HELP[name]}; may be repeated, each value is tried.",
        )
        for name, choices in _CHOICES.items()
    ),
    click.option(
        "--settings-file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help="The current settings, for comparison. [default: the default settings]",
    ),
    click.option(
        "--settings-out",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for the recommended settings files. [default: LAKE/_recommended]",
    ),
    click.option(
        "--partition-rps",
        type=click.FloatRange(min=0.001),
        default=PARTITION_RPS,
        show_default=True,
        help="Tasks per second that one partition can dispatch, as measured by `fairlead bench`.",
    ),
    click.option(
        "--wait",
        "wait_s_max",
        type=click.FloatRange(min=0.0),
        default=WAIT_S_MAX,
        show_default=True,
        help="Seconds after which a task is late.",
    ),
    click.option(
        "--late-share",
        "late_share_max",
        type=click.FloatRange(0.0, 1.0),
        default=Objective().late_share_max,
        show_default=True,
        help="Accepted share of late tasks.",
    ),
    click.option(
        "--changes-per-day",
        "changes_per_day_max",
        type=click.FloatRange(min=0.0),
        default=Objective().changes_per_day_max,
        show_default=True,
        help="Accepted changes of a task queue's partitions per day.",
    ),
    click.option(
        "--initial-partitions",
        type=click.IntRange(min=1),
        help="Partitions at the start. [default: as many as the first load needs]",
    ),
]


def run(context: JobContext) -> Summary:
    """Write `backtest`, `backtest_settings`, `backtest_timeline`, and a settings file for each cluster.

    A run continues the replays of the run before it. If the recording is longer than a replay, the tables stay as they
    are until more than `NEW_SHARE_MAX` of the records are new.
    """
    options = context.options
    base = DynamicSettings(file=options.get("settings_file"))
    candidates = grid(base, {name: options.get(name) or choices for name, choices in _CHOICES.items()})
    bucket_s = base.get(matching.QPS_TRACKER_INTERVAL) / BUCKETS_TO_RATE
    settings = [effective(base, candidate) for candidate in candidates]
    for one in settings:
        buckets_per_tick(one.interval_s, bucket_s)
    objective = Objective(
        late_share_max=float(options.get("late_share_max", Objective().late_share_max)),
        changes_per_day_max=float(options.get("changes_per_day_max", Objective().changes_per_day_max)),
    )
    model = Model(
        bucket_s=bucket_s,
        partition_rps=float(options.get("partition_rps", PARTITION_RPS)),
        wait_s_max=float(options.get("wait_s_max", WAIT_S_MAX)),
        initial=options.get("initial_partitions"),
    )
    parameters = {"settings": [list(one) for one in candidates], "in_force": repr(settings), "model": repr(model)}
    plan = plan_run(context, "task", (PARTIAL, *TABLES), parameters | {"objective": str(objective)}, is_joint=True)
    span = _replay(context, plan, candidates, settings, model, objective)
    best, present = _chosen(context.lake)
    rows = {table: rows_of(context.lake, table) for table in TABLES}
    folder = Path(options.get("settings_out") or context.lake.root / "_recommended")
    names = known_names(context.lake)
    found = {
        cluster: {
            "now": _described(present[cluster]),
            "recommended": _described(row),
            "settings_file": str(_write(folder, row, _exceptions(context.lake, row), objective, names)),
        }
        for cluster, row in sorted(best.items())
    }
    findings = {"objective": str(objective), "settings": len(candidates), "hours": span.seconds / 3600}
    if span.left_out:
        findings["hours_left_out"] = span.left_out_s / 3600
        findings["hint"] = LEFT_OUT_HINT
    replayed_tasks = sum(row["tasks"] for row in present.values())
    findings |= {"tasks": replayed_tasks, "tasks_left_out": span.arrivals - replayed_tasks, "clusters": found}
    last = origin_of(context.lake, PARTIAL)
    if plan.rows_new and last is not None and last.through < plan.origin.through:
        findings["records_not_replayed"] = plan.rows_new
    alarm = left_out_alarm(span.arrivals - replayed_tasks, span.arrivals, what="tasks", why=LEFT_OUT_HINT)
    return Summary("backtest", rows, findings, alarm)


def _replay(  # noqa: PLR0917 - the parameters of the replay
    context: JobContext,
    plan: Plan,
    candidates: Sequence[Candidate],
    settings: Sequence[ScalerSettings],
    model: Model,
    objective: Objective,
) -> Span:
    """Write the tables if a replay is due; return the time range of the last replay."""
    lake, spark, run_id = context.lake, context.spark, context.run_id
    tasks = lake.read(spark, "task", since=context.since_us, until=context.until_us, namespace=context.namespace)
    all_trials = trials(list(enumerate(settings)))
    known = None if plan.is_whole else Span(**plan.facts["span"])
    news = None if known is None else new_arrivals(plan.batches, bucket_us=known.bucket_us)
    if known is not None and news is not None and not _is_due(plan, known, news):
        return known
    again = None if known is None or news is None else continuation(lake, known, news, PARTIAL)
    bucket_us = round(model.bucket_s * 1e6)
    # Without any records there is nothing to replay, but the tables are still written.
    span = again.span if again else span_of(tasks, bucket_us=bucket_us) or Span(0, buckets=1, bucket_us=bucket_us)
    span = with_checkpoint(span, all_trials, model)
    facts: dict[str, Any] = {"span": asdict(span)}
    origin = replace(plan.origin, facts=facts)
    states = again.states(lake.read_derived(spark, PARTIAL)) if again else None
    lists = again.arrivals(tasks) if again else arrivals(tasks, span=span)
    # Limit the size of Arrow batches: each row holds thousands of numbers.
    with arrow_limits(spark):
        context.progress(f"replaying {span.seconds / 3600:,.1f} h under {len(candidates)} settings")
        lake.write(PARTIAL, replayed(lists, all_trials, model=model, span=span, states=states), run_id, origin=origin)
        outcomes = lake.read_derived(spark, PARTIAL)
        verdicts = with_verdicts(outcomes, candidates, span=span, objective=objective)
        lake.write("backtest", verdicts, run_id, origin=origin)
        backtest = lake.read_derived(spark, "backtest")
        lake.write("backtest_settings", overall(backtest, objective=objective), run_id, origin=origin)
        best, _ = _chosen(lake)
        context.progress("tracing the current and the recommended settings")
        traced = sorted({0, *(row["setting"] for row in best.values())})
        facts |= {"traced": traced, "step_s": timeline_step_s(span)}
        before = origin_of(lake, "backtest_timeline")
        if again and (before is None or any(before.facts.get(name) != facts[name] for name in ("traced", "step_s"))):
            # Another setting is recommended, or the points have another distance: the earlier points are missing.
            again, states, lists = None, None, arrivals(tasks, span=span)
        traces = timeline(
            lists, trials([(number, settings[number]) for number in traced]), model=model, span=span, states=states
        )
        touched = again.traced(lake, PARTIAL) if again else None
        lake.write("backtest_timeline", traces, run_id, origin=replace(origin, facts=facts), touched=touched)
    return span


def _is_due(plan: Plan, known: Span, news: pa.Table) -> bool:
    """Whether the tables must change: if the recording is longer than a replay, only after many new records."""
    if not news.num_rows:
        return False
    is_longer = known.left_out or is_too_long(known.first, pc.max(news["last_bucket"]).as_py())
    return not is_longer or plan.rows_new > NEW_SHARE_MAX * plan.rows


def _described(row: Row) -> dict[str, Any]:
    names = ("late_share", "changes_per_day", "partition_hours", "above_s", "wait_s_max", "is_within")
    return _candidate(row)._asdict() | {name: row[name] for name in names}


def _candidate(row: Row) -> Candidate:
    return Candidate(*(row[name] for name in Candidate._fields))


def _chosen(lake: Lake) -> tuple[dict[str, Row], dict[str, Row]]:
    """Return the recommended and the current setting of each cluster."""
    with queries_on(lake, "backtest_settings") as queries:
        best = queries.rows("FROM backtest_settings WHERE is_recommended")
        present = queries.rows("FROM backtest_settings WHERE setting = 0")
    return {row["cluster"]: row for row in best}, {row["cluster"]: row for row in present}


def _exceptions(lake: Lake, best: Row) -> list[Row]:
    """Return the busiest task queues for which another setting is better than the cluster-wide one."""
    with queries_on(lake, "backtest") as queries:
        # A settings file can't name a task type that this release does not know.
        return queries.rows(
            """
            FROM backtest
            WHERE cluster = $cluster AND is_recommended AND setting <> $setting
              AND task_type IN (SELECT unnest($task_types))
            ORDER BY tasks DESC, namespace_id, task_list, task_type LIMIT $count
            """,
            cluster=best["cluster"],
            setting=best["setting"],
            task_types=list(map(int, TaskType)),
            count=TASK_QUEUES_SHOWN,
        )


def settings_document(best: Candidate, exceptions: list[tuple[dict[str, Plain], Candidate]]) -> dict[str, Plain]:
    """Return the content of a settings file: one value for all task queues, and exceptions for some."""
    document: dict[str, Plain] = {matching.ENABLE_ADAPTIVE_SCALER.key: [{"value": True}]}
    for key, value in best.overrides().items():
        values: list[Plain] = [{"value": value}]
        for constraints, candidate in exceptions:
            if candidate.overrides()[key] != value:
                values.append({"value": candidate.overrides()[key], "constraints": dict(constraints)})
        document[key] = values
    return document


def _write(folder: Path, best: Row, exceptions: list[Row], objective: Objective, names: Mapping[str, str]) -> Path:
    cluster = best["cluster"]
    scopes: dict[tuple[str, str, int], Candidate] = {}
    for row in exceptions:
        # Settings have no scope for a worker version: a versioned queue is configured by its namespace and name.
        namespace_id = split_version(row["namespace_id"])[0]
        scope = (names.get(namespace_id, namespace_id), row["task_list"], row["task_type"])
        scopes.setdefault(scope, _candidate(row))
    document = settings_document(
        _candidate(best),
        [
            ({"namespace": space, "taskQueueName": name, "taskType": TaskType(number).name.lower()}, candidate)
            for (space, name, number), candidate in scopes.items()
        ],
    )
    text = f"# Recommended by `fairlead pipeline backtest` for cluster {cluster}: {objective}.\n"
    content = (text + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)).encode()
    problems = parse_file(content, SETTINGS).problems
    if problems:
        raise UnusableRecommendation(
            f"the recommended settings of cluster {cluster} can't be used: {problems[0]}; nothing was written"
        )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"settings.{cluster}.yaml"
    draft = folder / f".{file.name}.{os.getpid()}"
    draft.write_bytes(content)
    draft.replace(file)
    return file
