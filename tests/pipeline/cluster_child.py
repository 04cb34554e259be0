"""A driver for a cluster: `cluster_child.py MASTER JOURNAL LAKE`. Prints the rows and the processes' package paths."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import fairlead
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.session import open_session, plan_for

# Spark waits for both workers: a worker that registers late would find all work done.
SETTINGS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    "spark.sql.shuffle.partitions": "2",
}
TASK_S = 0.2


def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The path of the fairlead package as a worker imports it, and the command of its executor."""
    for _ in batches:
        # Slow down, so that one worker can't do all the work.
        time.sleep(TASK_S)
        # The worker's parent is the daemon of Python, whose parent is the executor.
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        command = Path(f"/proc/{executor}/cmdline").read_text().replace("\0", " ")
        row = {"place": str(fairlead.__file__), "folder": str(Path.cwd()), "command": command}
        yield pa.RecordBatch.from_pylist([row])


def main(master: str, journal: str, lake: str) -> None:
    """Run the job on the cluster."""
    with open_session(replace(plan_for(master, name="cluster", is_small=True), settings=SETTINGS)) as spark:
        summary = ingest.run(JobContext(spark=spark, lake=Lake(Path(lake)), journal=Path(journal)))
        found = (
            spark.range(0, 8, 1, 8)
            .mapInArrow(places, "place string, folder string, command string")
            .distinct()
            .collect()
        )
        answer = {
            "rows": summary.rows,
            "driver": str(fairlead.__file__),
            "places": [row.place for row in found],
            "folders": [row.folder for row in found],
            "commands": [row.command for row in found],
        }
        sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
