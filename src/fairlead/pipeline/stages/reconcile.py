"""Turns the clusters' journaled batches into verdicts per run, counts per pair of clusters, and a repair plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from fairlead.pipeline.kernels.reconcile import Clocks, Kind, State, judge_runs
from fairlead.pipeline.schemas_reconcile import (
    FINDING,
    FOUND,
    JUDGED,
    PAIRS,
    REPAIR_PLAN,
    RUN_BATCHES,
    RUN_KEY,
    VERDICTS,
)

_RUN = list(RUN_KEY)
_WORKFLOW = ["namespace_id", "workflow_id"]


@dataclass(frozen=True, slots=True)
class Measure:
    """The measure for judging runs; `increment` and `initial_versions` say which cluster writes at a version.

    Without `clocks`, all clusters are on one clock, and their streams are delivered up to `now_us`.
    """

    now_us: int
    grace_us: int
    retention_us: int | None = None
    increment: int | None = None
    initial_versions: Mapping[str, int] = field(default_factory=dict)
    clocks: Clocks | None = None


def expected_clusters(history: DataFrame) -> DataFrame:
    """Return, for each namespace, the clusters with any of its runs: they should have all of them."""
    return history.groupBy("namespace_id").agg(F.sort_array(F.collect_set("cluster")).alias("expected"))


def gather_runs(history: DataFrame, *, since_us: int | None) -> DataFrame:
    """Gather all batches of a run in one row, without payloads; only workflow ids with events since `since_us`.

    All runs of such a workflow id are included: a finding may be about two runs, one of which was idle for long.
    """
    if since_us is not None:
        recent = history.where(F.col("time_us") >= since_us).select(*_WORKFLOW).distinct()
        history = history.join(recent, _WORKFLOW, "left_semi")
    nothing = {"arrived_us": F.lit(0).cast("long"), "payload_fault": F.lit(None).cast("string")}
    for name in [name for name in nothing if name not in history.columns]:
        history = history.withColumn(name, nothing[name])
    batch = F.struct(
        "cluster",
        F.coalesce("tree_id", "run_id").alias("tree_id"),
        F.coalesce("branch_id", F.lit("")).alias("branch_id"),
        F.col("first_event_id").alias("first"),
        F.col("last_event_id").alias("last"),
        F.coalesce("version", F.lit(0)).cast("long").alias("version"),
        F.coalesce("task_id", F.lit(0)).cast("long").alias("task_id"),
        "time_us",
        F.coalesce("status", F.lit(0)).cast("int").alias("status"),
        F.coalesce(F.size("event_types"), F.lit(-1)).cast("int").alias("types_count"),
        F.array_join("event_digests", "").alias("digests"),
        "items",
        "signals",
        "event_types",
        F.coalesce("arrived_us", F.lit(0)).cast("long").alias("arrived_us"),
        "payload_fault",
    )
    return history.groupBy(*_RUN).agg(
        F.collect_list(batch).alias("batches"), F.sort_array(F.collect_set("new_run_id")).alias("successors")
    )


def judge(runs: DataFrame, expected: DataFrame, measure: Measure) -> DataFrame:
    """Judge each run separately, by the rules of `fairlead.core.versions`."""
    kernel = partial(
        judge_runs,
        now_us=measure.now_us,
        grace_us=measure.grace_us,
        retention_us=measure.retention_us,
        increment=measure.increment,
        initial_versions=dict(measure.initial_versions),
        clocks=measure.clocks,
    )
    # There are few namespaces compared with runs.
    known = runs.join(F.broadcast(expected), "namespace_id", "left").select(*RUN_BATCHES.names)
    return known.mapInArrow(kernel, JUDGED)


def find_across_runs(judged: DataFrame, measure: Measure) -> DataFrame:
    """Return the findings that involve several runs of a workflow id."""
    parts = [
        many_open(judged, measure),
        zombies_of_all(judged, measure),
        zombies_of_one_cluster(judged),
        lost_signals(judged),
        missing_successors(judged, measure),
        unknown_trees(judged),
    ]
    return reduce(DataFrame.unionByName, parts).select(*FOUND.names)


def many_open(judged: DataFrame, measure: Measure) -> DataFrame:
    """Find runs that are open in all clusters beside another such run of the same version.

    The same version means the same cluster, which must not have two open runs. Of runs with different versions, the
    older one is a zombie.
    """
    writer = Window.partitionBy(*_WORKFLOW, "last_version")
    opened = judged.where("is_open").withColumns(
        {"open_runs": F.count("*").over(writer), "age_us": F.min("opened_age_us").over(writer)}
    )
    detail = F.format_string("%d runs of the workflow id are open at version %d", "open_runs", "last_version")
    finding = _finding(Kind.MANY_OPEN, _state(F.col("age_us"), measure), version=F.col("last_version"), detail=detail)
    return opened.where("open_runs > 1").select(*_RUN, finding)


def zombies_of_all(judged: DataFrame, measure: Measure) -> DataFrame:
    """Find runs that are open in all clusters, although another run with a higher version has replaced them."""
    workflow = Window.partitionBy(*_WORKFLOW)
    newest = F.max(F.struct("last_version", "first_us", "run_id", "opened_age_us")).over(workflow)
    runs = judged.withColumn("newest", newest).where("is_open and last_version < newest.last_version")
    finding = _finding(
        Kind.ZOMBIE,
        _state(F.col("newest.opened_age_us"), measure),
        version=F.col("last_version"),
        detail=F.concat(F.lit("replaced by run "), F.col("newest.run_id")),
    )
    return runs.select(*_RUN, finding)


def zombies_of_one_cluster(judged: DataFrame) -> DataFrame:
    """Find runs that are closed elsewhere but open in a cluster with a newer run: their end did not arrive there."""
    copies = judged.select(*_RUN, "is_open", F.explode("copies").alias("copy"))
    # Only times of the same cluster are compared.
    order = F.struct("copy.last_version", "copy.first_us")
    left_behind = copies.where("copy.is_open and not is_open and copy.is_overdue").select(
        *_RUN, F.col("copy.cluster").alias("cluster"), F.col("copy.last_version").alias("version"), order.alias("order")
    )
    others = copies.select(
        *_WORKFLOW,
        F.col("run_id").alias("newer_run_id"),
        F.col("copy.cluster").alias("cluster"),
        order.alias("newer_order"),
    )
    newer = left_behind.join(others, [*_WORKFLOW, "cluster"]).where("newer_run_id != run_id and newer_order > order")
    found = newer.groupBy(*_RUN, "cluster", "version").agg(F.max_by("newer_run_id", "newer_order").alias("newest"))
    finding = _finding(
        Kind.ZOMBIE,
        F.lit(State.WRONG),
        cluster=F.col("cluster"),
        version=F.col("version"),
        detail=F.concat(F.lit("replaced by run "), F.col("newest")),
    )
    return found.select(*_RUN, finding)


def lost_signals(judged: DataFrame) -> DataFrame:
    """Find signals of losing branches that neither the current branch nor another run of the workflow id received."""
    lost = judged.where(F.size("lost_signals") > 0).select(*_RUN, F.explode("lost_signals").alias("lost"))
    concerned = lost.select(*_WORKFLOW).distinct()
    given = judged.join(concerned, _WORKFLOW, "left_semi").select(
        *_WORKFLOW, F.col("run_id").alias("given_run_id"), F.explode("current_signals").alias("signal")
    )
    left = lost.withColumn("signal", F.col("lost.signal")).alias("lost_ones")
    is_given = reduce(
        Column.__and__,
        [F.col(f"lost_ones.{name}") == F.col(f"given.{name}") for name in (*_WORKFLOW, "signal")],
    )
    other_run = F.col("lost_ones.run_id") != F.col("given.given_run_id")
    never = left.join(given.alias("given"), is_given & other_run, "left_anti")
    finding = _finding(
        Kind.LOST_SIGNAL,
        F.lit(State.WRONG),
        version=F.col("lost.version"),
        event_id=F.col("lost.event_id"),
        detail=F.col("lost.signal"),
    )
    return never.select(*_RUN, finding)


def missing_successors(judged: DataFrame, measure: Measure) -> DataFrame:
    """Find runs whose next run exists in no cluster."""
    named = judged.where(F.size("successors") > 0).select(
        *_RUN, "last_age_us", "last_version", F.explode("successors").alias("successor")
    )
    known = judged.select(*_WORKFLOW, F.col("run_id").alias("successor"))
    gone = named.join(known, [*_WORKFLOW, "successor"], "left_anti")
    state = _state(F.col("last_age_us"), measure)
    if measure.retention_us is not None:
        is_expired = F.col("last_age_us") > measure.retention_us
        state = F.when(is_expired, State.EXPIRED.value).otherwise(state)
    detail = F.format_string("it continues in run %s, which no cluster has", "successor")
    finding = _finding(Kind.MISSING_SUCCESSOR, state, version=F.col("last_version"), detail=detail)
    return gone.select(*_RUN, finding)


def unknown_trees(judged: DataFrame) -> DataFrame:
    """Find copies whose tree belongs to no run of the workflow id.

    A reset run belongs to the tree of its base run. If the copy lacks its first events and no cluster has the base run,
    those events can't be compared; if the copy has all events, its tree is wrong. Copies whose batches already led to
    this finding are skipped.
    """
    wrong = F.filter("findings", lambda finding: finding.kind == Kind.WRONG_TREE.value)
    copies = judged.select(
        *_RUN,
        "last_version",
        F.transform(wrong, lambda finding: finding.cluster).alias("known"),
        F.explode("copies").alias("copy"),
    )
    is_new = ~F.array_contains("known", F.col("copy.cluster"))
    foreign = copies.where((F.col("copy.tree_id") != F.col("run_id")) & is_new).withColumn(
        "tree", F.col("copy.tree_id")
    )
    bases = judged.select(*_WORKFLOW, F.col("run_id").alias("tree"))
    unknown = foreign.join(bases, [*_WORKFLOW, "tree"], "left_anti")
    is_whole = F.col("copy.events") >= F.col("copy.last_event_id")
    finding = _finding(
        Kind.WRONG_TREE,
        F.when(is_whole, State.WRONG.value).otherwise(State.NOT_COMPARABLE.value),
        cluster=F.col("copy.cluster"),
        version=F.col("last_version"),
        detail=F.format_string("its tree %s belongs to no run of the workflow id", "tree"),
    )
    return unknown.select(*_RUN, finding)


def verdicts(judged: DataFrame, found: DataFrame) -> DataFrame:
    """Return one row per run: the worst of its findings is its verdict."""
    more = found.groupBy(*_RUN).agg(F.collect_list("finding").alias("more"))
    every = F.concat("findings", F.coalesce("more", F.array().cast(f"array<{FINDING.simpleString()}>")))
    runs = judged.join(more, _RUN, "left").withColumn("findings", F.array_sort(every))

    def has(state: State) -> Column:
        return F.exists("findings", lambda finding: finding.state == state.value)

    verdict = (
        F.when(has(State.WRONG), State.WRONG.value)
        .when(has(State.LATE), State.LATE.value)
        .when(has(State.NOT_COMPARABLE), State.NOT_COMPARABLE.value)
        .when(has(State.EXPIRED), State.EXPIRED.value)
        .otherwise("agreed")
    )
    wrong = F.filter("findings", lambda finding: finding.state == State.WRONG.value)
    return runs.withColumns(
        {
            "verdict": verdict,
            "kinds": F.array_sort(F.array_distinct(F.transform(wrong, lambda finding: finding.kind))),
            "clusters": F.transform("copies", lambda copy: copy.cluster),
        }
    ).select(*VERDICTS.names)


def pairs(judged: DataFrame) -> DataFrame:
    """Return how each two clusters compare over all runs."""
    each = judged.select("namespace_id", F.explode("pairs").alias("pair")).select("namespace_id", "pair.*")
    is_equal = F.col("only_left") + F.col("only_right") + F.col("different") + F.col("not_comparable") == 0
    has_left, has_right = F.col("shared") + F.col("only_left") > 0, F.col("shared") + F.col("only_right") > 0
    return (
        each.groupBy("namespace_id", "left", "right")
        .agg(
            F.count("*").alias("runs"),
            F.count_if(is_equal).alias("runs_equal"),
            F.count_if(~has_right).alias("runs_only_left"),
            F.count_if(~has_left).alias("runs_only_right"),
            F.sum("shared").alias("events_shared"),
            F.sum("only_left").alias("events_only_left"),
            F.sum("only_right").alias("events_only_right"),
            F.sum("different").alias("events_different"),
            F.sum("late").alias("events_late"),
            F.sum("not_comparable").alias("events_not_comparable"),
        )
        .select(*PAIRS.names)
    )


def repair_plan(judged: DataFrame) -> DataFrame:
    """Return the events to send, each range with its source and its target cluster; a repair never deletes events."""
    sends = judged.where(F.size("sends") > 0).select(*_RUN, F.explode("sends").alias("send"))
    return sends.select(*_RUN, "send.*").select(*REPAIR_PLAN.names)


def _state(age_us: Column, measure: Measure) -> Column:
    return F.when(age_us < measure.grace_us, State.LATE.value).otherwise(State.WRONG.value)


def _finding(
    kind: Kind,
    state: Column,
    *,
    version: Column,
    detail: Column,
    cluster: Column | None = None,
    event_id: Column | None = None,
) -> Column:
    nothing = F.lit(None)
    values = {
        "kind": F.lit(kind.value),
        "state": state,
        "cluster": nothing if cluster is None else cluster,
        "other": nothing,
        "version": version,
        "first_event_id": nothing if event_id is None else event_id,
        "last_event_id": nothing if event_id is None else event_id,
        "detail": detail,
    }
    fields = [values[field.name].cast(field.dataType).alias(field.name) for field in FINDING.fields]
    return F.struct(*fields).alias("finding")
