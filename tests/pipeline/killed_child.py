"""A process that ingests a journal and is killed while it does: `killed_child.py ingest|stream JOURNAL LAKE N`."""

import sys
from pathlib import Path

from fairlead.pipeline import stream
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.session import Profile, SessionPlan, open_session
from fairlead.pipeline.sources import journal as source


def main(job: str, journal: str, lake: str, batch_segments: str) -> None:
    """Print a line when the work begins."""
    ingest.BATCH_SEGMENTS_MAX = source.SEGMENTS_PER_MICRO_BATCH_MAX = int(batch_segments)
    with open_session(SessionPlan(name=job, profile=Profile.TEST, master="local[2]", memory="600m")) as spark:
        context = JobContext(spark=spark, lake=Lake(Path(lake)), journal=Path(journal), options={"once": True})
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        (ingest if job == "ingest" else stream).run(context)


if __name__ == "__main__":
    main(*sys.argv[1:])
