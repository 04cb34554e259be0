"""`fairlead pipeline` in this process and the tests' Spark session: a Java process of its own takes 10 s of CPU."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest
from pyspark.sql import SparkSession

from fairlead.cli import main
from fairlead.cli.pipeline import runner
from fairlead.pipeline.session import SessionPlan
from fairlead.pipeline.spark_log import in_one_line, spark_log
from tests.cli.processes import Done


def run_pipeline(*arguments: object, spark: SparkSession | None = None) -> Done:
    """Run the command to its end, in the given session if there is one."""

    @contextmanager
    def opened(_plan: SessionPlan) -> Iterator[SparkSession]:
        assert spark is not None
        with spark_log() as log, in_one_line(log):
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
