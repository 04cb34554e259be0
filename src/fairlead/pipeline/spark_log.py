"""Spark's log and errors, shortened for people."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from pyspark.errors import PySparkException

from fairlead.core.errors import FairleadError, GiveUp, RetryLater
from fairlead.pipeline.java_errors import Py4JError

END_WAIT_S = 0.2


class SparkDidNotStart(RetryLater):
    """Spark could not be started or reached."""


class SparkFailed(GiveUp):
    """Spark failed during the job."""


@contextlib.contextmanager
def spark_log() -> Iterator[Path]:
    """Yield a log file for the output of Java and the Python workers; it is removed if the block succeeds."""
    descriptor, name = tempfile.mkstemp(prefix="fairlead-spark-", suffix=".log")
    os.close(descriptor)
    log = Path(name)
    try:
        yield log
    except (SparkFailed, SparkDidNotStart):
        # The error message names the file, so keep it.
        raise
    except BaseException:
        log.unlink(missing_ok=True)
        raise
    log.unlink(missing_ok=True)


@contextlib.contextmanager
def output_in(log: Path) -> Iterator[None]:
    """Redirect stdout and stderr of processes started in this block to the log, for their whole life."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours = {number: os.dup(number) for number in (1, 2)}
    try:
        with log.open("ab") as file, warnings.catch_warnings():
            for number in ours:
                os.dup2(file.fileno(), number)
            yield
    finally:
        for number, kept in ours.items():
            os.dup2(kept, number)
            os.close(kept)


@contextlib.contextmanager
def in_one_line(log: Path | None) -> Iterator[None]:
    """Convert Spark's errors, which are pages long, to a FairleadError of one line."""
    try:
        yield
    except FairleadError:
        raise
    except (PySparkException, Py4JError, ConnectionError) as failed:
        where = f"; its log is {log}" if log else ""
        why = first_line(failed)
        if "OutOfMemoryError" in why:
            why += ": process less at a time (--since, --until), or use a cluster (--master)"
        else:
            # If Java has ended, Spark's own errors are misleading. Through Spark Connect, Java is not ours.
            why = (end_of_java() if log else None) or why
        raise SparkFailed(f"Spark failed: {why}{where}") from failed


def end_of_java() -> str | None:
    """Describe how the Java process of this session ended; None if it still runs, or if there is no process."""
    from pyspark import SparkContext  # noqa: PLC0415 - missing with Spark Connect

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - the only way to its process
    if process is None:
        return None
    try:
        # py4j reports the lost connection slightly before the process has ended.
        code = process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        return None
    if code == -signal.SIGKILL:
        return "Java was killed, probably by the system for lack of memory"
    return f"Java ended with exit code {code}"


def first_line(failed: BaseException) -> str:
    """Return the relevant line of Spark's error: the last cause that it names, else the first line."""
    try:
        lines = [re.sub("^(: |Caused by: )", "", line.strip()) for line in str(failed).splitlines() if line.strip()]
    except (PySparkException, Py4JError, OSError):  # Spark fetches the text from Java, which may have ended.
        return type(failed).__name__
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (raised or lines or [type(failed).__name__])[0 if not raised else -1][:300]
