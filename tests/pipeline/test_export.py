"""A real server's store is exported as a journal: each batch exactly once, even after kills."""

import asyncio
import base64
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from temporalio import activity, workflow
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.cli.main import main
from fairlead.journal import read_segment
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import histories, ingest, reconcile
from fairlead.pipeline.kernels.histories import Record, assemble_tree
from fairlead.pipeline.lake import Lake
from fairlead.server import Server
from fairlead.settings.static.config import (
    Address,
    JournalConfig,
    NamespaceConfig,
    PostgresConfig,
    SqliteConfig,
    StaticConfig,
    StoreConfig,
)
from fairlead.storage.sqlite import SqliteStore
from tests.pipeline import histories_oracle as oracle

CHILD = Path(__file__).with_name("export_child.py")
QUEUE = "orders"
RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2)
SHORT = timedelta(seconds=10)


@activity.defn
async def charge(outcome: str) -> str:
    """Fails in the way that the argument names."""
    if outcome == "never" or (outcome == "later" and activity.info().attempt == 1):
        raise ApplicationError("no money", type="Declined")
    return outcome


@workflow.defn
class Order:
    """Runs one activity per word, except that a word may mean: wait for a signal, or continue as new."""

    def __init__(self) -> None:
        self.is_told = False

    @workflow.run
    async def run(self, words: list[str]) -> None:
        for word in words:
            if word == "wait":
                await workflow.wait_condition(lambda: self.is_told)
            elif word == "again":
                workflow.continue_as_new([])
            else:
                await workflow.execute_activity(charge, word, start_to_close_timeout=SHORT, retry_policy=RETRIES)

    @workflow.signal
    def tell(self) -> None:
        self.is_told = True


@asynccontextmanager
async def serving(store: StoreConfig, journal: Path) -> AsyncIterator[Client]:
    """Run a server, which keeps a journal without payloads, and a worker."""
    any_port = Address("127.0.0.1", 0)
    config = StaticConfig(
        frontend_listen=any_port,
        listen=any_port,
        store=store,
        history_shards=4,
        namespaces=(NamespaceConfig("default"), NamespaceConfig("other")),
        journal=JournalConfig(journal),
        hand_over_s=0.0,
        grace_s=1.0,
    )
    server = Server(config)
    await server.start()
    try:
        client = await Client.connect(server.frontend_address or "")
        async with Worker(
            client,
            task_queue=QUEUE,
            workflows=[Order],
            activities=[charge],
            workflow_runner=UnsandboxedWorkflowRunner(),
        ):
            yield client
    finally:
        await server.stop()


async def orders(client: Client) -> dict[str, list[HistoryEvent]]:
    """Run workflows with every outcome and leave one open; returns the events of each run, fetched by the SDK."""
    ids = {"plain": ["at once"], "retried": ["later", "later"], "failed": ["at once", "never"], "twice": ["again"]}
    for name, words in ids.items():
        try:
            await client.execute_workflow(Order.run, words, id=name, task_queue=QUEUE)
        except WorkflowFailureError:
            assert name == "failed"
    request = ResetWorkflowExecutionRequest(
        namespace="default", reason="once more", request_id="reset", workflow_task_finish_event_id=4
    )
    request.workflow_execution.workflow_id = "plain"
    await client.workflow_service.reset_workflow_execution(request)
    await client.get_workflow_handle("plain").result()
    other = Client(client.service_client, namespace="other")
    await other.start_workflow(Order.run, [], id="elsewhere", task_queue=QUEUE)
    await client.start_workflow(Order.run, ["at once", "wait"], id="open", task_queue=QUEUE)
    await until_waiting(client)
    return await fetched(client) | await fetched(other)


async def until_waiting(client: Client) -> None:
    """Wait until the open workflow is idle."""
    async with asyncio.timeout(20):
        while True:
            pending = await client.get_workflow_handle("open").describe()
            if not pending.raw_description.HasField("pending_workflow_task") and pending.history_length > 8:
                return
            await asyncio.sleep(0.05)


async def fetched(client: Client) -> dict[str, list[HistoryEvent]]:
    runs = {}
    async for run in client.list_workflows():
        history = await client.get_workflow_handle(run.id, run_id=run.run_id).fetch_history()
        runs[run.run_id] = list(history.events)
    return runs


async def export(store: StoreConfig, folder: Path, journal: Path, *more: str) -> dict[str, Any]:
    """Run the command in its own process, as is required beside a running server; returns its output."""
    arguments = ["--db", str(store.file)] if isinstance(store, SqliteConfig) else []
    if isinstance(store, PostgresConfig):
        file = folder / "fairlead.yaml"
        file.write_text(json.dumps({"store": {"postgres": {"dsn": store.dsn}}}))
        arguments = ["--config", str(file)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fairlead", "export", *arguments, "--journal", str(journal), "-o", "json", *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await process.communicate()
    assert (process.returncode, said) == (0, b"")
    answer: dict[str, Any] = json.loads(out)["parameters"]
    return answer


def exported_records(journal: Path) -> list[dict[str, Any]]:
    return [record for path in sorted(journal.glob("*/history.v1.export.*.zst")) for record in read_segment(path)]


def own_records(journal: Path) -> list[dict[str, Any]]:
    """The records that the server itself has journaled."""
    paths = [path for path in journal.glob("*/history.*.zst") if ".export." not in path.name]
    return [record for path in paths for record in read_segment(path)]


def by_position(records: list[dict[str, Any]]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The batches of records, without times, positions in the server's queue and payloads."""
    own = {"time_us", "task_id", "payload"}
    return {
        (each["branch_id"], each["first_event_id"], each["version"]): {
            name: value for name, value in each.items() if name not in own
        }
        for each in records
    }


def exported_runs(journal: Path) -> dict[str, list[HistoryEvent]]:
    """The events of each run, assembled from the exported segments alone."""
    trees: dict[str, list[Record]] = {}
    ordered = sorted(exported_records(journal), key=lambda each: (each["run_id"], each["first_event_id"]))
    for each in ordered:
        record = Record(
            run_id=each["run_id"],
            first=each["first_event_id"],
            last=each["last_event_id"],
            version=each["version"],
            item_ids=[item["event_id"] for item in each["items"]],
            item_versions=[item["version"] for item in each["items"]],
            task_id=each["task_id"],
            status=each["status"],
            time_us=each["time_us"],
            payload=base64.b64decode(each["payload"]),
        )
        trees.setdefault(each["tree_id"], []).append(record)
    runs = [run for tree_id, records in trees.items() for run in assemble_tree(tree_id, records)]
    assert all(run.problem is None for run in runs)
    return {run.run_id: run.events for run in runs}


def plain(runs: dict[str, list[HistoryEvent]]) -> dict[str, History]:
    return {run_id: History(events=events) for run_id, events in runs.items()}


def check_once(journal: Path) -> None:
    """No event of a run was exported twice."""
    seen = Counter(
        (each["run_id"], event_id)
        for each in exported_records(journal)
        for event_id in range(each["first_event_id"], each["last_event_id"] + 1)
    )
    assert set(seen.values()) == {1}


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    if request.param == "sqlite":
        return SqliteConfig(tmp_path / "store.db")
    return PostgresConfig(request.getfixturevalue("postgres_dsn"))


async def test_a_store_is_exported_beside_its_server(store: StoreConfig, tmp_path: Path, request: Any) -> None:
    """The first export has all events of all runs, the second nothing, the third new events, the last one namespace."""
    journal = tmp_path / "journal"
    async with serving(store, journal) as client:
        expected = await orders(client)
        first = await export(store, tmp_path, journal)
        assert plain(exported_runs(journal)) == plain(expected)
        check_once(journal)
        assert (first["runs"], first["runs_changed"], first["segments"]) == (len(expected), len(expected), 1)
        again = await export(store, tmp_path, journal)
        assert (again["runs"], again["runs_changed"], again["events"], again["segments"]) == (len(expected), 0, 0, 0)

        await client.get_workflow_handle("open").signal(Order.tell)
        await client.get_workflow_handle("open").result()
        other = await export(store, tmp_path, journal, "--namespace", "other")
        assert (other["runs"], other["events"]) == (1, 0)
        later = await export(store, tmp_path, journal)
        assert (later["runs_changed"], later["segments"]) == (1, 1)
        expected |= await fetched(client)
        assert plain(exported_runs(journal)) == plain(expected)
        check_once(journal)
    assert by_position(exported_records(journal)) == by_position(own_records(journal))
    if isinstance(store, SqliteConfig):
        # The server's journal without payloads and the export hold the same batches, twice in one cluster.
        check_tables(request.getfixturevalue("spark"), tmp_path, expected)


def check_tables(spark: SparkSession, folder: Path, expected: dict[str, list[HistoryEvent]]) -> None:
    lake = Lake(folder / "lake")
    context = JobContext(spark=spark, lake=lake, journal=folder / "journal")
    assert ingest.run(context).alarm is None
    segments = {row.segment.split(".")[2] for row in lake.read(spark, "history").select("segment").distinct().collect()}
    assert len(segments) == 2
    judged = reconcile.run(context)
    assert (judged.alarm, judged.findings["verdicts"]) == (None, {"agreed": len(expected)})
    summary = histories.run(context)
    assert summary.findings["runs_without_payloads"] == summary.findings["runs_incomplete"] == 0
    rows = {row.run_id: row.asDict() for row in lake.read_derived(spark, "workflows").collect()}
    assert rows.keys() == expected.keys()
    for run_id, events in expected.items():
        row = oracle.workflow_row(oracle.as_json(events), run_id)
        assert {name: rows[run_id][name] for name in row} == row
    activities = lake.read_derived(spark, "activities").collect()
    found = Counter((row.workflow_id, row.outcome, row.attempt) for row in activities)
    assert found["retried", "completed", 2] == 2
    assert found["failed", "failed", 2] == 1
    assert len(activities) == sum(len(oracle.activity_rows(oracle.as_json(each))) for each in expected.values())


async def test_a_killed_export_leaves_all_or_nothing(tmp_path: Path) -> None:
    """The export is killed with SIGKILL before each step that changes the disk."""
    db = tmp_path / "store.db"
    async with serving(SqliteConfig(db), tmp_path / "own") as client:
        expected = await orders(client)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), str(db), str(tmp_path), stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    steps = int(out)
    assert steps > 10
    for step in range(1, steps + 1):
        assert plain(exported_runs(tmp_path / str(step))) == plain(expected)
        check_once(tmp_path / str(step))


def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[int, str]:
    """The exit code and the one line of error of a command that fails."""
    monkeypatch.setattr(sys, "argv", ["fairlead", "export", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert not said.out
    return int(ended.value.code or 0), line


def test_an_export_that_fails_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, db = tmp_path / "journal", tmp_path / "store.db"

    def refused(*arguments: object) -> str:
        code, line = refusal(capsys, monkeypatch, *arguments)
        assert code == 2
        return line

    to = ("--journal", journal)
    assert "there is no such file" in refused("--db", db, *to)
    assert not db.exists()
    (tmp_path / "text").write_text("no database, and longer than the header of one would be" * 10)
    assert "file is not a database" in refused("--db", tmp_path / "text", *to)
    other = tmp_path / "other.db"
    import sqlite3

    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE things (thing TEXT)")
    connection.close()
    assert "is not a store" in refused("--db", other, *to)
    asyncio.run(make_empty(db))
    assert "the store is empty" in refused("--db", db, *to)
    asyncio.run(make_empty(db, shards=b"4"))
    assert "has no workflows" in refused("--db", db, *to)
    assert "no namespace with the name or id 'none'" in refused("--db", db, *to, "--namespace", "none")
    assert "can't write to" in refused("--db", db, "--journal", tmp_path / "text")
    assert "is not a valid cluster name" in refused("--db", db, *to, "--cluster", "../up")
    assert "either --config or --db" in refused(*to)
    assert "Missing option '--journal'" in refused("--db", db)
    memory = tmp_path / "memory.yaml"
    memory.write_text("store: {memory: {}}\n")
    assert "store in memory" in refused("--config", memory, *to)
    assert not list(journal.glob("*/*.zst"))


async def make_empty(db: Path, shards: bytes | None = None) -> None:
    opened = await SqliteStore.open(db)
    if shards is not None:
        await opened.history.write_metadata("history.shards", shards, expected_version=0)
    await opened.close()


def test_a_damaged_export_state_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "store.db"
    asyncio.run(make_empty(db, shards=b"4"))
    place = tmp_path / "journal" / "active" / ".export"
    place.mkdir(parents=True)
    (place / "known.jsonl.zst").write_bytes(b"what is this")
    code, line = refusal(capsys, monkeypatch, "--db", db, "--journal", tmp_path / "journal")
    assert (code, "is damaged" in line) == (1, True)
