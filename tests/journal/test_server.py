"""A real server with a journal, workflows of the official SDK, and kill -9: the journal has every committed batch."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RetryPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.history.shard.journal import event_digest
from fairlead.journal import Kind, SegmentName, read_segment
from tests.journal.victim import Victim

WORKFLOWS = 12
KILLS = 5
SEED = 20_261_116
COMPLETED = WorkflowExecutionStatus.COMPLETED.value
CONTINUED = WorkflowExecutionStatus.CONTINUED_AS_NEW.value


@activity.defn
async def double(number: int) -> int:
    await asyncio.sleep(0.02)
    return 2 * number


@workflow.defn
class Child:
    @workflow.run
    async def run(self, number: int) -> int:
        await workflow.sleep(0.1)
        return number


@workflow.defn
class Order:
    """Runs an activity, a timer, a child workflow and waits for a signal, in two runs."""

    def __init__(self) -> None:
        self._is_finished = False

    @workflow.run
    async def run(self, number: int, is_second: bool) -> int:
        await workflow.execute_activity(
            double,
            number,
            start_to_close_timeout=timedelta(seconds=2),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0),
        )
        await workflow.sleep(0.2)
        if not is_second:
            await workflow.execute_child_workflow(Child.run, number, id=f"child-{number}")
            workflow.continue_as_new(args=[number, True])
        await workflow.wait_condition(lambda: self._is_finished)
        return number

    @workflow.signal
    def finish(self) -> None:
        self._is_finished = True


async def _persistently(call: Any) -> Any:
    while True:
        try:
            return await call()
        except RPCError:
            await asyncio.sleep(0.1)


async def _run_order(client: Client, number: int, chance: random.Random) -> int:
    name = f"order-{number}"
    # The SDK may have given up on a request that was accepted.
    with suppress(WorkflowAlreadyStartedError):
        await _persistently(
            lambda: client.start_workflow(
                Order.run, args=[number, False], id=name, task_queue="orders", task_timeout=timedelta(seconds=2)
            )
        )
    handle = client.get_workflow_handle(name)
    while (await _persistently(handle.describe)).status != WorkflowExecutionStatus.COMPLETED:
        await asyncio.sleep(chance.uniform(0.2, 0.5))
        try:
            await handle.signal(Order.finish)
        except RPCError:
            continue
    return int(await _persistently(handle.result))


def _records(folder: Path, kind: Kind) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "journal" / "active").iterdir()):
        if SegmentName.parse(path.name).kind is kind:
            assert path.suffix == ".zst", "a segment is still open after the server has stopped"
            yield from read_segment(path)


Batch = dict[str, Any]


def _batches_by_run(folder: Path) -> dict[str, list[Batch]]:
    """The batches by run. Duplicates must be equal and are removed, as in the pipeline."""
    found: dict[tuple[Any, ...], Batch] = {}
    for record in _records(folder, Kind.HISTORY):
        key = tuple(record[name] for name in ("run_id", "branch_id", "first_event_id", "task_id"))
        assert found.setdefault(key, record) == record
    counts = Counter(key[:3] for key in found)
    assert [key for key, count in counts.items() if count > 1] == [], "one batch has two task ids"
    runs: dict[str, list[Batch]] = defaultdict(list)
    for _, record in sorted(found.items()):
        runs[record["run_id"]].append(record)
    return runs


async def _histories(client: Client) -> dict[str, list[Any]]:
    return {
        run.run_id: list((await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()).events)
        async for run in client.list_workflows()
    }


def _check_run(events: list[Any], batches: list[Batch]) -> None:
    assert [digest for batch in batches for digest in batch["event_digests"]] == [event_digest(one) for one in events]
    assert [kind for batch in batches for kind in batch["event_types"]] == [event.event_type for event in events]
    edges = [(batch["first_event_id"], batch["last_event_id"]) for batch in batches]
    assert [first for first, _ in edges] == [1, *(last + 1 for _, last in edges[:-1])]
    assert edges[-1][1] == len(events)
    assert [batch["task_id"] for batch in batches] == sorted(batch["task_id"] for batch in batches)
    assert batches[-1]["items"] == [{"event_id": len(events), "version": events[-1].version}]
    assert all(batch["status"] == 1 for batch in batches[:-1])


@pytest.mark.timeout(300)
async def test_the_journal_has_every_committed_batch_even_if_the_server_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    victim = Victim(tmp_path)
    await victim.start()
    client = await Client.connect(victim.address)
    worker = Worker(
        client,
        task_queue="orders",
        workflows=[Order, Child],
        activities=[double],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    try:
        async with worker:
            living = [asyncio.create_task(_run_order(client, number, chance)) for number in range(WORKFLOWS)]
            for _ in range(KILLS):
                await asyncio.sleep(chance.uniform(0.1, 1.0))
                victim.kill()
                await victim.start()
            async with asyncio.timeout(120):
                assert await asyncio.gather(*living) == list(range(WORKFLOWS)), f"seed {SEED}"
            histories = await _histories(client)
            assert await victim.stop() == 0
    except BaseException:
        victim.kill()
        raise
    journaled = _batches_by_run(tmp_path)
    # Each workflow has two runs and a child.
    assert len(histories) == 3 * WORKFLOWS
    assert journaled.keys() == histories.keys()
    for run_id, events in histories.items():
        _check_run(events, journaled[run_id])
    ends = Counter(batches[-1]["status"] for batches in journaled.values())
    assert ends == {COMPLETED: 2 * WORKFLOWS, CONTINUED: WORKFLOWS}
    continued = [batches[-1] for batches in journaled.values() if batches[-1]["status"] == CONTINUED]
    assert all(batch["new_run_id"] in histories for batch in continued)
    assert any("signals" in batch for batches in journaled.values() for batch in batches)
    tasks = Counter(record["kind"] for record in _records(tmp_path, Kind.TASK))
    # Matching's last records before a kill are lost.
    assert tasks["added"] > WORKFLOWS
    assert tasks["matched"] > WORKFLOWS
