"""A server is killed repeatedly while workflows run: no acknowledged change is lost."""

import asyncio
import random
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.common import RetryPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker

from tests.depth import IS_DEEP
from tests.history.rebuild import check_file
from tests.patience import PATIENCE_S

WORKFLOWS = 100
KILLS = 30 if IS_DEEP else 8
ROUNDS = 4
READY_S_MAX = PATIENCE_S
END_S_MAX = PATIENCE_S
SEED = 20_261_116


@activity.defn
async def double(number: int) -> int:
    """An activity with a result."""
    await asyncio.sleep(0.05)
    return 2 * number


@workflow.defn
class Adder:
    """Adds the results of activities and the values of signals."""

    def __init__(self) -> None:
        self._signals: set[int] = set()

    @workflow.run
    async def run(self, number: int) -> int:
        """Returns twice the sum over all rounds."""
        total = 0
        for each in range(ROUNDS):
            total += await workflow.execute_activity(
                double,
                number + each,
                start_to_close_timeout=timedelta(seconds=2),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=100), backoff_coefficient=1.0),
            )
            await workflow.sleep(0.2)
        await workflow.wait_condition(lambda: len(self._signals) == ROUNDS)
        return total

    @workflow.signal
    def tell(self, number: int) -> None:
        """Receives one of the signals that the workflow waits for."""
        self._signals.add(number)


class Victim:
    """A server on a file that is killed and restarted at the same address."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """The address where the server listens."""
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start the server and wait until it is ready."""
        command = ["server", "start-dev", "--headless", "--port", str(self._port), "--stop-with-input"]
        with (self._folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603, ASYNC220 - it returns at once
                [sys.executable, "-m", "fairlead", *command, "--db-filename", str(self._folder / "fairlead.db")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        await asyncio.wait_for(asyncio.to_thread(self._read_until_ready), READY_S_MAX)

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def _read_until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("Ready"):
                return
        raise AssertionError((self._folder / "server.log").read_text())


async def _kill_again_and_again(victim: Victim, chance: random.Random, ended: asyncio.Event) -> int:
    """Kill the server repeatedly until all workflows are done; returns the number of kills."""
    for kill in range(KILLS):
        await asyncio.sleep(chance.uniform(0.05, 0.9))
        if ended.is_set():
            return kill
        victim.kill()
        await victim.start()
    return KILLS


async def _start(client: Client, number: int) -> WorkflowHandle[Adder, int]:
    """Repeat the start until a response arrives; the retries create only one workflow."""
    while True:
        try:
            return await client.start_workflow(
                Adder.run, number, id=f"adder-{number}", task_queue="adders", task_timeout=timedelta(seconds=2)
            )
        except WorkflowAlreadyStartedError:
            # The SDK gave up on a request that the server had accepted; this is a second request.
            return client.get_workflow_handle_for(Adder.run, f"adder-{number}")
        except RPCError:
            await asyncio.sleep(0.1)


async def _tell(handle: WorkflowHandle[Adder, int], number: int) -> None:
    while True:
        try:
            await handle.signal(Adder.tell, number)
        except RPCError:
            continue
        return


async def _result(handle: WorkflowHandle[Adder, int]) -> int:
    while True:
        try:
            return await handle.result()
        except RPCError:
            await asyncio.sleep(0.1)


async def _live(client: Client, number: int, chance: random.Random) -> int:
    handle = await _start(client, number)
    for each in range(ROUNDS):
        await asyncio.sleep(chance.uniform(0, 2.0))
        await _tell(handle, each)
    return await _result(handle)


def _check(history: WorkflowHistory) -> None:
    """Event ids have no gaps, and every activity has exactly one start and one end."""
    assert [event.event_id for event in history.events] == list(range(1, len(history.events) + 1))
    ends = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED]
    ended = [event.activity_task_completed_event_attributes.scheduled_event_id for event in ends]
    assert len(ended) == len(set(ended)) == ROUNDS
    signals = [
        event for event in history.events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    ]
    assert len(signals) >= ROUNDS


@pytest.mark.sim
@pytest.mark.timeout(400)
async def test_all_workflows_end_well_though_the_server_is_killed_again_and_again(tmp_path: Path) -> None:
    """`make sim` kills it 30 times."""
    chance = random.Random(SEED)
    victim = Victim(tmp_path)
    await victim.start()
    client = await Client.connect(victim.address)
    worker = Worker(
        client,
        task_queue="adders",
        workflows=[Adder],
        activities=[double],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    ended = asyncio.Event()
    try:
        async with worker:
            killing = asyncio.create_task(_kill_again_and_again(victim, chance, ended))
            living = [asyncio.create_task(_live(client, number, chance)) for number in range(WORKFLOWS)]
            kills = await killing
            async with asyncio.timeout(END_S_MAX):
                results = await asyncio.gather(*living)
            expected = [sum(2 * (number + each) for each in range(ROUNDS)) for number in range(WORKFLOWS)]
            assert results == expected, f"seed {SEED}"
            assert kills == KILLS, "the workflows were over before the last kill: let them take longer"
            histories = [
                await client.get_workflow_handle(f"adder-{number}").fetch_history() for number in range(WORKFLOWS)
            ]
            for history in histories:
                _check(history)
        replayer = Replayer(workflows=[Adder], workflow_runner=UnsandboxedWorkflowRunner())
        for history in histories[::10]:
            await replayer.replay_workflow(history)
    finally:
        victim.kill()
    assert await check_file(tmp_path / "fairlead.db") == WORKFLOWS
