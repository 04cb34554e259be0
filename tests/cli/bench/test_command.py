"""`fairlead bench matching` as a user runs it."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairlead.bench.link import connect
from fairlead.bench.scenarios import NOT_OFFERED, SCENARIOS
from fairlead.cli.commands import cli
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.server import Server
from fairlead.settings import DynamicSettings
from fairlead.settings.static.config import Address, MemoryConfig, Role, StaticConfig
from tests.cli.processes import server

TASK_QUEUE = TaskQueueId("default", "bench", TaskType.WORKFLOW)
FAIRLEAD = Path(sys.executable).with_name("fairlead")


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(cli, ["bench", "matching", *arguments])


def bench(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["bench", "matching", *arguments, "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer


@pytest.fixture
def address() -> Iterator[str]:
    """A real server in its own thread."""
    ready, stopping, found = Event(), Event(), list[str]()

    async def serve() -> None:
        started = Server(
            StaticConfig(listen=Address("127.0.0.1", 0), roles=frozenset({Role.MATCHING}), store=MemoryConfig())
        )
        await started.start()
        found.append(started.address)
        ready.set()
        while not stopping.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.02)
        await started.stop()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    yield found[0]
    stopping.set()
    thread.join()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "5", "--in-flight", "5"], "--rate is an open loop and --in-flight a closed one"),
        (["--producers", "5", "--in-flight", "5"], "--producers is for the open loop"),
        (["--rate", "0"], "'--rate': 0.0 is not in the range"),
        (["--rate", "nan"], "nan is not a number"),
        (["--rate", "1000000", "--duration", "1h"], "is more than 50,000,000 tasks"),
        (["--pollers", "0"], "'--pollers': 0 is not in the range"),
        (["--priority", "6"], "'--priority': 6 is not in the range"),
        (["--payload-bytes", "3"], "'--payload-bytes': 3 is not in the range"),
        (["--weights", "1:two"], "'--weights': '1:two' is not a list of weights"),
        (["--weights", "1:-2"], "weight '-2' is out of bounds: choose 0.001 to 1000"),
        (["--weights", "1:nan"], "weight 'nan' is out of bounds"),
        (["--weights", "1e300"], "weight '1e300' is out of bounds"),
        (["--weights", "1:" * 1000 + "1"], "1001 weights are more than 1000"),
        (["--duration", "soon"], "'--duration': 'soon' is not a duration"),
        (["--duration", "0s"], "'--duration': '0s' is out of bounds: choose 10ms to 24h"),
        (["--work", "2h"], "'--work': '2h' is out of bounds"),
        (["--address", "nowhere"], "'--address': 'nowhere' "),
        (["--scenario", "default", "--rate", "5"], "--rate defines a load, but --scenario has its own load"),
        (["--all-scenarios", "--keys", "5"], "--keys defines a load, but --all-scenarios has its own load"),
        (["--scenario", "default", "--all-scenarios"], "--all-scenarios and --scenario exclude each other"),
        (["--speed", "5"], "--speed is for scenarios"),
        (["--store", "memory"], "--store is for scenarios"),
        (["-o", "csv"], "-o csv is for --all-scenarios"),
        (["--all-scenarios", "--plot", "a.png"], "--plot draws one run"),
        (["--scenario", "default", "--speed", "0.5"], "'--speed': 0.5 is not in the range"),
    ],
)
def test_invalid_arguments_are_refused_before_any_request_is_sent(arguments: list[str], complaint: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--scenario", "nonsense"], "there is no scenario 'nonsense': see --list-scenarios"),
        (["--scenario", "zonal_isolation"], "scenario zonal_isolation is not offered: it needs isolation groups"),
        (["--tasklist", "/_sys/a/1"], "begins with '/_sys/', which is kept for partitions"),
        (["--dynamic-config-value", "matching.nonsense=1"], "'matching.nonsense' is not a setting"),
        (["--dynamic-config-value", "nonsense"], "is not of the form KEY=JSON"),
        (["--plot", "picture.jpg"], "ends in .png"),
    ],
)
def test_a_scenario_that_can_not_run_is_refused(arguments: list[str], complaint: str) -> None:
    result = invoke(*arguments)
    assert isinstance(result.exception, FairleadError)
    assert complaint in str(result.exception)


def test_an_unreachable_server_is_reported_with_what_to_do() -> None:
    with socket.socket() as held:
        # Bound but not listening: connections are refused, and no other server can take the port.
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        result = invoke("--tasks", "1", FAIRLEAD_ADDRESS=address)
    assert isinstance(result.exception, FairleadError)
    assert f"no server answers at {address}: start one (fairlead server start)" in str(result.exception)


def test_the_list_has_all_scenarios_and_the_reason_of_each_unavailable_one() -> None:
    answer = bench("--list-scenarios")
    reported = {row["name"]: row["about"] for row in answer["scenarios"]}
    assert list(reported) == [*SCENARIOS, *NOT_OFFERED]
    assert reported["zonal_isolation_skew"] == "Not offered: it needs isolation groups, which Fairlead does not have."


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_default_scenario_runs_end_to_end(store: str) -> None:
    """FL-77."""
    answer = bench("--scenario", "default", "--speed", "20", "--store", store)
    assert (answer["subject"], answer["parameters"]["hosts"], answer["parameters"]["store"]) == ("default", 4, store)
    totals = answer["totals"]
    assert (totals["tasks_generated"], totals["tasks_polled"], totals["lost"]) == (150, 150, 0)
    assert totals["sync_matches"] + totals["db_writes"] == 150
    assert totals["async_matches"] == totals["db_writes"]
    assert totals["polls_with_task"] == 150
    # On the four partitions of the table; some tasks are therefore matched at the root.
    assert [row["partition"] for row in answer["partitions"]] == [0, 1, 2, 3]
    assert all(row["adds"] > 0 for row in answer["partitions"])
    assert sum(row["adds"] for row in answer["partitions"]) == 150
    assert sum(row["sync_matches"] + row["async_matches"] for row in answer["partitions"]) == 150
    assert totals["task_forwards"] + totals["poll_forwards"] > 0


def test_an_adaptive_scenario_reports_the_changes_of_the_partition_count() -> None:
    answer = bench("--scenario", "burst_adaptive", "--speed", "10", "--store", "memory")
    totals = answer["totals"]
    assert (totals["tasks_polled"], totals["lost"], totals["partitions_ideal"]) == (1_000, 0, 3)
    assert answer["configs"][0]["write"] == 1
    assert totals["partitions_max"] == max(row["write"] for row in answer["configs"]) > 1
    versions = [row["version"] for row in answer["configs"]]
    assert versions == sorted(set(versions))


def test_an_initial_backlog_is_added_to_the_scenarios_partitions() -> None:
    answer = bench("--scenario", "with_backlog", "--speed", "20", "--store", "memory")
    totals = answer["totals"]
    assert (totals["tasks_generated"], totals["tasks_preloaded"], totals["tasks_polled"]) == (150, 150, 300)
    assert totals["lost"] == 0
    assert totals["db_writes"] >= 150
    # The initial backlog does not count as load.
    assert {row["partition"]: row["tasks_taken"] - row["adds"] for row in answer["partitions"]} == {
        0: 0,
        1: 50,
        2: 100,
        3: 0,
    }


def test_starting_a_task_takes_the_time_that_the_scenario_sets() -> None:
    answer = bench("--scenario", "round_robin_load_balancer", "--speed", "300", "--store", "memory")
    assert answer["totals"]["tasks_polled"] == 100
    assert answer["totals"]["latency_p50_ms"] >= 13


def test_an_open_loop_runs_against_a_running_server(address: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    options = ("--address", address, "--rate", "200", "--tasks", "200", "--keys", "4", "--plot", str(picture))
    answer = bench(*options)
    totals = answer["totals"]
    assert (totals["tasks_sent"], totals["tasks_received"], totals["lost"], totals["duplicates"]) == (200, 200, 0, 0)
    # No task is sent before it is due, even on a slow machine.
    assert totals["adds_per_s"] <= 201
    assert answer["waits"][0]["of"] == "task, since due"
    assert answer["partitions"][0]["adds"] == 200
    assert [row["received"] for row in answer["keys"]] == [50] * 4
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_backlog_is_dispatched_by_weight(address: str) -> None:
    options = ("--in-flight", "50", "--tasks", "1200", "--keys", "3", "--weights", "1:2:5", "--backlog-first")
    answer = bench("--address", address, *options, "--pollers", "4")
    assert answer["totals"]["tasks_received"] == 1200
    assert answer["totals"]["backlog_share"] == 1.0
    assert answer["totals"]["jain_index"] > 0.999
    for key in answer["keys"]:
        assert key["share_when_all_wait"] == pytest.approx(key["weight_share"], rel=0.03)


async def steal(address: str, tasks: int) -> None:
    async with connect(address, DynamicSettings()) as link:
        while tasks:
            answer = await link.clients[0].poll(TASK_QUEUE, "thief", timeout_s=20)
            tasks -= answer.task is not None


def test_a_lost_task_is_reported_loudly_and_fails_the_run(address: str) -> None:
    """For every cause: acknowledged tasks that were never dispatched and are in no partition."""
    options = ["--rate", "1000", "--tasks", "5", "--pollers", "1", "--work", "1h", "--drain-timeout", "3s"]
    with subprocess.Popen(  # noqa: S603
        [FAIRLEAD, "bench", "matching", "--address", address, *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        asyncio.run(steal(address, 4))
        shown, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "4 ACKNOWLEDGED TASKS WERE LOST of 5" in shown
    assert said.splitlines()[-1].startswith("fairlead: ACKNOWLEDGED TASKS WERE LOST: 4 in bench matching.")


def test_tasks_left_in_partitions_are_found_and_do_not_count_as_lost(address: str) -> None:
    """A worker polls one task and stops: the other tasks are still in their partitions."""
    options = ("--rate", "1000", "--tasks", "5", "--pollers", "1", "--work", "1h", "--drain-timeout", "200ms")
    answer = bench("--address", address, *options)
    totals = answer["totals"]
    assert (totals["tasks_received"], totals["left_behind"], totals["lost"]) == (5, 4, 0)
    assert answer["headline"].endswith("; 4 WERE LEFT BEHIND")


def test_a_scenario_with_an_address_sends_only_its_load_there(address: str) -> None:
    answer = bench("--scenario", "throughput", "--speed", "30", "--address", address)
    assert answer["totals"]["tasks_polled"] == 100
    assert "poll_forwards" not in answer["totals"]
    assert answer["parameters"]["address"] == address


def test_scenarios_ignore_the_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_ADDRESS", "127.0.0.1:1")
    answer = bench("--scenario", "throughput", "--speed", "300", "--store", "memory")
    assert answer["totals"]["tasks_polled"] == 10


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("mode", [["--rate", "200", "--duration", "1h"], ["--scenario", "burst"]])
def test_an_interrupted_run_prints_its_results_and_leaves_no_process(
    address: str, tmp_path: Path, mode: list[str], number: int, code: int
) -> None:
    where = [] if "--scenario" in mode else ["--address", address]
    with subprocess.Popen(  # noqa: S603
        [FAIRLEAD, "bench", "matching", *mode, *where, "-o", "json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as running:  # fmt: skip
        assert running.stderr is not None
        # Wait for the first progress line, after five seconds.
        assert " received" in running.stderr.readline()
        assert len(list(tmp_path.iterdir())) == ("--scenario" in mode)
        running.send_signal(number)
        shown, said = running.communicate(timeout=60)
    assert (running.returncode, said) == (code, "")
    answer = json.loads(shown)
    assert answer["headline"].startswith("STOPPED after ")
    assert answer["totals"]["lost"] == 0
    assert answer["totals"].get("tasks_received", answer["totals"].get("tasks_polled")) > 0
    assert list(tmp_path.iterdir()) == []


async def test_permanently_failing_requests_fail_the_run(tmp_path: Path) -> None:
    config = tmp_path / "memory.yaml"
    config.write_text("listen: 127.0.0.1:0\nstore: {memory: {}}\n")
    async with server("--config", str(config)) as started:
        running = await asyncio.create_subprocess_exec(
            *(FAIRLEAD, "bench", "matching", "--address", started.address, "--rate", "10", "--tasks", "60"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert running.stderr is not None
        # Wait for the first progress line, after five seconds: more requests follow.
        await running.stderr.readline()
        started.process.kill()
        shown, said = await asyncio.wait_for(running.communicate(), 60)
    assert running.returncode == 1
    assert re.search(r"; \d+ ADDS? (AND \d+ POLLS? )?FAILED", " ".join(shown.decode().split()))
    assert re.search(r"fairlead: \d+ requests failed after all retries in bench matching: ", said.decode())
    assert "LOST" not in said.decode()
