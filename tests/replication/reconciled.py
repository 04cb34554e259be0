"""Compare the journals of clusters with `fairlead pipeline ingest` and `reconcile` on a real Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from fairlead.pipeline.job import JobContext, Summary
from fairlead.pipeline.jobs import ingest, reconcile
from fairlead.pipeline.lake import Lake
from fairlead.replication.plans import Plan, read_plan


class Reconciled(NamedTuple):
    """The findings, and the repair plan for them."""

    summary: Summary
    plan: Plan
    plan_file: Path


def reconcile_journals(
    spark: SparkSession, journals: Sequence[Path], *, lake: Path, expect: Sequence[str] = ()
) -> Reconciled:
    """Compare the clusters of which there is a folder in any of the journals; their servers have stopped.

    Late events count as missing. `expect` are clusters that must have everything.
    """
    context = JobContext(spark=spark, lake=Lake(lake), options={"grace": 0.0, "expect": tuple(expect)})
    for journal in journals:
        taken = ingest.run(JobContext(spark=spark, lake=Lake(lake), journal=journal))
        assert taken.alarm is None, taken
    summary = reconcile.run(context)
    file = Path(summary.findings["plan"])
    return Reconciled(summary, read_plan(file), file)


def assert_reconciled(spark: SparkSession, *journals: Path, lake: Path, expect: Sequence[str] = ()) -> int:
    """Fail unless all clusters hold the same data; returns the number of runs."""
    summary, plan, _ = reconcile_journals(spark, journals, lake=lake, expect=expect)
    verdicts = summary.findings["verdicts"]
    found = [
        f"{each.kind} in {each.cluster or 'all'}: {each.workflow_id} {each.run_id} {each.detail}"
        for each in plan.by_hand
    ]
    found += [
        f"{send.kind} in {send.target}: {send.workflow_id} {send.run_id} {send.first_event_id}-{send.last_event_id} at "
        f"version {send.version}"
        for send in plan.sends
    ]
    assert verdicts.keys() == {"agreed"}, "\n".join([str(summary.findings), *found])
    assert (summary.alarm, plan.sends, plan.by_hand) == (None, (), ())
    return int(verdicts["agreed"])
