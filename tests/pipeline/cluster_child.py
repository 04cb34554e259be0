"""A driver for a cluster: `cluster_child.py MASTER JOURNAL LAKE`. Prints the rows, and where workers have us from."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.session import open_session, plan_for


def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Where the package is, as a worker finds it."""
    import fairlead

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"place": [str(fairlead.__file__)], "folder": [str(Path.cwd())]})


def main(master: str, journal: str, lake: str) -> None:
    """Run the job on the cluster."""
    with open_session(plan_for(master, name="cluster")) as spark:
        summary = ingest.run(JobContext(spark=spark, lake=Lake(Path(lake)), journal=Path(journal)))
        found = spark.range(0, 8, 1, 8).mapInArrow(places, "place string, folder string").distinct().collect()
        sys.stdout.write(
            json.dumps(
                {"rows": summary.rows, "places": [row.place for row in found], "folders": [row.folder for row in found]}
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
