"""A real server journals runs of every kind, across kills: `reconcile` finds nothing wrong."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest, reconcile
from fairlead.pipeline.lake import Lake
from tests.journal.victim import Victim

QUEUE = "orders"
ORDERS = 6
WAIT_S_MAX = 120.0
QUICKLY = RetryPolicy(initial_interval=timedelta(milliseconds=50), backoff_coefficient=1.0, maximum_attempts=3)


@activity.defn
async def deliver() -> int:
    """Fails on its first attempts."""
    if activity.info().attempt == 1:
        raise ApplicationError("not at home")
    return activity.info().attempt


@workflow.defn
class Parcel:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(
            deliver, start_to_close_timeout=timedelta(seconds=5), retry_policy=QUICKLY
        )


@workflow.defn
class Order:
    """Runs a child with a retried activity, then continues as new with the signals so far, and waits for its end."""

    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.run
    async def run(self, said_before: list[str] | None) -> list[str]:
        if said_before is None:
            await workflow.execute_child_workflow(Parcel.run, id=f"{workflow.info().workflow_id}/parcel")
            workflow.continue_as_new(self._words)
        self._words[:0] = said_before
        await workflow.wait_condition(lambda: "end" in self._words and workflow.all_handlers_finished())
        return self._words

    @workflow.signal
    def tell(self, word: str) -> None:
        self._words.append(word)

    @workflow.update
    async def ask(self, word: str) -> int:
        await workflow.sleep(0.05)
        self._words.append(word)
        return len(self._words)


@workflow.defn
class Stubborn:
    """Never succeeds: each attempt is a new run."""

    @workflow.run
    async def run(self) -> None:
        raise ApplicationError("no")


@workflow.defn
class Tick:
    @workflow.run
    async def run(self) -> None:
        """Fails each time."""


class Seen(NamedTuple):
    """A run as the server describes it."""

    status: int
    events: int


async def persistently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat the call until the server responds, which may be down for a while."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while True:
        try:
            return await call()
        except RPCError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.1)


async def reset(client: Client, handle: WorkflowHandle[Any, Any], *, after: "EventType.ValueType") -> str:
    """Reset the current run to the event after the first one of this type; returns the new run's id."""
    current = await client.get_workflow_handle(handle.id).fetch_history()
    event_id = next(event.event_id for event in current.events if event.event_type == after) + 1
    request = ResetWorkflowExecutionRequest(
        namespace="default",
        reason="again",
        request_id=f"{handle.id}-{event_id}",
        workflow_task_finish_event_id=event_id,
    )
    request.workflow_execution.workflow_id = handle.id
    return str((await client.workflow_service.reset_workflow_execution(request)).run_id)


async def tell_order(client: Client, number: int) -> list[str]:
    """Run an order and send it many signals, while the server is killed."""
    name = f"order-{number}"
    handle = client.get_workflow_handle(name)
    with suppress(RPCError):
        await handle.signal(Order.tell, "early")
    for word in ("one", "two", "end"):
        # The signals are spread over the time in which the server is killed.
        await asyncio.sleep(0.2)
        await persistently(lambda word=word: handle.signal(Order.tell, word))  # type: ignore[misc]
    return list(await persistently(handle.result))


async def live(client: Client, victim: Victim) -> None:
    """Run workflows with every possible outcome."""

    async def start(what: Any, name: str, *args: Any, **options: Any) -> WorkflowHandle[Any, Any]:
        return await client.start_workflow(what, args=list(args), id=name, task_queue=QUEUE, **options)

    for number in range(ORDERS):
        await start(Order.run, f"order-{number}", None, task_timeout=timedelta(seconds=2))
    telling = [asyncio.create_task(tell_order(client, number)) for number in range(ORDERS)]
    # The server is killed between the first signals and the last.
    await asyncio.sleep(0.4)
    victim.kill()
    await victim.start()
    async with asyncio.timeout(WAIT_S_MAX):
        reported = await asyncio.gather(*telling)
    assert all(words[-1] == "end" for words in reported)

    talked = await start(Order.run, "talked", [], start_signal="tell", start_signal_args=["with the start"])
    assert await talked.execute_update(Order.ask, "sugar", id="sugar") == 2
    # Reset an open run, then reset the new run.
    for point in (EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED):
        await reset(client, talked, after=point)
    current = client.get_workflow_handle("talked")
    await current.signal(Order.tell, "after the reset")
    await current.signal(Order.tell, "end")
    assert "after the reset" in await current.result()
    closed = client.get_workflow_handle("order-0")
    await reset(client, closed, after=EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED)
    await closed.signal(Order.tell, "end")
    await closed.result()

    stubborn = await start(Stubborn.run, "stubborn", retry_policy=QUICKLY)
    with pytest.raises(WorkflowFailureError):
        await stubborn.result()
    await start(Tick.run, "tick", cron_schedule="@every 1s")
    for name in ("terminated", "cancelled", "open"):
        await start(Order.run, name, [])
    await client.get_workflow_handle("terminated").terminate("enough")
    await client.get_workflow_handle("cancelled").cancel()
    await start(Order.run, "open", [], id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING)
    timed_out = await start(Order.run, "timed out", [], run_timeout=timedelta(seconds=1))
    for one in (timed_out, client.get_workflow_handle("cancelled")):
        with pytest.raises(WorkflowFailureError):
            await one.result()
    # Kill the server while cron runs follow each other; after its restart it continues them.
    await until_idle(client, "open")
    await until_runs(client, "tick", 2)
    before = await count_runs(client, "tick")
    victim.kill()
    await victim.start()
    await until_runs(client, "tick", before + 2)
    await persistently(lambda: client.get_workflow_handle("tick").terminate("enough"))


async def until_idle(client: Client, name: str) -> None:
    """Wait until the run has no workflow task: otherwise a kill delays its next events by the task's timeout."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            described = (await client.get_workflow_handle(name).describe()).raw_description
            if described.workflow_execution_info.history_length > 2 and not described.HasField("pending_workflow_task"):
                return
            await asyncio.sleep(0.05)


async def count_runs(client: Client, name: str) -> int:
    return (await client.count_workflows(f"WorkflowId = '{name}'")).count


async def until_runs(client: Client, name: str, count: int) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while await persistently(lambda: count_runs(client, name)) < count:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.05)


async def look(client: Client) -> dict[str, Seen]:
    """Every run of the server, by run id."""
    return {
        run.run_id: Seen(
            0 if run.status is None else run.status.value,
            len((await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()).events),
        )
        async for run in client.list_workflows()
    }


async def journal_a_life(folder: Path) -> dict[str, Seen]:
    """Run all these workflows on a server that is killed several times; returns its runs at the end."""
    victim = Victim(folder)
    await victim.start()
    try:
        client = await Client.connect(victim.address)
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[Order, Parcel, Stubborn, Tick],
            activities=[deliver],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with worker:
            await live(client, victim)
            seen = await look(client)
        assert await victim.stop() == 0
    except BaseException:
        victim.kill()
        raise
    return seen


def test_the_journal_of_a_real_server_has_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    seen = asyncio.run(journal_a_life(tmp_path))
    lake = Lake(tmp_path / "lake")
    assert ingest.run(JobContext(spark, lake, journal=tmp_path / "journal")).alarm is None
    summary = reconcile.run(JobContext(spark, lake, options={"grace": 0.0}))
    verdicts = lake.read_derived(spark, "verdicts").collect()
    assert [row.asDict(recursive=True) for row in verdicts if row.verdict != "agreed"] == []
    assert summary.alarm is None
    assert {row.run_id: Seen(row.status, row.last_event_id) for row in verdicts} == seen
    statuses = Counter(run.status for run in seen.values())
    assert set(statuses) == {1, 2, 3, 4, 5, 6, 7}
