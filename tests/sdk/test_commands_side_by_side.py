"""The same commands of `temporal` have the same exit codes and output on Fairlead and on the reference."""

import asyncio
import json
import os
import re
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.patience import until
from tests.sdk.limit_cases import Bench, activity
from tests.sdk.observe import connect
from tests.sdk.servers import KINDS, serving

(TEMPORAL,) = KINDS["reference"]
COMMAND_S_MAX = 30.0
NOBODY = "nobody-polls-this"
LAMBDA = "arn:aws:lambda:us-east-1:123456789012:function:workers"
# Values that differ in every run, or that depend on how a server stores its data.
_VARIABLE = (
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?"), "<time>"),
    (re.compile(r"time=\S+ "), ""),
    # A documented difference: a task queue has no default rate limit.
    (re.compile(r'"rate_per_second": \d+'), '"rate_per_second": <default>'),
    (re.compile(r'"(stateSizeBytes|stateTransitionCount|executionDuration|longPollToken)": "[^"]+"'), r'"\1": "<any>"'),
)
Script = Callable[["Terminal"], Awaitable[None]]
SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    """Register a script under its own name."""
    SCRIPTS[function.__name__] = function
    return function


@dataclass(slots=True)
class Terminal:
    """Runs commands on one server and keeps their exit codes and output."""

    address: str
    home: Path
    client: Client
    name: str
    seen: list[tuple[str, int, str]] = field(default_factory=list)

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command; returns its exit code and its output."""
        process = await asyncio.create_subprocess_exec(
            *(TEMPORAL, *arguments, "--address", self.address, "-o", "json"),
            *("--command-timeout", f"{COMMAND_S_MAX}s"),
            stdout=PIPE,
            stderr=PIPE,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
        )
        async with asyncio.timeout(2 * COMMAND_S_MAX):
            out, err = await process.communicate()
        return process.returncode or 0, (out + err).decode()

    async def compare(self, *arguments: str) -> str:
        """Run a command whose outcome is compared; returns its output."""
        code, text = await self.run(*arguments)
        shown = text
        for pattern, replacement in _VARIABLE:
            shown = pattern.sub(replacement, shown)
        self.seen.append((" ".join(arguments), code, shown))
        return text

    async def until(self, is_there: Callable[[Any], bool], *arguments: str) -> None:
        """Repeat a command until its output meets a condition."""

        async def holds() -> bool:
            return is_there(json.loads((await self.run(*arguments))[1]))

        await until(holds)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with (
        serving("reference", tmp_path_factory.mktemp("reference")) as reference,
        serving("fairlead", tmp_path_factory.mktemp("fairlead")) as ours,
    ):
        yield {"reference": reference, "fairlead": ours}


async def _pending_activity(terminal: Terminal) -> None:
    """Start a workflow with an activity that no worker takes."""
    bench = Bench(terminal.client, terminal.name)
    assert await bench.start() == "ok"
    assert await bench.answer(activity("theirs", task_queue={"name": NOBODY})) == "ok"


@script
async def options_of_an_activity(terminal: Terminal) -> None:
    await _pending_activity(terminal)
    update = ("activity", "update-options", "--workflow-id", terminal.name, "--activity-id", "theirs")
    await terminal.compare(*update, "--retry-maximum-attempts", "5")
    await terminal.compare(*update, "--restore-original-options")
    await terminal.compare(*update)


@script
async def options_of_all_activities(terminal: Terminal) -> None:
    await _pending_activity(terminal)
    query = f"WorkflowId = '{terminal.name}'"
    await terminal.until(lambda said: said["count"] == "1", "workflow", "count", "--query", query)
    update = ("activity", "update-options", "--query", query, "--retry-maximum-attempts", "7", "--yes")
    job = ("--job-id", json.loads(await terminal.compare(*update))["batchJobId"])
    await terminal.until(lambda said: said["state"] == "BATCH_OPERATION_STATE_COMPLETED", "batch", "describe", *job)
    described = json.loads((await terminal.run("workflow", "describe", "-w", terminal.name, "--raw"))[1])
    attempts = described["pendingActivities"][0]["activityOptions"]["retryPolicy"]["maximumAttempts"]
    terminal.seen.append(("maximum attempts", attempts, ""))


@script
async def partitions_that_do_not_exist(terminal: Terminal) -> None:
    """The command failed with a panic where a partition was missing in the response."""
    describe = ("task-queue", "describe", "--task-queue", terminal.name, "--legacy-mode")
    for partitions in ("1", "2", "6"):
        await terminal.compare(*describe, "--partitions-legacy", partitions)


@script
async def version_with_compute(terminal: Terminal) -> None:
    deployment = ("worker", "deployment")
    await terminal.compare(*deployment, "create", "--name", terminal.name)
    version = ("--deployment-name", terminal.name, "--build-id", "one")
    compute = ("--aws-lambda-function-arn", LAMBDA, "--aws-lambda-skip-role-and-external-id")
    await terminal.compare(*deployment, "create-version", *version, *compute)
    await terminal.compare(*deployment, "describe-version", *version)
    await terminal.compare(*deployment, "create-version", *version)


@script
async def description_of_an_activity(terminal: Terminal) -> None:
    named = ("--activity-id", terminal.name)
    options = ("--task-queue", NOBODY, "--start-to-close-timeout", "20s", "--start-delay", "90s")
    await terminal.compare("activity", "start", *named, "--type", "greet", *options)
    await terminal.compare("activity", "describe", *named)


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_commands_do_the_same_on_both_servers(name: str, addresses: dict[str, str], tmp_path: Path) -> None:
    async def seen(kind: str) -> list[tuple[str, int, str]]:
        address = addresses[kind]
        terminal = Terminal(address, tmp_path, await connect(address), name)
        await SCRIPTS[name](terminal)
        return terminal.seen

    reference, ours = await asyncio.gather(seen("reference"), seen("fairlead"))
    assert ours == reference
