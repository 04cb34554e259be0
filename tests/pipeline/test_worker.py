"""`fairlead pipeline worker`: the jobs as activities of a workflow, on a schedule."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from temporalio.client import (
    Client,
    ScheduleActionStartWorkflow,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.exceptions import ActivityError, ApplicationError

from fairlead.cli.pipeline import workflow
from fairlead.cli.pipeline.command import JOBS, pipeline
from fairlead.cli.pipeline.runner import Request
from fairlead.cli.pipeline.warm_jobs import RunOne, WarmJobs
from fairlead.cli.pipeline.worker import Service, create_schedule, worker_of
from fairlead.cli.pipeline.workflow import Pipeline, PipelineResult
from fairlead.core.errors import GiveUp, RetryLater
from fairlead.pipeline.job import Summary
from fairlead.pipeline.jobs import traffic
from fairlead.pipeline.spark_log import SparkFailed
from fairlead.report import Output
from tests.cli.processes import run as run_command
from tests.patience import until
from tests.pipeline.journals import write_journal
from tests.sdk.servers import serving

QUEUE = "pipeline"
# Spark starts twice, on a machine that may be busy.
WHOLE_S_MAX = 600.0
# Jobs of the test with Spark: all jobs would take minutes.
FEW = ["ingest", "traffic", "report"]
Say = Callable[[str], None]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with serving("fairlead", tmp_path) as served:
        yield served


@asynccontextmanager
async def working(address: str, run: RunOne) -> AsyncIterator[Client]:
    """Run a worker whose jobs do what the test wants, without Spark."""
    client = await Client.connect(address)
    with ThreadPoolExecutor(1) as thread:
        async with worker_of(client, QUEUE, list(JOBS), run, thread):
            yield client


async def started(client: Client, *jobs: str) -> "WorkflowHandle[Pipeline, PipelineResult]":
    return await client.start_workflow(Pipeline.run, list(jobs), id="run", task_queue=QUEUE)


def done(job: str, **findings: object) -> Summary:
    return Summary(job, {f"{job}_table": 3}, dict(findings))


async def test_the_jobs_run_in_order_and_alarms_and_the_report_are_in_the_result(address: str) -> None:
    ran: list[tuple[str, str]] = []

    def run(job: str, say: Say) -> Summary:
        say("working")
        ran.append((job, threading.current_thread().name))
        alarm = "a segment is damaged" if job == "ingest" else None
        return Summary(job, {job: 1}, {"report": "/lake/report.html"} if job == "report" else {}, alarm)

    async with working(address, run) as client:
        result = await (await started(client, *JOBS)).result()
    assert [job for job, _ in ran] == list(JOBS)
    assert len({thread for _, thread in ran}) == 1
    assert [(each.job, each.rows) for each in result.jobs] == [(job, {job: 1}) for job in JOBS]
    assert result.alarms == ["ingest: a segment is damaged"]
    assert result.report == "/lake/report.html"


async def failure_of(handle: "WorkflowHandle[Pipeline, PipelineResult]") -> ApplicationError:
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert isinstance(failed.value.cause, ActivityError)
    cause = failed.value.cause.cause
    assert isinstance(cause, ApplicationError)
    return cause


async def test_a_wrong_lake_fails_the_workflow_without_retries(address: str, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "notes.txt").write_text("mine")
    request = Request(tmp_path / "lake", None, None, None, None, None, Output.TABLE)
    jobs = WarmJobs({"traffic": traffic.run}, {}, request)
    async with working(address, jobs.run) as client:
        failure = await failure_of(await started(client, "traffic", "histories"))
        attempts = [
            event.activity_task_started_event_attributes.attempt
            for event in (await client.get_workflow_handle("run").fetch_history()).events
            if event.HasField("activity_task_started_event_attributes")
        ]
    assert (failure.type, failure.non_retryable) == ("NotALake", True)
    assert "has files, but is not a lake" in failure.message
    assert attempts == [1]


@pytest.mark.parametrize("failure", [RetryLater("the lake is busy"), SparkFailed("Java was killed")])
async def test_a_failure_that_may_pass_is_retried(
    address: str, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setattr(workflow.RETRIES, "initial_interval", timedelta(milliseconds=10))
    failures = [failure, failure]

    def run(job: str, _: Say) -> Summary:
        if failures:
            raise failures.pop()
        return done(job)

    async with working(address, run) as client:
        result = await (await started(client, "traffic")).result()
    assert [each.rows for each in result.jobs] == [{"traffic_table": 3}]


async def test_contradicting_data_is_not_retried(address: str) -> None:
    def run(_job: str, _say: Say) -> Summary:
        raise GiveUp("the batch has two ends")

    async with working(address, run) as client:
        failure = await failure_of(await started(client, "reconcile"))
    assert (failure.message, failure.non_retryable) == ("the batch has two ends", True)


async def test_a_long_job_sends_heartbeats_with_its_progress(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.cli.pipeline.warm_jobs.HEARTBEAT_S", 0.05)
    may_end = threading.Event()

    def run(job: str, say: Say) -> Summary:
        say("counting")
        assert may_end.wait(60)
        return done(job)

    async with working(address, run) as client:
        handle = await started(client, "traffic")

        async def is_shown() -> bool:
            pending = (await handle.describe()).raw_description.pending_activities
            return any(b'"counting"' in payload.data for each in pending for payload in each.heartbeat_details.payloads)

        await until(is_shown)
        may_end.set()
        await handle.result()


async def test_the_schedule_is_created_once_and_then_updated(address: str) -> None:
    client = await Client.connect(address)
    for schedule_s in (3600.0, 3600.0, 7200.0):
        await create_schedule(client, Service(address, "default", QUEUE, schedule_s), list(JOBS))
    schedules = [each async for each in await client.list_schedules()]
    assert [each.id for each in schedules] == ["pipeline-schedule"]
    found = await client.get_schedule_handle("pipeline-schedule").describe()
    assert [each.every for each in found.schedule.spec.intervals] == [timedelta(hours=2)]
    action = found.schedule.action
    assert isinstance(action, ScheduleActionStartWorkflow)
    assert (action.workflow, action.task_queue) == ("Pipeline", QUEUE)


def test_wrong_options_are_reported_before_anything_starts(tmp_path: Path) -> None:
    given = ["worker", "--lake", str(tmp_path / "lake"), "--journal", str(tmp_path)]
    for more, said in {
        ("--schedule", "5s"): "is not from 1m to 720h",
        ("--schedule", "often"): "'often'",
        ("--address", "nowhere"): "'nowhere' is not an address",
    }.items():
        refused = CliRunner().invoke(pipeline, [*given, *more])
        assert refused.exit_code == 2
        assert said in refused.output


async def test_a_server_that_can_not_be_reached_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    folders = ("--lake", str(tmp_path / "lake"), "--journal", str(tmp_path / "journal"))
    refused = await run_command("pipeline", "worker", *folders, "--address", "127.0.0.1:1")
    assert refused.code == 1
    assert "127.0.0.1:1, namespace 'default'" in refused.line


@contextmanager
def worker_process(address: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the command, until it is ready and the block ends."""
    arguments = ("--address", address, "--journal", str(folder / "journal"), "--lake", str(folder / "lake"))
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "pipeline", "worker", *arguments, "--schedule", "1h"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert "is ready on task queue fairlead-pipeline" in process.stdout.readline()
        yield process
    finally:
        process.terminate()
        assert process.communicate()[0] == ""
        assert process.returncode in (0, -signal.SIGKILL)


@pytest.mark.timeout(WHOLE_S_MAX)
def test_a_killed_worker_is_replaced_and_its_jobs_are_done(address: str, tmp_path: Path) -> None:
    """The whole command with Spark, in one test because Spark is slow: killed in a job, started again, and stopped."""
    write_journal(tmp_path / "journal")
    asyncio.run(kill_and_finish(address, tmp_path))


async def is_working(handle: "WorkflowHandle[Pipeline, PipelineResult]") -> bool:
    pending = (await handle.describe()).raw_description.pending_activities
    return any(each.HasField("last_heartbeat_time") for each in pending)


async def kill_and_finish(address: str, folder: Path) -> None:
    client = await Client.connect(address)
    with worker_process(address, folder) as first:
        schedule = client.get_schedule_handle("fairlead-pipeline-schedule")
        action = (await schedule.describe()).schedule.action
        assert isinstance(action, ScheduleActionStartWorkflow)
        run = await client.start_workflow(Pipeline.run, FEW, id="run", task_queue=action.task_queue)

        async def is_started() -> bool:
            return (folder / "lake" / "_staging" / "batches").is_dir()

        await until(is_started)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    with worker_process(address, folder):
        result = await run.result()
        events = (await run.fetch_history()).events
        # The worker is stopped in the middle of another run.
        again = await client.start_workflow(Pipeline.run, ["backtest"], id="again", task_queue=action.task_queue)
        await until(lambda: is_working(again))
    assert (await again.describe()).status is WorkflowExecutionStatus.RUNNING
    attempts = [
        event.activity_task_started_event_attributes.attempt
        for event in events
        if event.HasField("activity_task_started_event_attributes")
    ]
    assert attempts == [2, *[1] * (len(FEW) - 1)]
    assert [each.job for each in result.jobs] == FEW
    assert result.jobs[0].rows["task"] > 0
    assert result.report == str(folder / "lake" / "report.html")
    assert "<html" in await asyncio.to_thread(Path(result.report).read_text)
