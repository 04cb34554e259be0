"""Measures whether `reconcile` finds all planted defects, and how fast: python -m benchmarks.reconcile [RUNS].

The clock of one cluster is an hour ahead. A table shows recall and false alarms for each kind of defect.
"""

import shutil
import sys
import tempfile
import time
from functools import reduce
from pathlib import Path

import duckdb
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.schemas import HISTORY_RECORD
from fairlead.pipeline.session import SessionPlan, open_session
from fairlead.pipeline.stages import reconcile
from fairlead.pipeline.stages.clocks import clocks_in
from fairlead.pipeline.stages.payloads import with_payload_faults
from fairlead.pipeline.synth.histories import HistoryShape, write_histories
from fairlead.pipeline.synth.scores import score, table_of

CLOCKS_AHEAD_S = {"north": 3600.0}


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    folder = Path(tempfile.mkdtemp(prefix="fairlead-reconcile-"))
    try:
        return check(folder, runs)
    finally:
        shutil.rmtree(folder)


def check(folder: Path, runs: int) -> int:
    begun_s, cpu_s = time.monotonic(), time.process_time()
    manifest = write_histories(folder, HistoryShape(runs=runs, clocks_ahead_s=CLOCKS_AHEAD_S))
    print(
        f"made {manifest.runs:,} runs in {manifest.records:,} records with {len(manifest.planted):,} defects "
        f"in {time.monotonic() - begun_s:.1f} s ({time.process_time() - cpu_s:.1f} s of CPU)"
    )
    with open_session(SessionPlan(name="bench-reconcile", master="local[2]")) as spark:
        parts = [
            spark.read.schema(HISTORY_RECORD).json(str(folder / name)).withColumn("cluster", F.lit(name))
            for name in manifest.initial_versions
        ]
        reduce(DataFrame.unionByName, parts).write.parquet(str(folder / "bronze"))
        begun_s = time.monotonic()
        history = spark.read.parquet(str(folder / "bronze"))
        with duckdb.connect() as database:
            database.read_parquet(f"{folder}/bronze/*.parquet").create_view("history")
            clocks = clocks_in(
                database,
                now_us=manifest.now_us,
                until_us=None,
                increment=manifest.increment,
                initial_versions=manifest.initial_versions,
            )
        measure = reconcile.Measure(
            manifest.now_us, round(manifest.grace_s * 1e6), None, manifest.increment, manifest.initial_versions, clocks
        )
        batches = reconcile.gather_runs(with_payload_faults(history), since_us=None)
        judged = reconcile.judge(batches, reconcile.expected_clusters(history), measure).persist()
        verdicts = reconcile.verdicts(judged, reconcile.find_across_runs(judged, measure))
        found = {
            row.run_id: (
                row.verdict,
                frozenset((finding.kind, finding.cluster) for finding in row.findings if finding.state == "wrong"),
            )
            for row in verdicts.where("verdict != 'agreed'").select("run_id", "verdict", "findings").collect()
        }
        took_s = time.monotonic() - begun_s
    scores = score(manifest.planted, found)
    missed = sum(one.planted - one.found for one in scores)
    false_alarms = sum(one.false_alarms for one in scores)
    print(table_of(scores))
    print(
        f"judged them in {took_s:.1f} s ({manifest.records / took_s:,.0f} batches/s): "
        f"{len(manifest.planted) - missed:,} of {len(manifest.planted):,} defects found, {false_alarms} false alarms"
    )
    return 1 if missed or false_alarms else 0


if __name__ == "__main__":
    sys.exit(main())
