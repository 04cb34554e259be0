"""Jobs as activities: one thread runs them in one Spark session, which stays open between runs."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from temporalio import activity
from temporalio.exceptions import ApplicationError

from fairlead.cli.pipeline.runner import Request, Run, prepare, run_job
from fairlead.cli.pipeline.workflow import HEARTBEAT_TIMEOUT, JobResult
from fairlead.core.errors import FixRequest, GiveUp, RetryElsewhere, RetryLater
from fairlead.pipeline.java_errors import Py4JError
from fairlead.pipeline.job import Summary
from fairlead.pipeline.session import SessionPlan, open_session
from fairlead.pipeline.spark_log import SparkFailed, in_one_line
from fairlead.report import printable

# Seconds between heartbeats: several in the time after which a job counts as lost.
HEARTBEAT_S = HEARTBEAT_TIMEOUT.total_seconds() / 6

RunOne = Callable[[str, Callable[[str], None]], Summary]


class WarmJobs:
    """Runs jobs in one session. Only one thread may use it; a session in which Spark failed is replaced."""

    def __init__(self, jobs: Mapping[str, Run], options: Mapping[str, Mapping[str, Any]], request: Request) -> None:
        """Start Spark with the first job."""
        self._jobs = jobs
        self._options = options
        self._request = request
        self._stack = ExitStack()
        self._spark: SparkSession | None = None

    def run(self, job: str, say: Callable[[str], None]) -> Summary:
        """Run a job; `say` gets lines of progress."""
        one, options = self._jobs[job], self._options.get(job, {})
        plan, lake = prepare({job: one}, {job: options}, self._request)
        spark = self._session(plan, say)
        try:
            with in_one_line(None):
                return run_job(one, options, self._request, spark=spark, lake=lake, progress=say)
        except SparkFailed:
            self.close()
            raise

    def interrupt(self) -> None:
        """Let Spark drop its work, so that the running job fails soon; any thread may call this."""
        spark = self._spark
        if spark is None:
            return
        # Java may end at any moment. Spark Connect has no context.
        with suppress(PySparkException, Py4JError, OSError):
            if "connect" in type(spark).__module__:
                spark.interruptAll()
            else:
                spark.sparkContext.cancelAllJobs()

    def close(self) -> None:
        """End the session."""
        self._spark = None
        self._stack.close()

    def _session(self, plan: SessionPlan, say: Callable[[str], None]) -> SparkSession:
        if self._spark is None:
            say("starting Spark")
            self._spark = self._stack.enter_context(open_session(plan))
        return self._spark


def activity_of(job: str, run: RunOne) -> Callable[[], JobResult]:
    """Return the activity with the name of the job."""

    def work() -> JobResult:
        with _heart() as say:
            try:
                summary = run(job, say)
            except (FixRequest, GiveUp, RetryLater, RetryElsewhere) as failure:
                # Spark may fail for lack of memory, or because Java was killed: a new session may do better.
                is_final = isinstance(failure, FixRequest | GiveUp) and not isinstance(failure, SparkFailed)
                raise ApplicationError(
                    printable(str(failure)), type=type(failure).__name__, non_retryable=is_final
                ) from None
        report = summary.findings.get("report")
        return JobResult(job, dict(summary.rows), summary.alarm, report if isinstance(report, str) else None)

    return activity.defn(name=job)(work)


@contextmanager
def _heart() -> Iterator[Callable[[str], None]]:
    """Send heartbeats with the last line of progress during the block, also while Spark works silently."""
    line = "starting"
    is_over = threading.Event()
    # The thread needs the activity's context to send heartbeats.
    context = copy_context()

    def beat() -> None:
        while not is_over.wait(HEARTBEAT_S):
            activity.heartbeat(line)

    def say(text: str) -> None:
        nonlocal line
        line = text
        activity.heartbeat(text)

    thread = threading.Thread(target=context.run, args=(beat,), daemon=True)
    thread.start()
    try:
        yield say
    finally:
        is_over.set()
        thread.join()
