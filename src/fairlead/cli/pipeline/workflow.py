"""The workflow of `fairlead pipeline worker`: each job is an activity, in the order of `fairlead pipeline all`."""

from dataclasses import dataclass, field
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

# Time without a heartbeat after which a job runs again, on any worker of the task queue.
HEARTBEAT_TIMEOUT = timedelta(seconds=30)
# Longest time of one attempt of a job.
JOB_TIME_MAX = timedelta(hours=6)
RETRIES = RetryPolicy(
    initial_interval=timedelta(seconds=10), maximum_interval=timedelta(minutes=10), maximum_attempts=10
)


@dataclass
class JobResult:
    """The result of a job: rows of each written table, and the line for the operator if findings need attention."""

    job: str
    rows: dict[str, int] = field(default_factory=dict)
    alarm: str | None = None
    # The path of the page that the job wrote.
    report: str | None = None


@dataclass
class PipelineResult:
    """The results of all jobs, the alarms among them, and the path of the report."""

    jobs: list[JobResult] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    report: str | None = None


@workflow.defn
class Pipeline:
    """Runs the jobs one after the other. A job that fails for good ends the run; the tables before it exist."""

    @workflow.run
    async def run(self, jobs: list[str]) -> PipelineResult:
        """Run these jobs in this order."""
        result = PipelineResult()
        for job in jobs:
            done = await workflow.execute_activity(
                job,
                result_type=JobResult,
                start_to_close_timeout=JOB_TIME_MAX,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=RETRIES,
            )
            result.jobs.append(done)
            if done.alarm is not None:
                result.alarms.append(f"{job}: {done.alarm}")
            result.report = done.report or result.report
        return result
