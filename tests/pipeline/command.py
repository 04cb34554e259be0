"""`fairlead pipeline` in this process and the tests' Spark session: a Java process of its own takes 10 s of CPU."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from pyspark.sql import SparkSession

from fairlead.cli import main
from fairlead.cli.pipeline import runner
from fairlead.pipeline.session import SessionPlan, settings_of
from fairlead.pipeline.spark_log import in_one_line, spark_log
from tests.cli.processes import Done

# Settings of Spark's queries in which the session of the tests differs from that of the command.
PLANNING = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "200"}


@contextmanager
def planned_as(plan: SessionPlan, spark: SparkSession) -> Iterator[None]:
    """Let Spark plan queries during the block as in the session that the command would open."""
    before = {name: str(spark.conf.get(name)) for name in PLANNING}
    for name, default in PLANNING.items():
        spark.conf.set(name, settings_of(plan).get(name, default))
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def run_pipeline(*arguments: object, spark: SparkSession | None = None) -> Done:
    """Run the command to its end, in the given session if there is one."""

    @contextmanager
    def opened(plan: SessionPlan) -> Iterator[SparkSession]:
        assert spark is not None
        with spark_log() as log, in_one_line(log), planned_as(plan, spark):
            yield spark

    said, output = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stderr(said), redirect_stdout(output):
        patched.setattr(sys, "argv", ["fairlead", "pipeline", *map(str, arguments)])
        if spark is not None:
            patched.setattr(runner, "open_session", opened)
        try:
            main.main()
        except SystemExit as ended:
            return Done(int(str(ended.code)), output.getvalue(), said.getvalue())
    return Done(0, output.getvalue(), said.getvalue())
