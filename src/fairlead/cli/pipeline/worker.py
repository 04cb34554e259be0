"""`fairlead pipeline worker`: a worker of Temporal's SDK whose workflow runs the jobs, also by a schedule."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import click
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
    TLSConfig,
)
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.cli.admin.command import read_address
from fairlead.cli.admin.credentials import api_key_of
from fairlead.cli.pipeline.runner import Request, Run
from fairlead.cli.pipeline.warm_jobs import RunOne, WarmJobs, activity_of
from fairlead.cli.pipeline.workflow import Pipeline
from fairlead.core.errors import FixRequest, RetryLater
from fairlead.pipeline.jobs import reconcile
from fairlead.settings import InvalidValue
from fairlead.settings.duration import format_duration, parse_duration_s

TASK_QUEUE = "fairlead-pipeline"
# Bounds of the time between two runs of a schedule.
INTERVAL_S_MIN, INTERVAL_S_MAX = 60.0, 30 * 86_400.0
# Seconds that a stopped worker waits for its job before the job is left to another worker.
STOP_S_MAX = 10.0
# Seconds between two attempts to interrupt the job after that: Spark may have got new work.
INTERRUPT_S = 1.0


class CannotWork(RetryLater):
    """The server can't be reached, or refuses the worker."""


class WrongTls(FixRequest):
    """The options for TLS contradict each other, or a file can't be read."""


def _interval(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        interval_s = parse_duration_s(text)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{text!r} {wrong}") from wrong
    if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
        raise click.BadParameter(
            f"{text!r} is not from {format_duration(INTERVAL_S_MIN)} to {format_duration(INTERVAL_S_MAX)}"
        )
    return interval_s


OPTIONS: Sequence[click.Parameter] = (
    click.Option(
        ["--address"],
        envvar="FAIRLEAD_PIPELINE_ADDRESS",
        default="127.0.0.1:7233",
        show_default=True,
        metavar="HOST:PORT",
        callback=read_address,
        help="The server on which the workflow runs.",
    ),
    click.Option(["--namespace"], default="default", show_default=True, metavar="NAME", help="Its namespace there."),
    click.Option(
        ["--task-queue"], default=TASK_QUEUE, show_default=True, metavar="NAME", help="Task queue of the worker."
    ),
    click.Option(
        ["--schedule", "schedule_s"],
        metavar="TIME",
        callback=_interval,
        help='Create or update the schedule that starts the workflow at this interval, like "1h".',
    ),
)


@dataclass(frozen=True, slots=True)
class Service:
    """The server, the caller's credentials there, the task queue, and the interval of the schedule."""

    address: str
    namespace: str
    task_queue: str
    schedule_s: float | None = None
    api_key: str | None = None
    tls: TLSConfig | bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Read the values of the options."""
        return cls(
            given["address"],
            given["namespace"],
            given["task_queue"],
            given["schedule_s"],
            api_key_of(given["api_key"], given["api_key_file"]) or None,
            _tls_of(given),
        )

    @property
    def schedule_id(self) -> str:
        """The id of the schedule: one for each task queue."""
        return f"{self.task_queue}-schedule"


def _tls_of(given: Mapping[str, Any]) -> TLSConfig | bool:
    files = [given[f"tls_{name}_path"] for name in ("ca", "cert", "key")]
    if (files[1] is None) is not (files[2] is None):
        raise WrongTls("--tls-cert-path and --tls-key-path belong together: give both")
    name = given["tls_server_name"]
    if not (given["is_tls"] or any(files) or name):
        return False
    authorities, certificate, key = map(_content, files)
    return TLSConfig(server_root_ca_cert=authorities, client_cert=certificate, client_private_key=key, domain=name)


def _content(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as refused:
        raise WrongTls(f"{file}: can't be read ({refused.strerror}): give another file") from refused


def run_worker(
    jobs: Mapping[str, Run], options: Mapping[str, Mapping[str, Any]], request: Request, service: Service
) -> None:
    """Work until a signal asks for the end."""
    reconcile.check_options(options.get("reconcile", {}))
    warm = WarmJobs(jobs, options, request)
    # One thread: jobs run one after the other, in one session.
    with ThreadPoolExecutor(1, "pipeline") as thread:
        try:
            asyncio.run(_work(list(jobs), warm, service, thread))
        finally:
            thread.submit(warm.close).result()


async def _work(jobs: Sequence[str], warm: WarmJobs, service: Service, thread: ThreadPoolExecutor) -> None:
    stopped = asyncio.Event()
    interrupting: asyncio.Task[None] | None = None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    try:
        client = await connect(service)
        if service.schedule_s is not None:
            await create_schedule(client, service, jobs)
        async with worker_of(client, service.task_queue, jobs, warm.run, thread):
            click.echo(
                f"fairlead: the pipeline is ready on task queue {service.task_queue} of namespace {service.namespace} "
                f"at {service.address}"
            )
            await stopped.wait()
            interrupting = asyncio.create_task(_interrupt_late(warm))
    except (RPCError, RuntimeError) as refused:
        raise CannotWork(
            f"{service.address}, namespace {service.namespace!r}: {refused}: check the address, the namespace and the "
            "credentials"
        ) from refused
    finally:
        if interrupting is not None:
            interrupting.cancel()


async def _interrupt_late(warm: WarmJobs) -> None:
    """Interrupt the running job when its time is over: the SDK can't end a thread that waits for Spark."""
    await asyncio.sleep(STOP_S_MAX)
    while True:
        await asyncio.to_thread(warm.interrupt)
        await asyncio.sleep(INTERRUPT_S)


async def connect(service: Service) -> Client:
    """Connect to the server of the workflow."""
    return await Client.connect(service.address, namespace=service.namespace, api_key=service.api_key, tls=service.tls)


def worker_of(client: Client, task_queue: str, jobs: Sequence[str], run: RunOne, thread: ThreadPoolExecutor) -> Worker:
    """Return the worker, whose activities run in `thread`."""
    return Worker(
        client,
        task_queue=task_queue,
        workflows=[Pipeline],
        activities=[activity_of(job, run) for job in jobs],
        activity_executor=thread,
        max_concurrent_activities=1,
        graceful_shutdown_timeout=timedelta(seconds=STOP_S_MAX),
        # The workflow is this package's own, and deterministic.
        workflow_runner=UnsandboxedWorkflowRunner(),
    )


async def create_schedule(client: Client, service: Service, jobs: Sequence[str]) -> None:
    """Create the schedule, or update the existing one; a run that is due while one is running is skipped."""
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(
            Pipeline.run, list(jobs), id=f"{service.task_queue}-run", task_queue=service.task_queue
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(seconds=service.schedule_s or 0))]),
    )
    with suppress(ScheduleAlreadyRunningError):
        await client.create_schedule(service.schedule_id, schedule)
        return

    def renewed(found: ScheduleUpdateInput) -> ScheduleUpdate:
        current = found.description.schedule
        current.action, current.spec = schedule.action, schedule.spec
        return ScheduleUpdate(current)

    await client.get_schedule_handle(service.schedule_id).update(renewed)
