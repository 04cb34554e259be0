"""Two hosts on PostgreSQL with one journal: one is killed, the other continues, and no committed batch is missing."""

import asyncio
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.history.shard.journal import event_digest
from fairlead.journal import Kind, SegmentName, read_segment
from tests.sdk.hosts import Host

WORKFLOWS = 8
WAIT_S_MAX = 120.0


@workflow.defn
class Wait:
    def __init__(self) -> None:
        self._is_finished = False

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: self._is_finished)

    @workflow.signal
    def finish(self) -> None:
        self._is_finished = True


async def _end(client: Client, name: str) -> None:
    """Signal a workflow until it has ended; its shard may have no owner for a while."""
    handle = client.get_workflow_handle(name)
    is_closed = False
    while not is_closed:
        with suppress(RPCError):
            await handle.signal(Wait.finish, rpc_timeout=timedelta(seconds=5))
        await asyncio.sleep(0.2)
        with suppress(RPCError):
            is_closed = (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED


def _batches(journal: Path) -> dict[str, list[dict[str, Any]]]:
    """The batches without duplicates: after a kill some are recorded twice, with the same id."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for path in sorted(journal.glob("*/*.zst")):
        if SegmentName.parse(path.name).kind is Kind.HISTORY:
            for record in read_segment(path):
                assert found.setdefault((record["run_id"], record["task_id"]), record) == record
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in sorted(found.values(), key=lambda record: record["first_event_id"]):
        runs[record["run_id"]].append(record)
    return runs


async def test_hosts_on_postgres_journal_every_committed_batch(tmp_path: Path, postgres_dsn: str) -> None:
    journal = tmp_path / "journal"
    hosts = [
        Host(number, postgres_dsn, tmp_path, more=f"journal: {{folder: '{journal}'}}\nhistory: {{shards: 4}}\n")
        for number in (1, 2)
    ]
    try:
        for host in hosts:
            await host.start()
        client = await Client.connect(hosts[0].address)
        worker = Worker(client, task_queue="waits", workflows=[Wait], workflow_runner=UnsandboxedWorkflowRunner())
        names = [f"wait-{number}" for number in range(WORKFLOWS)]
        async with worker, asyncio.timeout(WAIT_S_MAX):
            for name in names:
                await client.start_workflow(Wait.run, id=name, task_queue="waits")
            await hosts[1].kill()
            await asyncio.gather(*(_end(client, name) for name in names))
        histories = {
            run.run_id: (await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()).events
            async for run in client.list_workflows()
        }
        # The next host that starts seals the open segments of the killed host.
        await hosts[1].start()
        assert [await host.stop() for host in hosts] == [0, 0]
    finally:
        for host in hosts:
            await host.kill()
    journaled = _batches(journal)
    assert journaled.keys() == histories.keys()
    assert len(histories) == WORKFLOWS
    for run_id, events in histories.items():
        digests = [digest for batch in journaled[run_id] for digest in batch["event_digests"]]
        assert digests == [event_digest(event) for event in events]
