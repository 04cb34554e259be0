"""A namespace of a running server is exported by its public API: each event once, even after kills."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.core.errors import FixRequest
from fairlead.pipeline.public_export import ExportedRuns, NothingToExport, export_namespace
from fairlead.pipeline.public_export.export import KnownRun
from fairlead.pipeline.public_export.source import SERVICE, SourceServer
from fairlead.rpc.client import RemoteStatus
from fairlead.rpc.status import Code
from tests.cli.processes import Done
from tests.cli.thread import run_in_thread
from tests.patience import until
from tests.pipeline.histories_world import Writer
from tests.pipeline.test_export import (
    CHILD,
    QUEUE,
    Order,
    charge,
    check_once,
    exported_records,
    exported_runs,
    fetched,
    plain,
    until_waiting,
)
from tests.sdk.servers import serving

PENDING = {EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED, EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED}


@pytest.fixture(params=["reference", "fairlead"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with serving(request.param, tmp_path) as served:
        yield served


@pytest.fixture
def fairlead(tmp_path: Path) -> Iterator[str]:
    with serving("fairlead", tmp_path) as served:
        yield served


@asynccontextmanager
async def working(address: str) -> AsyncIterator[Client]:
    client = await Client.connect(address)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Order],
        activities=[charge],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield client


async def orders(client: Client) -> None:
    """Run workflows with every outcome, reset one, and leave one open."""
    words = {"plain": ["at once"], "retried": ["later", "later"], "failed": ["at once", "never"], "twice": ["again"]}
    for name, given in words.items():
        try:
            await client.execute_workflow(Order.run, given, id=name, task_queue=QUEUE)
        except WorkflowFailureError:
            assert name == "failed"
    request = ResetWorkflowExecutionRequest(
        namespace="default", reason="once more", request_id="reset", workflow_task_finish_event_id=4
    )
    request.workflow_execution.workflow_id = "plain"
    await client.workflow_service.reset_workflow_execution(request)
    await client.get_workflow_handle("plain").result()
    await client.start_workflow(Order.run, ["at once", "wait"], id="open", task_queue=QUEUE)
    await until_waiting(client)
    await until_listed(client, runs=7, still_open=1)


async def until_listed(client: Client, *, runs: int, still_open: int) -> None:
    """Wait for the lists of the server, which follow its histories with a delay."""

    async def are_listed() -> bool:
        listed = [each async for each in client.list_workflows()]
        return len(listed) == runs and sum(each.close_time is None for each in listed) == still_open

    await until(are_listed)


async def command(address: str, journal: Path, *more: str) -> Done:
    """Run the command."""
    return await run_in_thread(
        "export", "--from", address, "--journal", str(journal), "-o", "json", "--rate", "1000", *more
    )


async def export(address: str, journal: Path) -> dict[str, Any]:
    done = await command(address, journal, "--namespace", "default")
    assert (done.code, done.err) == (0, "")
    counts: dict[str, Any] = json.loads(done.out)["parameters"]
    return counts


async def test_a_running_server_is_exported_by_its_public_api(address: str, tmp_path: Path) -> None:
    """The first export has all events of all runs, the second none, the third those of the run that continued."""
    journal = tmp_path / "journal"
    async with working(address) as client:
        await orders(client)
        expected = await fetched(client)
        first = await export(address, journal)
        assert (first["runs"], first["runs_changed"], first["segments"]) == (7, 7, 1)
        assert plain(exported_runs(journal)) == plain(expected)
        again = await export(address, journal)
        assert (again["runs_changed"], again["events"], again["segments"]) == (0, 0, 0)
        # The list, and the end of the one open run: closed runs are not read again.
        assert again["calls"] == 3

        await client.get_workflow_handle("open").signal(Order.tell)
        await client.get_workflow_handle("open").result()
        await until_listed(client, runs=7, still_open=0)
        longer = await fetched(client)
        later = await export(address, journal)
        new = sum(map(len, longer.values())) - sum(map(len, expected.values()))
        assert (later["runs_changed"], later["events"], later["segments"]) == (1, new, 1)
        assert plain(exported_runs(journal)) == plain(longer)
        check_once(journal)
    namespaces = {(each["namespace"], len(each["namespace_id"])) for each in exported_records(journal)}
    assert namespaces == {("default", 36)}


async def test_a_killed_export_continues_where_it_stopped(fairlead: str, tmp_path: Path) -> None:
    """The export is killed with SIGKILL before each step that changes the disk, with a commit after each two runs.

    It is slow because it starts two hundred exports.
    """
    async with working(fairlead) as client:
        await orders(client)
        expected = await fetched(client)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), fairlead, str(tmp_path), stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    steps = int(out)
    assert steps > 30
    for step in range(1, steps + 1):
        assert plain(exported_runs(tmp_path / str(step))) == plain(expected)
        check_once(tmp_path / str(step))


async def test_an_export_that_fails_is_reported_in_one_line(fairlead: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    async def refused(*arguments: str, code: int = 2) -> str:
        done = await run_in_thread("export", "--journal", str(journal), *arguments)
        assert (done.code, done.out) == (code, "")
        return done.line

    assert "'nowhere' is not an address" in await refused("--from", "nowhere", "--namespace", "default")
    assert "--from needs --namespace" in await refused("--from", fairlead)
    assert "give one source" in await refused("--from", fairlead, "--db", "x", "--namespace", "default")
    missing = await refused("--from", fairlead, "--namespace", "none")
    assert "DescribeNamespace was refused with NOT_FOUND" in missing
    assert "give the full name of an existing namespace" in missing
    assert "has no workflows to export" in await refused("--from", fairlead, "--namespace", "default")
    assert "does not use TLS" in await refused("--from", fairlead, "--namespace", "default", "--tls")
    assert "--rate" in await refused("--from", fairlead, "--namespace", "default", "--rate", "0")
    assert not list(journal.glob("*/*.zst"))


class StubServer(SourceServer):
    """A server whose responses a test chooses; it records the paths of the calls."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", "shop", calls_per_s=1e6)
        self.runs: dict[str, list[HistoryEvent]] = {}
        self.failures: list[RemoteStatus] = []
        self.paths: list[str] = []

    async def _call(self, path: str, data: bytes) -> bytes:
        self.paths.append(path.removeprefix(f"{SERVICE}/"))
        if self.failures:
            raise self.failures.pop(0)
        return b""

    async def namespace_id(self) -> str:
        return "shop-id"

    async def list_runs(self) -> AsyncIterator[Sequence[WorkflowExecutionInfo]]:
        page = []
        for run_id, events in self.runs.items():
            info = WorkflowExecutionInfo(status=1, history_length=len(events))  # type: ignore[arg-type]
            info.execution.workflow_id, info.execution.run_id = "order", run_id
            page.append(info)
        yield page

    async def read_events(self, workflow_id: str, run_id: str) -> list[HistoryEvent] | None:
        return self.runs.get(run_id)

    async def read_newer(self, workflow_id: str, run_id: str, is_known: Any) -> list[HistoryEvent] | None:
        return [event for event in self.runs[run_id] if not is_known(event)]


def begun(run_id: str = "run-1") -> Writer:
    writer = Writer()
    writer.begin("order", run_id)
    return writer


async def exported(source: StubServer, folder: Path) -> ExportedRuns:
    return await export_namespace(source, folder / "journal" / "active", notify=lambda _: None)


async def test_the_pending_workflow_task_of_an_open_run_is_left_for_later(tmp_path: Path) -> None:
    """Servers show the events of a failing or speculative workflow task, and may give their ids to other events."""
    source = StubServer()
    writer = begun()
    pending = Writer([*writer.events])
    pending.add("WORKFLOW_TASK_SCHEDULED")
    pending.add("WORKFLOW_TASK_STARTED", scheduled_event_id=2)
    source.runs["run-1"] = pending.events
    assert (await exported(source, tmp_path)).events == 1
    writer.add("WORKFLOW_EXECUTION_SIGNALED", signal_name="now")
    source.runs["run-1"] = writer.events
    assert (await exported(source, tmp_path)).events == 1
    assert plain(exported_runs(tmp_path / "journal")) == plain({"run-1": writer.events})


async def test_events_of_another_version_replace_those_that_were_exported(tmp_path: Path) -> None:
    """After a failover, the current branch may fork from the exported one."""
    source = StubServer()
    lost = begun()
    for _ in range(3):
        lost.add("TIMER_STARTED", timer_id="1")
    source.runs["run-1"] = lost.events
    await exported(source, tmp_path)
    won = Writer(lost.events[:2], version=12)
    won.add("WORKFLOW_EXECUTION_SIGNALED", signal_name="now")
    source.runs["run-1"] = won.events
    assert (await exported(source, tmp_path)).events == 3
    assert (await exported(source, tmp_path)).events == 0
    assert plain(exported_runs(tmp_path / "journal")) == plain({"run-1": won.events})


async def test_a_run_that_no_lake_would_read_is_left_out(tmp_path: Path) -> None:
    """One event of a server that skips time would bring the segment with all other runs into quarantine."""
    source = StubServer()
    future = begun("run-2")
    future.events[0].event_time.seconds += 200 * 365 * 86_400
    source.runs = {"run-1": begun().events, "run-2": future.events}
    done = await exported(source, tmp_path)
    assert (done.runs, done.runs_changed, done.runs_left_out) == (2, 1, 1)
    assert "run run-2 of order: a record's time is implausible" in done.fault
    assert exported_runs(tmp_path / "journal").keys() == {"run-1"}


async def test_runs_that_the_server_has_deleted_are_forgotten(tmp_path: Path) -> None:
    source = StubServer()
    source.runs = {"run-1": begun("run-1").events, "run-2": begun("run-2").events}
    await exported(source, tmp_path)
    gone = source.runs.pop("run-1")
    assert (await exported(source, tmp_path)).events == 0
    source.runs["run-1"] = gone
    assert (await exported(source, tmp_path)).events == 1
    source.runs.clear()
    with pytest.raises(NothingToExport):
        await exported(source, tmp_path)


async def test_calls_are_repeated_while_the_server_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    source = StubServer()
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    async def unary(path: str, data: bytes, **_: object) -> bytes:
        return await source._call(path, data)

    monkeypatch.setattr("fairlead.pipeline.public_export.source.asyncio.sleep", sleep)
    monkeypatch.setattr(source._channel, "unary", unary)
    source.failures = [RemoteStatus(Code.RESOURCE_EXHAUSTED, "slow down"), RemoteStatus(Code.UNAVAILABLE, "gone")]
    assert await SourceServer.read_events(source, "order", "run-1") == []
    assert source.paths == ["GetWorkflowExecutionHistory"] * 3
    assert len(waits) == 2
    source.failures = [RemoteStatus(Code.PERMISSION_DENIED, "Request unauthorized.")]
    with pytest.raises(FixRequest, match="credentials of a reader"):
        await SourceServer.read_events(source, "order", "run-1")
    source.failures = [RemoteStatus(Code.NOT_FOUND, "deleted")]
    assert await SourceServer.read_events(source, "order", "run-1") is None


def test_an_exported_event_is_known_by_its_id_and_version() -> None:
    run = KnownRun("run-1", 1, 9, 0, ((5, 1), (9, 12)))
    assert [run.has(HistoryEvent(event_id=event_id, version=1)) for event_id in (1, 5, 6)] == [True, True, False]
    assert [run.has(HistoryEvent(event_id=event_id, version=12)) for event_id in (5, 6, 10)] == [False, True, False]
