"""Record the histories of `reference_programs` from the reference server: `python -m tests.history.record_reference`.

Needs the `temporal` command line with its development server. The suite itself reads only what was recorded.
"""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest, ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import Priority, RetryPolicy, WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.history import reference_programs as programs

RECORDED = Path(__file__).parent / "recorded"
QUEUE = "recorded"
Handle = WorkflowHandle[Any, Any]


class Recorder:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def start(self, name: str, program: Any, *args: Any, **options: Any) -> Handle:
        return await self.client.start_workflow(program, args=list(args), id=name, task_queue=QUEUE, **options)

    async def save(self, name: str, workflow_id: str, run_id: str = "") -> str:
        """Write one run's history; return the id of the run that continues it, if any."""
        history, token = History(), b""
        while True:
            answer = await self.client.workflow_service.get_workflow_execution_history(
                GetWorkflowExecutionHistoryRequest(
                    namespace="default",
                    execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
                    next_page_token=token,
                )
            )
            history.MergeFrom(answer.history)
            token = answer.next_page_token
            if not token:
                break
        events = [json.dumps(MessageToDict(event), sort_keys=True) for event in history.events]
        (RECORDED / f"{name}.json").write_text('{"events": [\n' + ",\n".join(events) + "\n]}\n")
        last = history.events[-1]
        which = last.WhichOneof("attributes")
        return str(getattr(getattr(last, which), "new_execution_run_id", "")) if which else ""

    async def save_chain(self, name: str, workflow_id: str, run_id: str | None) -> None:
        number, next_run = 1, run_id or ""
        while next_run:
            following = await self.save(f"{name}.{number}" if number > 1 else name, workflow_id, next_run)
            number, next_run = number + 1, following


async def settle(handle: Handle) -> None:
    with contextlib.suppress(WorkflowFailureError):
        await handle.result(follow_runs=True)


class Cases:
    """The client's actions in each recorded case."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.recorder = Recorder(client)

    async def simple(self, name: str, program: Any, *args: Any, **options: Any) -> None:
        handle = await self.recorder.start(name, program, *args, **options)
        await self.finish(name, handle)

    async def finish(self, name: str, handle: Handle) -> None:
        await settle(handle)
        await self.recorder.save_chain(name, name, handle.first_execution_run_id or handle.result_run_id)

    async def with_child(self, name: str, kind: str, *, child: bool = True) -> None:
        await self.simple(name, programs.Parent.run, kind)
        if not child:
            return
        for _ in range(30):
            description = await self.client.get_workflow_handle(f"{name}-child").describe()
            if description.close_time or kind == "abandoned":
                break
            await asyncio.sleep(0.1)
        await self.recorder.save(f"{name}-child", f"{name}-child")

    async def signaled(self, name: str, *, count: int, block_s: float, wait_s: float, start: bool = False) -> None:
        options: dict[str, Any] = {"start_signal": "name", "start_signal_args": ["zero"]} if start else {}
        handle = await self.recorder.start(name, programs.Signals.run, count, block_s, **options)
        await asyncio.sleep(wait_s)
        for number in range(max(count - start, 1)):
            await handle.signal("name", f"{number}")
        await self.finish(name, handle)

    async def canceled(self, name: str, wait_s: float) -> None:
        handle = await self.recorder.start(name, programs.UntilCanceled.run)
        await asyncio.sleep(wait_s)
        await handle.cancel()
        await self.finish(name, handle)

    async def terminated(self, name: str) -> None:
        handle = await self.recorder.start(name, programs.UntilCanceled.run)
        await asyncio.sleep(0.5)
        await handle.terminate("a detail", reason="enough")
        await self.finish(name, handle)

    async def terminated_while_blocked(self, name: str) -> None:
        handle = await self.recorder.start(name, programs.Signals.run, 1, 1.0)
        await asyncio.sleep(0.5)
        await handle.signal("name", "buffered")
        await handle.terminate(reason="while the task is started")
        await self.finish(name, handle)

    async def activity_canceled(self, name: str, kind: str) -> None:
        handle = await self.recorder.start(name, programs.CanceledActivity.run, kind)
        await asyncio.sleep(0.6)
        await handle.signal("go")
        await self.finish(name, handle)

    async def external(self, name: str, kind: str, *, exists: bool) -> None:
        other = f"{name}-other"
        if not exists:
            await self.simple(name, programs.External.run, kind, other)
            return
        program: Any = programs.Signals.run if kind == "signal" else programs.UntilCanceled.run
        handle = await self.recorder.start(other, program, *((1, 0.0) if kind == "signal" else ()))
        await asyncio.sleep(0.3)
        await self.simple(name, programs.External.run, kind, other)
        await settle(handle)
        await self.recorder.save(other, other)

    async def updated(self, name: str) -> None:
        handle = await self.recorder.start(name, programs.Updated.run)
        await asyncio.sleep(0.4)
        for number in (1, -1, 2, 101):
            with contextlib.suppress(WorkflowUpdateFailedError):
                await handle.execute_update("add", number)
        await asyncio.gather(*(handle.execute_update("add", number) for number in (3, 4)))
        await handle.signal("finish")
        await self.finish(name, handle)

    async def update_with_start(self, name: str) -> None:
        operation = WithStartWorkflowOperation(
            programs.Updated.run, id=name, task_queue=QUEUE, id_conflict_policy=WorkflowIDConflictPolicy.FAIL
        )
        await self.client.execute_update_with_start_workflow("add", 5, start_workflow_operation=operation)
        handle = await operation.workflow_handle()
        with contextlib.suppress(WorkflowUpdateFailedError):
            await handle.execute_update("add", -5)
        await handle.signal("finish")
        await settle(handle)
        await self.recorder.save(name, name)

    async def delayed(self, name: str, *, cancels: bool) -> None:
        handle = await self.recorder.start(name, programs.Signals.run, 1, 0.0, start_delay=timedelta(seconds=2))
        await asyncio.sleep(0.3)
        await (handle.cancel() if cancels else handle.signal("name", "early"))
        await self.finish(name, handle)

    async def reset(self, name: str) -> None:
        handle = await self.recorder.start(name, programs.Signals.run, 2, 0.0)
        for number in range(2):
            await asyncio.sleep(0.3)
            await handle.signal("name", f"{number}")
        await settle(handle)
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace="default",
                workflow_execution=WorkflowExecution(workflow_id=name, run_id=handle.result_run_id or ""),
                reason="again",
                workflow_task_finish_event_id=4,
                request_id=name,
            )
        )
        await settle(self.client.get_workflow_handle(name))
        await self.recorder.save(name, name)

    async def cron(self, name: str) -> None:
        handle = await self.recorder.start(name, programs.CronJob.run, cron_schedule="@every 1s")
        await asyncio.sleep(3.5)
        await self.client.get_workflow_handle(name).terminate()
        await self.recorder.save_chain(name, name, handle.result_run_id)

    def all(self) -> list[Awaitable[None]]:
        retry = RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=3)
        second = timedelta(seconds=1)
        timeouts = (
            "start_to_close", "schedule_to_start", "schedule_to_close", "schedule_to_close_in_backoff",
            "start_to_close_retried", "heartbeat",
        )  # fmt: skip
        return [
            self.simple(
                "hello", programs.Hello.run, "you", memo={"m": 1}, static_summary="hi", static_details="details"
            ),
            self.simple(
                "priority",
                programs.OneActivity.run,
                "p",
                priority=Priority(priority_key=1, fairness_key="tenant", fairness_weight=2.0),
                run_timeout=timedelta(minutes=5),
                execution_timeout=timedelta(minutes=9),
                task_timeout=timedelta(seconds=7),
            ),
            self.simple("one_activity", programs.OneActivity.run, "x"),
            self.simple("many_activities", programs.ManyActivities.run),
            self.simple("activity_retried", programs.RetriedActivity.run),
            self.simple("activity_exhausted", programs.ExhaustedActivity.run),
            self.simple("activity_fatal", programs.FatalActivity.run),
            self.simple("activity_non_retryable_type", programs.NonRetryableType.run),
            *(self.simple(f"activity_timeout_{kind}", programs.ActivityTimeouts.run, kind) for kind in timeouts),
            self.activity_canceled("activity_cancel_try", "try"),
            self.activity_canceled("activity_cancel_wait", "wait"),
            self.activity_canceled("activity_cancel_unstarted", "unstarted"),
            self.simple("activity_scheduled_and_canceled", programs.ScheduledAndCanceledAtOnce.run),
            self.simple("timer", programs.Timer.run),
            self.simple("timer_canceled", programs.CanceledTimer.run),
            self.signaled("signals", count=2, block_s=0.0, wait_s=0.3),
            self.signaled("signals_buffered", count=2, block_s=1.0, wait_s=0.4),
            self.signaled("signal_meets_completion", count=0, block_s=1.0, wait_s=0.4),
            self.signaled("signal_with_start", count=2, block_s=0.0, wait_s=0.3, start=True),
            self.canceled("canceled", 0.4),
            self.canceled("canceled_at_once", 0.0),
            self.terminated("terminated"),
            self.terminated_while_blocked("terminated_while_blocked"),
            self.simple("results_buffered", programs.BlockedActivityResults.run),
            self.simple("fails", programs.Fails.run, 9),
            self.simple("workflow_retried", programs.Fails.run, 3, retry_policy=retry),
            self.simple("workflow_retries_exhausted", programs.Fails.run, 9, retry_policy=retry),
            self.simple(
                "continued_as_new",
                programs.ContinuesAsNew.run,
                2,
                memo={"first": True},
                execution_timeout=timedelta(minutes=3),
            ),
            self.cron("cron"),
            self.simple("markers", programs.Markers.run),
            self.simple("upserts", programs.Upserts.run, memo={"gone": 1}),
            self.with_child("child_ok", "ok"),
            self.with_child("child_fails", "fails"),
            self.with_child("child_exists", "exists", child=False),
            self.with_child("child_canceled", "canceled"),
            self.with_child("child_timed_out", "timed_out"),
            self.with_child("child_abandoned", "abandoned"),
            self.with_child("child_terminated_with_parent", "terminated_with_parent"),
            self.with_child("child_canceled_with_parent", "canceled_with_parent"),
            self.external("external_signal", "signal", exists=True),
            self.external("external_signal_missing", "signal", exists=False),
            self.external("external_cancel", "cancel", exists=True),
            self.external("external_cancel_missing", "cancel", exists=False),
            self.updated("updated"),
            self.update_with_start("update_with_start"),
            self.simple("task_fails_once", programs.TaskFails.run, 1),
            self.simple("task_fails_thrice", programs.TaskFails.run, 3),
            self.simple("task_times_out", programs.TaskTimesOut.run, task_timeout=second),
            self.simple("run_timeout", programs.UntilCanceled.run, run_timeout=second),
            self.simple("execution_timeout", programs.UntilCanceled.run, execution_timeout=second),
            self.simple(
                "run_timeout_retried",
                programs.UntilCanceled.run,
                run_timeout=second,
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100), maximum_attempts=2),
            ),
            self.simple("start_delay", programs.Hello.run, "later", start_delay=second),
            self.simple("leaves_things_behind", programs.LeavesThingsBehind.run),
            self.delayed("start_delay_signaled", cancels=False),
            self.delayed("start_delay_canceled", cancels=True),
            self.reset("reset"),
        ]


async def run_cases(client: Client) -> None:
    """Run a few cases at a time, so that they don't have to wait for the worker."""
    cases = Cases(client).all()
    for number in range(0, len(cases), 4):
        for outcome in await asyncio.gather(*cases[number : number + 4], return_exceptions=True):
            if isinstance(outcome, BaseException):
                sys.stderr.write(f"{outcome!r}\n")


async def connect(address: str) -> Client:
    """Connect to the server, which answers only a few seconds after its start."""
    for _ in range(100):
        try:
            client = await Client.connect(address)
            await client.count_workflows()
        except (RuntimeError, RPCError):
            await asyncio.sleep(0.2)
        else:
            return client
    raise TimeoutError(f"the reference server at {address} does not answer")


async def record(address: str) -> None:
    client = await connect(address)
    async with Worker(
        client, task_queue=QUEUE, workflows=programs.WORKFLOWS, activities=programs.ACTIVITIES,
        workflow_runner=UnsandboxedWorkflowRunner(), debug_mode=True, graceful_shutdown_timeout=timedelta(seconds=1),
    ):  # fmt: skip
        await run_cases(client)


def main() -> None:
    """Start the reference server on a free loopback port, record, and stop it."""
    RECORDED.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = str(Path(sys.executable).parent / "temporal")
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(  # noqa: S603 - the reference server on loopback
            [
                command, "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port),
                "--db-filename", f"{folder}/reference.db", "--log-level", "error",
                "--search-attribute", "CustomKeywordField=Keyword",
            ]
        )  # fmt: skip
        try:
            asyncio.run(record(f"127.0.0.1:{port}"))
        finally:
            server.terminate()
            server.wait(20)


if __name__ == "__main__":
    main()
