"""FL-70: real clusters agree; events that are deleted from a database are found and restored."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from temporalio import activity, workflow
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.testing import FairleadClusters
from tests.cli.thread import run_in_thread
from tests.patience import until
from tests.replication.reconciled import Reconciled, assert_reconciled, reconcile_journals

QUEUE = "orders"
SAME_S_MAX = 60.0
POLL_S = 0.05


@activity.defn
async def charge(word: str) -> str:
    """Returns its argument."""
    return word


@workflow.defn
class Order:
    """A workflow with an activity for each word; it continues as new if a word says so, and waits for signals."""

    def __init__(self) -> None:
        self._told: list[str] = []

    @workflow.run
    async def run(self, words: list[str], waits_for: int) -> list[str]:
        for word in words:
            if word == "again":
                workflow.continue_as_new(args=[[], waits_for])
            await workflow.execute_activity(charge, word, start_to_close_timeout=timedelta(seconds=20))
        await workflow.wait_condition(lambda: len(self._told) >= waits_for)
        return self._told

    @workflow.signal
    def tell(self, word: str) -> None:
        """Append a word."""
        self._told.append(word)


class Lost(NamedTuple):
    """Events that were deleted from a cluster."""

    target: str
    workflow_id: str
    first_event_id: int
    last_event_id: int
    version: int


@asynccontextmanager
async def worker(client: Client) -> AsyncIterator[None]:
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Order],
        activities=[charge],
        workflow_runner=UnsandboxedWorkflowRunner(),
        graceful_shutdown_timeout=timedelta(),
    ):
        yield


async def histories(client: Client) -> dict[str, History]:
    """The events of all runs by the public API."""
    found: dict[str, History] = {}
    async for each in client.list_workflows():
        fetched = await client.get_workflow_handle(each.id, run_id=each.run_id).fetch_history()
        found[f"{each.id}/{each.run_id}"] = History(events=fetched.events)
    return found


async def same_histories(one: Client, other: Client) -> dict[str, History]:
    """Wait until two clusters have the same events."""
    ours: dict[str, History] = {}
    theirs: dict[str, History] = {}
    try:
        async with asyncio.timeout(SAME_S_MAX):
            while True:
                ours, theirs = await histories(one), await histories(other)
                if ours and ours == theirs:
                    return ours
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        assert ours == theirs
        raise


async def tell(client: Client, workflow_id: str, word: str) -> None:
    await client.get_workflow_handle(workflow_id).signal(Order.tell, word)


async def settled(client: Client, workflow_id: str) -> None:
    """Wait until a workflow only waits for signals."""
    async with asyncio.timeout(SAME_S_MAX):
        while True:
            described = await client.get_workflow_handle(workflow_id).describe()
            if not described.raw_description.HasField("pending_workflow_task"):
                return
            await asyncio.sleep(POLL_S)


async def live(clusters: FairleadClusters) -> dict[str, History]:
    """Make data to compare: workflows in all states, both kinds of failover, a history with two branches."""
    a, b = await clusters["a"].connect(), await clusters["b"].connect()
    async with worker(a):
        for name, words in {"plain": ["x", "y"], "long": [*"abcdef"], "twice": ["x", "again"]}.items():
            await a.execute_workflow(Order.run, args=[words, 0], id=name, task_queue=QUEUE)
        for name in ("open", "torn"):
            await a.start_workflow(Order.run, args=[["x"], 3], id=name, task_queue=QUEUE)
            await tell(a, name, "one")
        await clusters.fail_over("b")
        await clusters.until_active("b")
    async with worker(b):
        await tell(b, "open", "two")
        await b.execute_workflow(Order.run, args=[["x", "y"], 0], id="there", task_queue=QUEUE)
        reset = ResetWorkflowExecutionRequest(
            namespace=clusters.namespace, reason="again", request_id="reset", workflow_task_finish_event_id=4
        )
        reset.workflow_execution.workflow_id = "plain"
        await b.workflow_service.reset_workflow_execution(reset)
        await b.get_workflow_handle("plain").result()
        await settled(b, "open")
        await settled(b, "torn")
        await clusters.fail_over("a")
        await clusters.until_active("a")
    await same_histories(a, b)
    # Both clusters write to one run, without replication in between.
    await clusters.stop("b")
    await tell(a, "torn", "lost-1")
    await clusters.stop("a")
    await clusters.restart("b")
    await clusters.fail_over("b", is_graceful=False)
    b = await clusters["b"].connect()
    async with worker(b):
        await tell(b, "torn", "won")
        await settled(b, "torn")
        await clusters.restart("a")
        await clusters.until_active("b")
        # The signal that was lost is on the current branch, so the workflow ends.
        assert await b.get_workflow_handle("torn").result() == ["one", "won", "lost-1"]
        await settled(b, "open")
    return await same_histories(await clusters["a"].connect(), b)


# --- changes in the database itself


def batches_of(database: sqlite3.Connection, workflow_id: str) -> list[tuple[int, str, str, int, int, int]]:
    """Rows of the batches of all runs of a workflow id: their number, run, branch, first and last event, version."""
    return database.execute(
        """
        SELECT batches.branch, runs.run_id, branches.branch_id, first_event_id, last_event_id, version
        FROM history_runs AS runs
        JOIN history_branches AS branches ON branches.tree_id = runs.run_id
        JOIN history_batches AS batches ON batches.branch = branches.branch
        WHERE runs.workflow_id = ? ORDER BY batches.branch, first_event_id
        """,
        (workflow_id,),
    ).fetchall()


def take_out(file: Path, cluster: str, workflow_id: str, *, which: slice, branch: int = 0) -> list[Lost]:
    """Delete some batches of one branch of a workflow id; its state still has them."""
    with closing(sqlite3.connect(file)) as database:
        rows = batches_of(database, workflow_id)
        number = sorted({row[0] for row in rows})[branch]
        taken = [row for row in rows if row[0] == number][which]
        assert taken
        for row in taken:
            database.execute("DELETE FROM history_batches WHERE branch = ? AND first_event_id = ?", (row[0], row[3]))
        database.commit()
    return joined(Lost(cluster, workflow_id, *row[3:]) for row in taken)


def take_out_run(file: Path, cluster: str, workflow_id: str) -> list[Lost]:
    """Delete everything of a workflow id with one run."""
    with closing(sqlite3.connect(file)) as database:
        rows = batches_of(database, workflow_id)
        for row in rows:
            database.execute("DELETE FROM history_batches WHERE branch = ?", (row[0],))
            database.execute("DELETE FROM history_branches WHERE branch = ?", (row[0],))
        for table in ("history_runs", "history_currents", "visibility"):
            deleted = database.execute(f"DELETE FROM {table} WHERE workflow_id = ?", (workflow_id,))  # noqa: S608
            assert deleted.rowcount == 1
        database.commit()
    return joined(Lost(cluster, workflow_id, *row[3:]) for row in rows)


def joined(losses: Iterable[Lost]) -> list[Lost]:
    """Join consecutive events of one version, as a plan does."""
    found: list[Lost] = []
    for loss in losses:
        before = found[-1] if found else None
        if before and (before.last_event_id + 1, before.version) == (loss.first_event_id, loss.version):
            found[-1] = before._replace(last_event_id=loss.last_event_id)
        else:
            found.append(loss)
    return found


async def exported(folder: Path, name: str) -> Path:
    """Export the contents of both databases as a journal."""
    journal = folder / name
    for cluster in ("a", "b"):
        done = await run_in_thread(
            *("export", "--db", str(folder / f"{cluster}.db"), "--journal", str(journal), "--cluster", cluster)
        )
        assert (done.code, done.err) == (0, "")
    return journal


async def repair(clusters: FairleadClusters, plan: Path, *options: str) -> tuple[int, Any]:
    """Run the repair command against cluster b; return its exit code and output."""
    address = clusters.admin_address("b")
    done = await run_in_thread("admin", "repair", "--plan", str(plan), "--address", address, *options, "-o", "json")
    return done.code, json.loads(done.out)


def planned(reconciled: Reconciled) -> set[Lost]:
    return {
        Lost(send.target, send.workflow_id, send.first_event_id, send.last_event_id, send.version)
        for send in reconciled.plan.sends
    }


@pytest.mark.timeout(600)
async def test_events_deleted_from_a_database_are_reported_exactly_and_restored(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    async with FairleadClusters.start("a", "b", folder=tmp_path, journal=journal) as clusters:
        before = await live(clusters)
        for name in clusters.names:
            await clusters.stop(name)
        both = ("a", "b")
        runs = await asyncio.to_thread(assert_reconciled, spark, journal, lake=tmp_path / "lake-0", expect=both)
        assert runs == len(before)

        lost = [
            *take_out(tmp_path / "a.db", "a", "long", which=slice(3, 6)),
            *take_out(tmp_path / "a.db", "a", "twice", which=slice(0, 1)),
            *take_out(tmp_path / "a.db", "a", "open", which=slice(-2, None)),
            # The removed batch is on the losing branch.
            *take_out(tmp_path / "a.db", "a", "torn", which=slice(-1, None)),
            *take_out_run(tmp_path / "b.db", "b", "there"),
            *take_out(tmp_path / "b.db", "b", "long", which=slice(-1, None)),
        ]
        stored = await exported(tmp_path, "exported-damaged")
        found = await asyncio.to_thread(reconcile_journals, spark, [stored], lake=tmp_path / "lake-1", expect=both)
        assert planned(found) == set(lost)
        # Events that a wrote before it knew that b had become active.
        assert [loss.version for loss in lost if loss.workflow_id == "torn"] == [11]
        assert found.summary.findings["verdicts"]["wrong"] == len({loss.workflow_id for loss in lost})

        for name in clusters.names:
            await clusters.restart(name)
        await clusters.until_active("b")
        await check_repaired(
            clusters, found.plan_file, len(lost), sum(e.last_event_id - e.first_event_id + 1 for e in lost)
        )
        a, b = await clusters["a"].connect(), await clusters["b"].connect()
        assert await histories(a) == await histories(b) == before
        # The clusters continue with the restored events.
        async with worker(a):
            await tell(a, "open", "three")
            assert await b.get_workflow_handle("open").result() == ["one", "two", "three"]
        await same_histories(a, b)
        for name in clusters.names:
            await clusters.stop(name)
        stored = await exported(tmp_path, "exported-repaired")
        assert runs == await asyncio.to_thread(assert_reconciled, spark, stored, lake=tmp_path / "lake-2", expect=both)
        assert runs == await asyncio.to_thread(assert_reconciled, spark, journal, lake=tmp_path / "lake-0", expect=both)


async def check_repaired(clusters: FairleadClusters, plan: Path, steps: int, events: int) -> None:
    code, shown = await repair(clusters, plan)
    assert (code, shown["parameters"]["sends"], shown["parameters"]["events"]) == (0, steps, events)
    a, b = await clusters["a"].connect(), await clusters["b"].connect()
    with pytest.raises(RPCError):
        await b.get_workflow_handle("there").describe()

    async def clusters_respond() -> bool:
        _, tried = await repair(clusters, plan, "--dry-run")
        return not any("has not responded yet" in (step["error"] or "") for step in tried["steps"])

    # They have just started again.
    await until(clusters_respond)
    code, dry = await repair(clusters, plan, "--dry-run")
    assert (code, dry["parameters"]["failed"]) == (0, 0), dry
    assert dry["parameters"]["events"] == events
    # A second run changes nothing.
    with pytest.raises(RPCError):
        await b.get_workflow_handle("there").describe()
    code, done = await repair(clusters, plan, "--apply")
    assert (code, done["parameters"]["failed"]) == (0, 0), done
    assert done["parameters"]["events"] == events
    assert [(step["workflow_id"], step["outcome"]) for step in done["steps"]] == [
        (step["workflow_id"], step["outcome"]) for step in dry["steps"]
    ]
    code, again = await repair(clusters, plan, "--apply")
    assert (code, again["parameters"]["events"], again["parameters"]["duplicate"]) == (0, 0, steps)
    assert (await a.get_workflow_handle("there").describe()).id == "there"
